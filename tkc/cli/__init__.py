"""The ``tkc`` command. Exit codes: 0 done, 1 a comparison failed, 2 the user's error, 3 our own, 130 interrupted."""

from tkc.cli.entry_point import main

__all__ = ["main"]
