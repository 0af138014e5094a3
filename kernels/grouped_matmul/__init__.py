"""Grouped matrix product, a weight to each run of rows."""
