"""Two matrix products of the same rows, one activated and multiplied with the other."""
