"""Operands with sizes that only the data decides, as operands of sizes that are known to fit each other.

PyTorch checks in each call that two such sizes are equal where an operator asks for that, and so does the compiled
model, which takes one for the other from there on. A size of 1 that the data decides does not
broadcast: PyTorch's tracer takes it for another one, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

import torch
from torch import fx

from tkc.frontend.torch.converters.emitter import Emitter
from tkc.frontend.torch.converters.symbols import Size
from tkc.frontend.torch.mutation import functional_name

_Shapes: TypeAlias = "list[tuple[fx.Node, list[Size]]]"

_Rule: TypeAlias = Callable[[Emitter, fx.Node], _Shapes]


@contextmanager
def fitting_operands(emitter: Emitter, node: fx.Node) -> Iterator[bool]:
    """Whether the operands of ``node`` are known to fit each other within; calls in which they do not fail."""
    rule = _RULES.get(functional_name(node))
    if rule is None:
        yield False
        return
    shapes = rule(emitter, node)
    given = {each: emitter.env[each] for each, _ in shapes}
    emitter.node = node
    try:
        for each, shape in shapes:
            emitter.env[each] = emitter.data_sizes.fitted(emitter.env[each], shape)
        yield True
    finally:
        emitter.env.update(given)


def _tensors(node: fx.Node) -> list[fx.Node]:
    return [each for each in node.all_input_nodes if isinstance(each.meta.get("val"), torch.Tensor)]


def _given(node: fx.Node) -> list[fx.Node]:
    """The tensors that the node takes by position, one that it takes twice as well."""
    return [each for each in node.args if isinstance(each, fx.Node) and isinstance(each.meta.get("val"), torch.Tensor)]


def _shape(emitter: Emitter, node: Any) -> list[Size]:
    return list(emitter.env[node].struct_info.shape.values)


def _broadcast(emitter: Emitter, node: fx.Node) -> _Shapes:
    """Each operand as the result, but for axes of 1."""
    result = emitter.sizes(node.meta["val"].shape)
    shapes = []
    for each in _tensors(node)[: 1 if "expand_as" in str(node.target) else None]:
        own = _shape(emitter, each)
        wanted = result[len(result) - len(own) :]
        pairs = zip(own, wanted, strict=True)
        shapes.append((each, [size if emitter.equal(size, 1) else other for size, other in pairs]))
    return shapes


def _side_by_side(emitter: Emitter, node: fx.Node) -> _Shapes:
    """Each operand as the result, but for the axis along which they are put together."""
    result = emitter.sizes(node.meta["val"].shape)
    given: Any = [*node.args[1:], *node.kwargs.values()]
    dim = (given[0] if given else 0) % len(result)
    shapes = []
    for each in _tensors(node):
        own = _shape(emitter, each)
        if len(own) == len(result):  # one without elements has one axis
            shapes.append((each, [own[axis] if axis == dim else size for axis, size in enumerate(result)]))
    return shapes


def _stacked(emitter: Emitter, node: fx.Node) -> _Shapes:
    first = _shape(emitter, _tensors(node)[0])
    return [(each, first) for each in _tensors(node)]


def _product(emitter: Emitter, node: fx.Node) -> _Shapes:
    """The second matrix with as many rows as the first has columns, and the axes of a batch as the result's."""
    left, right = _given(node)
    first, second = _shape(emitter, left), _shape(emitter, right)
    result = emitter.sizes(node.meta["val"].shape)
    batch = result[: len(result) - (len(first) > 1) - (len(second) > 1)]
    second[-2:] = [first[-1], *second[-1:]] if len(second) > 1 else [first[-1]]
    return [(left, _in_batch(emitter, first, batch)), (right, _in_batch(emitter, second, batch))]


def _in_batch(emitter: Emitter, own: list[Size], batch: list[Size]) -> list[Size]:
    """``own``, whose axes before the last two are those of ``batch``, but for axes of 1."""
    axes = own[:-2]
    pairs = zip(axes, batch[len(batch) - len(axes) :], strict=True)
    return [*(size if emitter.equal(size, 1) else other for size, other in pairs), *own[-2:]]


def _added_product(emitter: Emitter, node: fx.Node) -> _Shapes:
    """The same of ``addmm``, with what is added as the result, but for axes of 1."""
    added, left, right = _given(node)
    result, own = emitter.sizes(node.meta["val"].shape), _shape(emitter, added)
    first, second = _shape(emitter, left), _shape(emitter, right)
    pairs = zip(own, result[len(result) - len(own) :], strict=True)
    return [
        (added, [size if emitter.equal(size, 1) else other for size, other in pairs]),
        (left, [*result[:-2], *first[-2:]]),
        (right, [*result[:-2], first[-1], second[-1]]),
    ]


def _linear(emitter: Emitter, node: fx.Node) -> _Shapes:
    """A weight as wide as the rows, and a bias for each of its rows."""
    rows, weight, *bias = _given(node)
    outputs = _shape(emitter, weight)[:-1]
    return [(weight, [*outputs, _shape(emitter, rows)[-1]]), *((each, outputs) for each in bias)]


def _anything(emitter: Emitter, node: fx.Node) -> _Shapes:
    """Nothing has to be equal, or the converter sees to it."""
    return []


_RULES: dict[str, _Rule] = {
    **{
        f"aten.{name}.{overload}": _broadcast
        for names, overloads in (
            (("add", "sub", "mul", "div", "maximum", "minimum", "pow", "remainder", "fmod", "floor_divide"), ()),
            (("eq", "ne", "lt", "le", "gt", "ge", "logical_and", "logical_or", "logical_xor", "atan2"), ()),
            (("bitwise_and", "bitwise_or", "bitwise_xor"), ()),
            (("where",), ("self", "ScalarSelf", "ScalarOther", "Scalar")),
            (("masked_fill",), ("Scalar",)),
            (("expand_as", "copy"), ("default",)),
            (("logaddexp", "hypot", "copysign", "rsub", "lerp", "clamp", "addcmul", "addcdiv"), ()),
        )
        for name in names
        for overload in overloads or ("Tensor", "default", "Tensor_Tensor", "Tensor_mode")
    },
    "aten.cat.default": _side_by_side,
    "aten.stack.default": _stacked,
    **{f"aten.{name}.default": _product for name in ("matmul", "bmm", "mm", "mv", "dot")},
    **{f"aten.{name}.default": _added_product for name in ("addmm", "baddbmm")},
    "aten.linear.default": _linear,
    **dict.fromkeys(
        (
            "aten.index.Tensor",
            "aten.index_put.default",
            "aten.index_select.default",
            "aten.index_add.default",
            "aten.index_copy.default",
            "aten.embedding.default",
            # What these ask of sizes are conditions of least_sizes.py.
            "aten.gather.default",
            "aten.scatter.src",
            "aten.scatter.value",
            "aten.scatter_add.default",
            "aten.scatter_reduce.two",
        ),
        _anything,
    ),
}
