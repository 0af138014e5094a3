"""The integers that a model divides by: constant zeros are refused, others that may be zero are counted by the model.

PyTorch raises for an integer division by zero on the CPU; on a GPU, and in ONNX, its result is undefined. Generated
code has 0 there, which must not pass for a result.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import torch
from tvm import relax, tirx
from tvm.ir import Op
from tvm_ffi import structural_equal

from tkc.errors import UnsupportedModelError
from tkc.frontend.held_weights import DIVIDES, ReadWeights
from tkc.frontend.origins import Size, constant_values, origin, size_tensor
from tkc.runtime.signature import Flag

_DEPTH = 8
"""How many operators behind a divisor are looked at for a proof that it is not zero."""


@dataclass(frozen=True)
class _Use:
    """A node, ``source``, divides integers by ``divisor``, ``name`` in the graph, for a quotient of ``shape``."""

    divisor: relax.Expr
    shape: Sequence[Size]
    name: str
    source: str

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to divide in any call."""
        return any(isinstance(size, int | tirx.IntImm) and int(size) == 0 for size in self.shape)

    @property
    def is_certain(self) -> bool:
        """Whether something is divided in every call."""
        return all(isinstance(size, int | tirx.IntImm) and int(size) > 0 for size in self.shape)


class Divisors:
    """What a frontend notes of integer divisions while it converts a model, or a branch of it.

    ``inputs`` are the model's by name; ``constants`` holds the values of the variables that no call changes. A constant
    zero in a branch is no reason to refuse the model, which may never take it: there it is counted. ``read`` is told
    which constants were looked at.
    """

    def __init__(
        self,
        builder: relax.BlockBuilder,
        inputs: Mapping[relax.Var, str],
        constants: Mapping[relax.Var, torch.Tensor],
        read: ReadWeights,
        *,
        in_branch: bool,
    ) -> None:
        self._builder = builder
        self._inputs = inputs
        self._constants = constants
        self._read = read
        self._in_branch = in_branch
        self._uses: list[_Use] = []

    def add(self, divisor: relax.Expr, shape: Sequence[Size], *, name: str, source: str) -> None:
        """Note that ``source`` divides integers by ``divisor`` for a quotient of ``shape``.

        ``name`` is what the divisor is called in the graph.
        """
        use = _Use(divisor, shape, name, source)
        if not use.is_empty and not self._is_nonzero(divisor, _DEPTH):
            self._uses.append(use)

    def check_constants(self) -> None:
        """Raise :class:`UnsupportedModelError` where every call divides by a constant zero."""
        for use in self._uses:
            if self._is_refused(use):
                raise UnsupportedModelError(
                    f"{use.source} divides integers by the constant '{use.name}', which holds 0; correct the divisor"
                )

    def counted(self) -> tuple[list[relax.Var], list[Flag]]:
        """Emit how many zeros each divisor has, ``int32 [1]``; and what the divisors are."""
        uses: dict[Hashable, _Use] = {}
        for use in self._uses:
            if not self._is_refused(use):  # the first of equal ones is named
                key = self._origin(use.divisor), tuple(map(str, self._other_sizes(use)))
                uses.setdefault(key, use)
        flags = [Flag(f"{self._named(use)} of {use.source}", "divisor") for use in uses.values()]
        return [self._zeros(use) for use in uses.values()], flags

    def _origin(self, divisor: relax.Expr) -> relax.Expr:
        return origin(self._builder, divisor)

    def _named(self, use: _Use) -> str:
        name = self._inputs.get(self._origin(use.divisor))
        return f"'{use.name}'" if name is None else f"input '{name}'"

    def _is_refused(self, use: _Use) -> bool:
        return not self._in_branch and use.is_certain and self._values(self._origin(use.divisor)) is not None

    def _values(self, tensor: relax.Expr) -> torch.Tensor | None:
        values = constant_values(tensor, self._constants)
        if values is not None:
            self._read.note_values(values, DIVIDES)
        return values

    def _is_nonzero(self, tensor: relax.Expr, depth: int) -> bool:
        """Whether no element of integers can be zero: constants, what is clamped above zero, or guarded by a selection.

        A guard is ``where(y == 0, 1, y)`` or ``where(y != 0, y, 1)``.
        """
        tensor = self._origin(tensor)
        values = self._values(tensor)
        if values is not None:
            return bool((values != 0).all())
        name, args = self._call(tensor)
        if name == "relax.where" and depth:
            condition, chosen, other = args
            guards = (("relax.equal", chosen, other), ("relax.not_equal", other, chosen))
            return any(
                self._is_nonzero(safe, depth - 1)
                and (self._compares_with_zero(condition, comparison, rest) or self._is_nonzero(rest, depth - 1))
                for comparison, safe, rest in guards
            )
        if name in ("relax.full", "relax.full_like"):
            return self._is_nonzero(args[1], depth)
        return self._is_positive(tensor, depth)

    def _is_positive(self, tensor: relax.Expr, depth: int) -> bool:
        tensor = self._origin(tensor)
        values = self._values(tensor)
        if values is not None:
            return bool((values > 0).all())
        name, args = self._call(tensor)
        if name in ("relax.ones", "relax.ones_like"):
            return True
        if not depth or name not in ("relax.maximum", "relax.minimum"):
            return False
        bounds = (self._is_positive(bound, depth - 1) for bound in args)
        return any(bounds) if name == "relax.maximum" else all(bounds)

    def _compares_with_zero(self, condition: relax.Expr, comparison: str, tensor: relax.Expr) -> bool:
        name, args = self._call(condition)
        if name != comparison or not self._origin(args[0]).same_as(self._origin(tensor)):
            return False
        zero = self._values(self._origin(args[1]))
        return zero is not None and not zero.any()

    def _call(self, tensor: relax.Expr) -> tuple[str, Sequence[relax.Expr]]:
        """The operator that computes ``tensor``, and its operands; no name where none does."""
        value = self._builder.lookup_binding(tensor) if isinstance(tensor, relax.Var) else None
        if isinstance(value, relax.Call) and isinstance(value.op, Op):
            return value.op.name, list(value.args)
        return "", []

    def _zeros(self, use: _Use) -> relax.Var:
        """How many zeros the divisor has, or 0 where the quotient has no elements, ``int32 [1]``."""
        op, emit, divisor = relax.op, self._builder.emit, self._origin(use.divisor)
        zero = emit(op.equal(divisor, relax.const(0, divisor.struct_info.dtype)))
        count = emit(op.reshape(emit(op.sum(emit(op.astype(zero, "int32")))), [1]))
        for size in self._other_sizes(use):
            some = emit(op.minimum(size_tensor(self._builder, size), relax.const(1, "int64")))
            count = emit(op.multiply(count, emit(op.astype(some, "int32"))))
        return count

    def _other_sizes(self, use: _Use) -> list[Size]:
        """The sizes of the quotient that may be 0 where the divisor has elements: then nothing is divided by them."""
        shape = self._origin(use.divisor).struct_info.shape
        own = list(shape.values) if isinstance(shape, relax.ShapeExpr) else []
        return [
            size
            for size in use.shape
            if not isinstance(size, int | tirx.IntImm) and not any(structural_equal(size, other) for other in own)
        ]
