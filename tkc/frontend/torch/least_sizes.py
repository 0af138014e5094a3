"""What operators ask of sizes that PyTorch's tracer takes for granted, as it takes every size for 2 or more.

``x[0]`` of a symbolic size is traced without a condition, and ``x[:2]`` as two rows. Compiled code would read memory
outside of a tensor with less.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

import sympy
import torch
from torch import fx
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols, is_symbolic

Least: TypeAlias = "tuple[sympy.Expr | sympy.Rel, int]"
"""A formula over the program's symbols, and the least value that it may have; or a condition on them, and 1."""

Constants: TypeAlias = Mapping[str, torch.Tensor]


def asked_by_operators(graph: fx.Graph, constants: Constants | None = None) -> Iterator[Least]:
    """What the operators of ``graph`` ask of its sizes; ``constants`` are what its inputs of these names are.

    Those of branches and bodies of loops are left out: they need not run.
    """
    for node in graph.nodes:
        yield from _asked_by(node, constants or {})


def conditions_of_operators(graph: fx.Graph) -> Iterator[tuple[sympy.Basic, fx.Node]]:
    """The same as conditions, each with the node that asks it."""
    for node in graph.nodes:
        for formula, least in _asked_by(node, {}):
            is_condition = isinstance(formula, sympy.Rel)
            yield (formula if is_condition else sympy.Ge(formula, least, evaluate=False)), node


def bounds_of_broadcast_selections(graph: fx.Graph) -> Iterator[sympy.Basic]:
    """The conditions that PyTorch's tracer makes of ``masked_select`` with a larger mask, which holds at more places
    than the tensor has elements."""
    for node in graph.find_nodes(op="call_function", target=torch.ops.aten.masked_select.default):
        x, mask = (each.meta["val"] for each in node.args)
        (count,) = map(_formula, node.meta["val"].shape)
        if x.shape != torch.broadcast_shapes(x.shape, mask.shape):
            yield sympy.Le(count, _formula(x.numel()))


def _asked_by(node: fx.Node, constants: Constants) -> Iterator[Least]:
    rule = _RULES.get(getattr(getattr(node.target, "overloadpacket", None), "__name__", ""))
    for size, least in () if rule is None else rule(_Call(node, constants)):
        formula = size if isinstance(size, sympy.Rel) else _formula(size)
        if formula.free_symbols:
            yield formula, least


def computed_below_zero(graph: fx.Graph, minima: Mapping[sympy.Symbol, int]) -> Iterator[Least]:
    """The sizes of what ``graph`` returns that are negative where every symbol has its least value, of ``minima``.

    What is computed on the way has no elements then, as in PyTorch.
    """
    for node in graph.output_node().all_input_nodes:
        for size in _computed_sizes(node):
            if _at(size, minima) < 0:
                yield size, 0


class _Call:
    """The arguments of a node."""

    def __init__(self, node: fx.Node, constants: Constants) -> None:
        self.node, self._constants = node, constants
        names = [argument.name for argument in node.target._schema.arguments]  # type: ignore[union-attr]  # an operator
        defaults = {argument.name: argument.default_value for argument in node.target._schema.arguments}  # type: ignore[union-attr]
        self._given = {**defaults, **dict(zip(names, node.args, strict=False)), **node.kwargs}

    def __getitem__(self, name: str) -> Any:
        """An argument by its name, a node as its value."""
        return _value(self._given.get(name))

    def shape(self, name: str) -> Any:
        """The shape of an argument, at least that of one element of a tensor without axes."""
        return tuple(self[name].shape) or (1,)

    def range(self, argument: Any) -> tuple[int, int] | None:
        """The least and the largest of the indices that a node is, if they are constants."""
        held = self._constants.get(argument.name) if isinstance(argument, fx.Node) else None
        if held is None or not held.numel():
            while isinstance(argument, fx.Node) and argument.op == "call_function" and argument.args:
                name = argument.target.__name__.partition(".")[0]  # type: ignore[union-attr]  # an operator
                if name not in ("lift_fresh_copy", "clone", "detach", "detach_", "alias", "_to_copy", "to"):
                    return None
                argument = argument.args[0]
                held = self._constants.get(argument.name) if isinstance(argument, fx.Node) else None
        if held is None or not held.numel() or held.is_floating_point() or held.dtype == torch.bool:
            return None
        return int(held.min()), int(held.max())

    def given(self, name: str) -> Any:
        """An argument by its name, as it stands in the node."""
        return self._given.get(name)


