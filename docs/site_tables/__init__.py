"""The tables of the documentation site that are read off the code: a page a function."""
