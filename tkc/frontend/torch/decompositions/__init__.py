"""Operators as others of PyTorch's that have converters, where PyTorch's own core decompositions have none.

A decomposition that returns ``NotImplemented`` leaves its operator whole: it is called in PyTorch, or refused. Each
file has a table of its own; ``table.py`` has them all.
"""