def _value(argument: Any) -> Any:
    if isinstance(argument, list | tuple):
        return [_value(each) for each in argument]
    return argument.meta.get("val") if isinstance(argument, fx.Node) else argument


_Rule = Callable[[_Call], Iterator[tuple[Any, int]]]


def _select(call: _Call) -> Iterator[tuple[Any, int]]:
    shape, index = call.shape("self" if "self" in call._given else "input"), call["index"]
    size = shape[call["dim"]]
    if isinstance(index, int):
        yield size, index + 1 if index >= 0 else -index
    elif isinstance(index, torch.SymInt):
        yield _formula(size) - _formula(index), 1
        yield _formula(size) + _formula(index), 0


def _slice(call: _Call) -> Iterator[tuple[Any, int]]:
    """A number of rows that is known has to be there; one that is not is computed from the size."""
    dim, start, step = call["dim"], call["start"], call["step"]
    rows = (call["src"] if "src" in call._given else call.node.meta["val"]).shape[dim]
    start = 0 if start is None else start
    if not (isinstance(rows, int) and isinstance(start, int) and isinstance(step, int)) or rows == 0:
        return
    size = call.shape("self")[dim]
    yield size, max(-start, (rows - 1) * step + 1) if start < 0 else start + (rows - 1) * step + 1


def _reduced(call: _Call) -> Iterator[tuple[Any, int]]:
    if call["other"] is not None:  # the larger of two tensors
        return
    shape, dims = call.shape("self"), call["dim"]
    every = dims is None or dims == []
    for dim in range(len(shape)) if every else dims if isinstance(dims, list) else [dims]:
        yield shape[dim], 1


def _reduced_along(call: _Call) -> Iterator[tuple[Any, int]]:
    if call["dim"] is not None:
        yield from _reduced(call)


def _normed(call: _Call) -> Iterator[tuple[Any, int]]:
    """The largest or least magnitude, or what is computed of reciprocals, is one of nothing."""
    order = call["ord"]
    if isinstance(order, int | float) and (order < 0 or order == math.inf):
        shape, dims = call.shape("self"), call["dim"]
        for dim in dims or range(len(shape)):
            yield shape[dim], 1


def _ranked(call: _Call) -> Iterator[tuple[Any, int]]:
    size, least = call.shape("self")[call["dim"]], 1 if "kthvalue" in str(call.node.target) else 0
    if isinstance(call["k"], int):
        yield size, max(call["k"], least)
    elif isinstance(call["k"], torch.SymInt):
        yield call["k"], least
        yield _formula(size) - _formula(call["k"]), 0


def _indexed(call: _Call, size: Any, index: Any) -> Iterator[tuple[Any, int]]:
    """``size`` rows at ``index``, a node: a row has to be there for any index, and those that are constants."""
    limits = call.range(index)
    if limits is not None:
        yield size, max(limits[1] + 1, -limits[0])
        return
    count = sympy.Integer(1)
    for each in _value(index).shape:
        count = count * _formula(each)
    if count.is_number:
        if count > 0:
            yield size, 1
    elif not _vanishes_with(count, _formula(size)):
        # Not evaluated: to PyTorch every count is positive.
        yield _formula(size) - sympy.Min(count, 1, evaluate=False), 0


def _vanishes_with(count: sympy.Expr, size: sympy.Expr) -> bool:
    """Whether there is no index where there is no row."""
    return count == size or (isinstance(size, sympy.Symbol) and count.xreplace({size: sympy.Integer(0)}) == 0)


def _along_dim(call: _Call) -> Iterator[tuple[Any, int]]:
    yield from _indexed(call, call.shape("self")[call["dim"]], call.given("index"))


