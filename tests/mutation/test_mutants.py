"""The planted faults can be planted; ``python -m tests.mutation`` runs the tests that are to find them."""

from __future__ import annotations

import ast
import re
from collections import Counter

import pytest

from .mutant import ROOT, Mutant
from .mutants import MUTANTS
from .rule_mutants import PASSES, RULES


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_each_fault_can_be_planted(mutant: Mutant) -> None:
    """The text that is replaced stands in its file once, what comes out is Python, and the tests are there."""
    text = (ROOT / mutant.file).read_text()
    faulty = mutant.applied(text)
    assert faulty != text
    ast.parse(faulty)
    for test in mutant.tests:
        file, _, function = re.sub(r"\[.*\]$", "", test).partition("::")
        tests = (ROOT / "tests" / file).read_text()
        assert not function or f"def {function}(" in tests


def test_there_are_faults_of_every_room() -> None:
    """At least fifty, with names of their own."""
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 50
    rooms = Counter(mutant.room for mutant in MUTANTS)
    assert set(rooms) == {"passes", "kernels", "schedules", "builder"} and len(RULES) + len(PASSES) >= 30
