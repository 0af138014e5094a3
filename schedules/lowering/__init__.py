"""From a scheduled function to one that code is generated from."""
