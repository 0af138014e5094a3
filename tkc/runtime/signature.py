"""How a compiled model is called: its inputs and outputs, their sizes, and what a call changes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from tkc.runtime.tensors import HELD

STRING = "string"
"""The :attr:`TensorSpec.dtype` of tensors of strings."""

CODES = "int64"
"""The dtype of the codes that stand for strings."""


@dataclass(frozen=True)
class TensorSpec:
    """One flattened input or output. A ``str`` dimension is symbolic: a name, whose bounds stand in
    :attr:`Signature.sizes`, or a formula over names. Complex tensors, of ``shape``, are in generated code pairs of real
    numbers along one more axis of two. Those of a ``dtype`` that is narrower than a byte are tensors of :attr:`held`,
    those of :data:`STRING` tensors of codes (``tkc/runtime/text_table.py``).
    """

    name: str
    shape: tuple[int | str, ...]
    dtype: str

    @property
    def held(self) -> str:
        """The dtype that the elements have in memory, of which PyTorch has one by this name."""
        return CODES if self.is_text else HELD.get(self.dtype, self.dtype)

    @property
    def is_narrow(self) -> bool:
        """Whether the elements are numbers narrower than a byte."""
        return self.dtype in HELD

    @property
    def is_text(self) -> bool:
        """Whether the elements are strings."""
        return self.dtype == STRING


@dataclass(frozen=True)
class SizeRange:
    """The inclusive bounds of a symbolic size; ``maximum`` is ``None`` where there is none."""

    minimum: int = 1
    maximum: int | None = None


@dataclass(frozen=True)
class Constant:
    """A leaf of the call that was fixed at export (``use_cache=False``); a call must pass it unchanged."""

    name: str
    value: bool | int | float | str | None


@dataclass(frozen=True)
class IndexBound:
    """The elements of ``input`` index an axis of ``size``, a number or a formula over sizes.

    They are at least 0, or ``-size`` where ``wraps`` lets them count from the end. ``source`` says what reads or writes
    by them.
    """

    input: str
    size: int | str
    wraps: bool
    source: str


@dataclass(frozen=True)
class Flag:
    """What the compiled function counts: the indices of ``source`` that are out of range, the zeros it divides by, or
    whether what it asserts does not hold.

    ``source`` is the node, of divisors the tensor, and of assertions their message, as messages name them.
    """

    source: str
    what: Literal["index", "divisor", "assertion"] = "index"


@dataclass(frozen=True)
class Signature:
    """How a compiled model is called.

    ``leaves`` are the flattened arguments in order: tensors, which the compiled function takes, and constants,
    which it does not. ``in_spec`` and ``out_spec`` are pytree specs as ``torch.utils._pytree.treespec_dumps`` writes
    them: of ``(args, kwargs)``, and of the result; ``None`` means positional tensors in, a tuple (or the one
    tensor) out, as ONNX has it. ``input_names`` are those of the positional arguments, which may be given by name, too,
    where an ONNX model takes sequences or optional values. ``constant_outputs`` are the leaves of the result that are
    no tensors, by their position among its leaves (``None`` for attention weights that were not asked for).
    ``size_outputs`` are those that follow from the sizes of a call, in the same form: each a
    :class:`~tkc.runtime.sizes.Formula`. ``number_outputs`` are the positions among ``outputs`` of those that the model
    returns as numbers of Python's, and the compiled function as tensors of no axes. ``conditions`` are formulas that
    must hold between the sizes of a call: the model was exported under them.

    A call may change what it was given: ``updated_inputs`` names the inputs whose tensors it writes into, ``state`` the
    parameters that it changes and that the next call finds changed. ``returned`` lists the outputs that are such a
    tensor itself: the position among ``outputs``, and the position among updated inputs and state, taken together.

    ``index_bounds`` says what the elements of inputs must be for the model to index with them. ``index_flags`` are the
    indices and integer divisors that the compiled function checks itself: behind the outputs that it computes, it
    returns how many of each were out of range or zero, ``int32 [len(index_flags)]``; with ``checked_at_once`` a call
    waits for it.

    ``strings`` are those that the model holds, by their codes, the empty one first; ``None`` for a model that computes
    nothing with strings.
    Raises :class:`ValueError` where there is no such input or position.
    """

    leaves: tuple[TensorSpec | Constant, ...]
    outputs: tuple[TensorSpec, ...]
    sizes: Mapping[str, SizeRange]
    in_spec: str | None = None
    out_spec: str | None = None
    input_names: tuple[str, ...] = ()
    constant_outputs: tuple[tuple[int, Constant], ...] = ()
    size_outputs: tuple[tuple[int, str], ...] = ()
    number_outputs: tuple[int, ...] = ()
    conditions: tuple[str, ...] = ()
    updated_inputs: tuple[str, ...] = ()
    state: tuple[TensorSpec, ...] = ()
    returned: tuple[tuple[int, int], ...] = ()
    index_bounds: tuple[IndexBound, ...] = ()
    index_flags: tuple[Flag, ...] = ()
    checked_at_once: bool = False
    strings: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        if self.strings is None and any(spec.is_text for spec in (*self.inputs, *self.outputs)):
            raise ValueError("there are inputs or outputs of strings, and no strings of the model's")
        if self.strings is not None and (self.strings[:1] != ("",) or len(set(self.strings)) != len(self.strings)):
            raise ValueError("the strings of the model do not begin with the empty one, or are not all different")
        if unknown := sorted(set(self.updated_inputs) - {spec.name for spec in self.inputs}):
            raise ValueError(f"a call updates {', '.join(unknown)}, which is no input")
        updated = len(self.updated_inputs) + len(self.state)
        for output, update in self.returned:
            if not (0 <= output < len(self.outputs) and 0 <= update < updated):
                raise ValueError(f"output {output} cannot be update {update} of {updated}")
        for output in self.number_outputs:
            if not (0 <= output < len(self.outputs) and self.outputs[output].shape == ()):
                raise ValueError(f"output {output} is no tensor of one number")

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        """The leaves that are tensors."""
        return tuple(leaf for leaf in self.leaves if isinstance(leaf, TensorSpec))
