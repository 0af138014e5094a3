"""Layer and root-mean-square normalization, with the addition that feeds it."""
