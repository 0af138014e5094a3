"""TVM's strings outlive the objects that they name."""

from __future__ import annotations

import copy
import dataclasses
import pickle

from tvm import tirx

import tkc.stages  # noqa: F401, the compiler's own process


@dataclasses.dataclass
class Named:
    """Holds a name, as findings of stages do."""

    name: str


def test_copies_are_pythons_own() -> None:
    """However a name is handed on; TVM's memory goes with the one that TVM gave."""
    name = tirx.Var("a_name_that_is_longer_than_what_fits_beside_it", "int32").name
    assert type(name) is not str  # or there is nothing to test any more
    copies = [
        pickle.loads(pickle.dumps(name)),
        copy.copy(name),
        copy.deepcopy(name),
        dataclasses.asdict(Named(name))["name"],
        pickle.loads(pickle.dumps(Named(name))).name,
    ]
    assert copies == [name] * len(copies)
    assert {type(each) for each in copies} == {str}
