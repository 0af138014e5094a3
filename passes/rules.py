"""The ordered table of substitution rules."""

from tkc.passes.rule import Rule
RULES: tuple[Rule, ...] = ()
