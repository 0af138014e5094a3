"""The least sizes that a program's formulas are right for: PyTorch's tracer takes every size for 2 or more.

It says that ``x[:, -2:]`` has two columns, and grants that to a ``Dim`` that may be 0. PyTorch's own programs run such
a slice as it is; compiled code has the formula alone. So the program is run on tensors without data, whose sizes are 1
and 0, and what comes out is compared with the formulas. What the model itself asks of sizes, as in ``if x.shape[0] ==
1``, stands in no program.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import sympy
import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

from tkc.frontend.torch.dimensions import Dimensions
from tkc.runtime.signature import SizeRange

_CHECKED_AT_CALLS = ("aten._assert", "aten.sym_constrain")
_UNKNOWN = object()
"""What cannot be told: what the data decides, what an operator has no such sizes for, and what follows from it."""
_UNDEFINED = object()
"""What a formula has no value for."""

Assignment = Mapping[sympy.Symbol, int]


def where_formulas_hold(program: ExportedProgram, dimensions: Dimensions) -> Mapping[str, SizeRange]:
    """The bounds of the sizes of ``program``, from 2 or 1 on where its formulas do not hold below.

    Of several sizes each is tried by itself where they do not hold for all at once.
    """
    if program.example_inputs is None:
        return dimensions.sizes  # a graph of torch.compile, which guards the sizes 0 and 1
    usual = _usual_sizes(program, dimensions)
    small = {
        formula
        for name, formula in dimensions.formulas.items()
        if formula in usual and dimensions.sizes[name].minimum < 2
    }
    if not small:
        return dimensions.sizes
    least = dict.fromkeys(small, 0)
    for size in (1, 0):
        if _holds(program, {**usual, **dict.fromkeys(small, size)}):
            continue
        if not _holds(program, usual):
            return dimensions.sizes  # what runs without data here computes other sizes than the program says
        wrong = {symbol for symbol in small if not _holds(program, {**usual, symbol: size})} or small
        for symbol in wrong:
            least[symbol] = max(least[symbol], size + 1)
        small -= wrong
    return {
        name: replace(bounds, minimum=max(bounds.minimum, least.get(dimensions.formulas[name], 0)))
        for name, bounds in dimensions.sizes.items()
    }


def _usual_sizes(program: ExportedProgram, dimensions: Dimensions) -> dict[sympy.Symbol, int]:
    """The sizes that the program was exported with."""
    leaves = pytree.tree_leaves(program.example_inputs)
    sizes = {
        name: int(leaf.shape[axis])
        for shape, leaf in zip(dimensions.shapes, leaves, strict=False)
        for axis, name in enumerate(shape or ())
        if isinstance(name, str) and isinstance(leaf, torch.Tensor)
    }
    return {
        symbol: (sizes[name] - offset) // factor
        for symbol, (name, offset, factor) in dimensions.solved().items()
        if name in sizes
    }


def _holds(program: ExportedProgram, sizes: Assignment) -> bool:
    """Whether every formula of a size is right at ``sizes``, as far as that can be told."""
    run = _AtSizes(program.graph_module, sizes)
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    mode.cache_enabled = False  # of what the run keeps already
    with mode, torch.no_grad(), _untold():
        run.run(*(run.like(node.meta.get("val")) for node in program.graph.find_nodes(op="placeholder")))
    return run.holds


@contextmanager
def _untold() -> Iterator[None]:
    """A block in which PyTorch does not log, with tracebacks, the operators that refuse a size: here they may."""
    logger, here = logging.getLogger(torch._subclasses.fake_tensor.__name__), threading.get_ident()

    def told(record: logging.LogRecord) -> bool:
        return record.thread != here

    logger.addFilter(told)
    try:
        yield
    finally:
        logger.removeFilter(told)


class _AtSizes(fx.Interpreter):
    """Runs a graph at given sizes; :attr:`holds` says whether its formulas did.

    Tensors have no data, so that of calls of one operator on equal shapes, as each layer has them, one is made.
    """

    def __init__(self, module: fx.GraphModule, sizes: Assignment) -> None:
        super().__init__(module)
        self._sizes = sizes
        self._numbers: dict[sympy.Expr, Any] = {}
        self._results: dict[Hashable, Any] = {}
        self._shares_results = not any(map(_reshapes_operands, module.graph.nodes))
        self.holds = True

    def like(self, value: Any) -> Any:
        """A tensor as ``value``, or a number, at these sizes; unknown where there is none."""
        if not isinstance(value, torch.Tensor):
            return self._number(value)
        shape = [self._number(size) for size in value.shape]
        self.holds &= _UNDEFINED not in shape
        if not all(isinstance(size, int) and size >= 0 for size in shape):
            return _UNKNOWN
        return torch.empty(shape, dtype=value.dtype, device=value.device)

    def run_node(self, n: fx.Node) -> Any:
        """What ``n`` computes, if that can be told and was right so far."""
        if not self.holds:
            return _UNKNOWN
        if n.op != "call_function":
            return super().run_node(n)
        if isinstance(n.target, torch._ops.HigherOrderOperator) or str(n.target).startswith(_CHECKED_AT_CALLS):
            return _UNKNOWN
        args, kwargs = self.fetch_args_kwargs_from_env(n)
        result = self._result(n, args, kwargs)
        self.holds = result is _UNKNOWN or all(self._agrees(*pair) for pair in _pairs(n.meta.get("val"), result))
        return result

    def _result(self, node: fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        leaves, structure = pytree.tree_flatten((args, kwargs))
        if any(leaf is _UNKNOWN for leaf in leaves):
            return _UNKNOWN
        call = (node.target, structure, *map(_described, leaves)) if self._shares_results else node
        if call not in self._results:
            try:
                self._results[call] = self.call_function(node.target, args, kwargs)
            except Exception:  # the data decides, or the operator has no such size, which is checked in each call
                self._results[call] = _UNKNOWN
        return self._results[call]

    def _agrees(self, expected: Any, found: Any) -> bool:
        if isinstance(expected, torch.Tensor) and isinstance(found, torch.Tensor):
            shape = [self._number(size) for size in expected.shape]
            return _UNKNOWN in shape or shape == list(found.shape)
        if isinstance(expected, torch.SymInt) and isinstance(found, int):
            return self._number(expected) in (_UNKNOWN, found)
        return True

    def _number(self, value: Any) -> Any:
        if not isinstance(value, torch.SymInt):
            return value
        formula = value.node.expr
        if formula not in self._numbers:
            self._numbers[formula] = self._evaluated(formula)
        return self._numbers[formula]

    def _evaluated(self, formula: sympy.Expr) -> Any:
        try:
            number = formula.subs(self._sizes)
        # A quotient by 0 is no number, and PyTorch does not compute remainders of negative ones.
        except (ZeroDivisionError, AssertionError):
            return _UNDEFINED
        return int(number) if number.is_number else _UNKNOWN


def _reshapes_operands(node: fx.Node) -> bool:
    """Whether ``node`` may give a tensor that it takes another shape."""
    target = node.target
    if not isinstance(target, torch._ops.OpOverload) or target == torch.ops.aten.detach_.default:
        return False
    return torch.Tag.inplace_view in target.tags or any(argument.is_out for argument in target._schema.arguments)


def _described(leaf: Any) -> Hashable:
    """What an operator's result may depend on of one of its arguments."""
    if not isinstance(leaf, torch.Tensor):
        return type(leaf), leaf
    if not isinstance(leaf, FakeTensor) or leaf.constant is not None:
        return object()  # a constant, on whose numbers it may depend
    return leaf.dtype, leaf.device, leaf.shape, leaf.stride()


def _pairs(expected: Any, found: Any) -> Iterator[tuple[Any, Any]]:
    """The parts of two values that belong together."""
    if isinstance(expected, list | tuple) and isinstance(found, list | tuple):
        yield from zip(expected, found, strict=False)
    else:
        yield expected, found
