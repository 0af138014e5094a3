"""Loops that carry sequences, written out step by step, by which the lengths of sequences are known."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import numpy as np
import onnx

from tkc.frontend.onnx.sizes import Known
from tkc.frontend.onnx.values import ConversionError, Value

if TYPE_CHECKING:
    from tkc.frontend.onnx.graph import GraphImporter

_MOST_STEPS = 256


def unrolled(
    importer: GraphImporter, body: onnx.GraphProto, trips: Value | None, condition: Value | None, carried: list[Value]
) -> list[Value]:
    """The results of a Loop that carries sequences: what it carried last, and its rows stacked.

    Raises :class:`ConversionError` where only the running model knows how many steps there are.
    """
    holds = _known_number(condition, 1)
    limit = None if trips is None else _known_number(trips, 0)
    if holds is None or (trips is not None and limit is None):
        raise ConversionError(
            "carries a sequence as often as only the running model knows; make its trip count and condition constants, "
            "or carry tensors"
        )
    stacks: list[list[Value]] = [[] for _ in body.output[1 + len(carried) :]]
    for step in itertools.count():
        if not holds or (limit is not None and step >= limit):
            break
        if step == _MOST_STEPS:
            raise ConversionError(f"carries a sequence for more than {_MOST_STEPS} steps; carry tensors")
        given = [Value(Known.constant(np.array(step, "int64"))), Value(Known.constant(np.array(True))), *carried]
        values = dict(zip((value.name for value in body.input), given, strict=True))
        again, *results = importer.add_subgraph(body, importer.index_uses, values)
        carried, rows = results[: len(carried)], results[len(carried) :]
        for stack, row in zip(stacks, rows, strict=True):
            stack.append(row)
        holds = _known_number(again, 1)
        if holds is None:
            raise ConversionError("carries a sequence until the data ends it; make its condition a constant")
    if stacks and not stacks[0]:
        raise ConversionError("stacks no rows, whose shape is not known; correct the model")
    zero = Value(Known.constant(np.array([0], "int64")))
    stacked = [
        importer.computed("Concat", [importer.computed("Unsqueeze", [row, zero])[0] for row in stack], axis=0)[0]
        for stack in stacks
    ]
    return [*carried, *stacked]


def _known_number(value: Value | None, default: int) -> int | None:
    """A number that is known; ``default`` where it is left out, ``None`` where the running model alone knows it."""
    if value is None:
        return default
    return None if value.known is None or value.known.symbolic else int(value.known.values.item())
