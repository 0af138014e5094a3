"""Relax passes: one rule or one transformation a file."""