def _elements(call: _Call) -> Iterator[tuple[Any, int]]:
    """Of ``gather`` and ``scatter``, whose indices stand in a part of the tensor, and have a part of the source."""
    shape, indices = call.shape("self"), call.shape("index")
    if any(isinstance(count, int) and count == 0 for count in indices):
        return  # PyTorch asks nothing then, not even as many axes
    yield from _along_dim(call)
    dim = call["dim"] % len(shape)
    for axis, (size, count) in enumerate(zip(shape, indices, strict=True)):
        if axis != dim:
            yield _formula(size) - _formula(count), 0
    if isinstance(call["src"], torch.Tensor):
        for size, count in zip(call.shape("src"), indices, strict=True):
            yield _formula(size) - _formula(count), 0


def _at_indices(call: _Call) -> Iterator[tuple[Any, int]]:
    axis = 0
    for index in call.given("indices"):
        value = _value(index)
        if value is None or value.dtype not in (torch.bool, torch.uint8):
            if value is not None:
                yield from _indexed(call, call.shape("self")[axis], index)
            axis += 1
        else:
            axis += value.ndim


def _rows(call: _Call) -> Iterator[tuple[Any, int]]:
    yield from _indexed(call, call.shape("weight")[0], call.given("indices"))


def _mirrored(call: _Call) -> Iterator[tuple[Any, int]]:
    for size, pad in _padded(call, call["padding"]):
        yield size, pad + 1


def _repeated(call: _Call) -> Iterator[tuple[Any, int]]:
    for size, _ in _padded(call, call["padding"]):
        yield size, 1


def _pad(call: _Call) -> Iterator[tuple[Any, int]]:
    least = {"reflect": 1, "circular": 0, "replicate": None}
    mode = call["mode"]
    if mode == "constant" or "constant" in str(call.node.target):
        for size, widths in zip(call.shape("self")[::-1], _pairs(call["pad"]), strict=False):
            if not all(isinstance(width, int) for width in widths):  # which may cut off more than there is
                yield _formula(size) + sympy.Add(*(sympy.Min(_formula(width), 0) for width in widths)), 0
    elif mode in least:
        for size, pad in _padded(call, call["pad"]):
            more = least[mode]
            yield size, 1 if more is None else pad + more


def _pairs(padding: Any) -> list[tuple[Any, Any]]:
    return list(zip(padding[::2], padding[1::2], strict=True))


def _padded(call: _Call, padding: Any) -> Iterator[tuple[Any, int]]:
    """Each padded axis's size, and the larger of what is put before and behind."""
    shape = call.shape("self")
    for axis, (before, behind) in enumerate(_pairs(padding)):
        if isinstance(before, int) and isinstance(behind, int):
            yield shape[-1 - axis], max(before, behind)


def _resized(call: _Call) -> Iterator[tuple[Any, int]]:
    for size in call.shape("self" if call["self"] is not None else "input")[2:]:
        yield size, 1


def _rank(name: str) -> int:
    """How many axes the images of an operator have: 2 of ``aten.avg_pool2d.default``."""
    return int(name[name.index("d.") - 1]) if "d." in name else int(name[name.index("d_") - 1])


def _adaptive(call: _Call) -> Iterator[tuple[Any, int]]:
    """Each position is computed of one or more, however many there are."""
    for size in call.shape("self")[-_rank(str(call.node.target)) :]:
        yield size, 1


def _windows(call: _Call) -> Iterator[tuple[Any, int]]:
    """One window is there on each axis, of an image that PyTorch (2.11) may export with fewer pixels."""
    results = call.node.meta["val"]
    result = results[0] if isinstance(results, list | tuple) else results
    name = str(call.node.target)
    if "unfold" in name:
        yield result.shape[call["dimension"]], 1
        return
    image = call.shape("input" if "conv" in name else "self")
    image = image[2:] if "convolution" in name else image[-_rank(name) :]
    for size, count in zip(image, result.shape[-len(image) :], strict=True):
        if isinstance(size, torch.SymInt):
            yield count, 1


def _normalized(call: _Call) -> Iterator[tuple[Any, int]]:
    """Numbers that are normalized by their own mean and deviation are not one; PyTorch checks that in Python."""
    shape, target = call.shape("input"), str(call.node.target)
    if "batch_norm" in target and call["training"]:
        sizes = [size for axis, size in enumerate(shape) if axis != 1]
    elif "instance_norm" in target and call["use_input_stats"]:
        sizes = list(shape[2:])
    else:
        return
    count = sympy.Mul(*map(_formula, sizes))
    yield sympy.Ne(count, 1, evaluate=False), 1  # not evaluated: to PyTorch every size is 2 or more


def _squeezed(call: _Call) -> Iterator[tuple[Any, int]]:
    """An axis of a size that the data decides stays in the result, and is none of 1 then."""
    shape, dims = call.shape("self"), call["dim"]
    every = range(len(shape)) if dims is None else dims if isinstance(dims, list) else [dims]
    for size in (shape[dim] for dim in every):
        if free_unbacked_symbols(size):
            # Not evaluated: to PyTorch every size is another one.
            yield sympy.Ne(_formula(size), 1, evaluate=False), 1


_RULES: dict[str, _Rule] = {
    "squeeze": _squeezed,
    **dict.fromkeys(("select", "select_scatter"), _select),
    **dict.fromkeys(("slice", "slice_scatter"), _slice),
    **dict.fromkeys(("max", "min", "amax", "amin", "argmax", "argmin", "aminmax", "mode"), _reduced),
    **dict.fromkeys(("median", "nanmedian"), _reduced_along),
    "linalg_vector_norm": _normed,
    **dict.fromkeys(("topk", "kthvalue"), _ranked),
    **dict.fromkeys(("index_select", "index_add", "index_copy", "index_fill", "index_reduce"), _along_dim),
    **dict.fromkeys(("gather", "scatter", "scatter_add", "scatter_reduce"), _elements),
    **dict.fromkeys(("index", "index_put", "index_put_", "_unsafe_index", "_unsafe_index_put"), _at_indices),
    "embedding": _rows,
    **dict.fromkeys((f"reflection_pad{rank}d" for rank in (1, 2, 3)), _mirrored),
    **dict.fromkeys((f"replication_pad{rank}d" for rank in (1, 2, 3)), _repeated),
    **dict.fromkeys(("pad", "constant_pad_nd"), _pad),
    **dict.fromkeys((f"adaptive_{kind}_pool{rank}d" for kind in ("avg", "max") for rank in (1, 2, 3)), _adaptive),
    **dict.fromkeys((f"_adaptive_avg_pool{rank}d" for rank in (2, 3)), _adaptive),
    **dict.fromkeys(("batch_norm", "instance_norm"), _normalized),
    **dict.fromkeys(("unfold", "convolution"), _windows),
    **dict.fromkeys((f"conv{rank}d" for rank in (1, 2, 3)), _windows),
    **dict.fromkeys((f"{kind}_pool{rank}d" for kind in ("avg", "max") for rank in (1, 2, 3)), _windows),
    **dict.fromkeys((f"max_pool{rank}d_with_indices" for rank in (1, 2, 3)), _windows),
    **dict.fromkeys((f"_upsample_nearest_exact{rank}d" for rank in (1, 2, 3)), _resized),
    **dict.fromkeys(("_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa"), _resized),
    **dict.fromkeys((f"upsample_{name}" for name in ("nearest1d", "nearest2d", "nearest3d")), _resized),
    **dict.fromkeys((f"upsample_{name}" for name in ("linear1d", "bilinear2d", "trilinear3d", "bicubic2d")), _resized),
}


def _computed_sizes(node: fx.Node) -> Iterator[sympy.Expr]:
    values = node.meta.get("val")
    for value in values if isinstance(values, list | tuple) else [values]:
        if isinstance(value, torch.Tensor):
            for formula in map(_formula, value.shape):
                if not (formula.is_number or isinstance(formula, sympy.Symbol)):
                    yield formula


def _at(formula: sympy.Expr, minima: Mapping[sympy.Symbol, int]) -> float:
    """``formula`` where every symbol has its least value; 0 where it has none then."""
    if not formula.free_symbols <= minima.keys():
        return 0
    try:
        return float(formula.xreplace({symbol: sympy.Integer(minima[symbol]) for symbol in formula.free_symbols}))
    # A quotient by 0 is a condition of its own. PyTorch's remainder of a negative number is an assertion.
    except (TypeError, ValueError, ArithmeticError, AssertionError):
        return 0


def _formula(size: Any) -> sympy.Expr:
    if isinstance(size, sympy.Expr):
        return size
    return size.node.expr if isinstance(size, torch.SymInt) and is_symbolic(size) else sympy.Integer(int(size))
