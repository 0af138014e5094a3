"""If: branches whose bindings run only when they are taken (``docs/design/control-flow.md``).

Branches that sizes choose between may give tensors of different numbers of dimensions, and a compiled model has one:
PyTorch's exporter writes ``x.squeeze(-1)`` of a symbolic size so. The model is compiled for one of the branches, with
which the rest can be imported, and a call in which the other would be taken fails.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from tvm import relax, tirx

from tkc.frontend.onnx.untrusted import short
from tkc.frontend.onnx.values import ConversionError, Value, expression_of, require
from tkc.runtime.signature import Flag

if TYPE_CHECKING:
    from tkc.frontend.onnx.graph import GraphImporter


@dataclass(frozen=True)
class _Branch:
    """A branch that lacks its end: its bindings, what they compute, and its own counts of bad indices and divisors.

    ``results`` are tensors, those of a sequence one after the other; ``lengths`` has the structure of each.
    """

    bindings: relax.BindingBlock
    results: Sequence[relax.Expr]
    lengths: Sequence[Any]
    counts: relax.Var | None
    flags: list[Flag]

    def end(self, builder: relax.BlockBuilder, before: int, behind: int) -> relax.SeqExpr:
        """The whole branch: a tuple of its results and of the counts of both, zeros for the other's.

        There are so many of the other's ``before`` its own, or ``behind``.
        """
        builder.begin_scope()
        builder._begin_binding_block()
        zeros = [relax.const(np.zeros(count, "int32")) if count else None for count in (before, behind)]
        parts = [part for part in (zeros[0], self.counts, zeros[1]) if part is not None]
        counts = parts if len(parts) < 2 else [builder.emit(relax.op.concat(parts, 0))]
        result = builder.emit(relax.Tuple([*self.results, *counts]))
        block = builder._end_block()
        builder.end_scope()
        return relax.SeqExpr([self.bindings, block], result)


def choice(importer: GraphImporter, node: onnx.NodeProto) -> list[Value]:
    """The results of an If: of the branch that its condition chooses, here where it is known, otherwise at the call."""
    branches = {a.name: a.g for a in node.attribute}
    condition = importer.values[node.input[0]]
    if condition.known is not None:
        taken = branches["then_branch" if condition.known.values.item() else "else_branch"]
        return importer.add_subgraph(taken, importer.index_uses)
    test = expression_of(condition, importer.builder)
    if test.struct_info.ndim != 0:
        test = importer.builder.emit(relax.op.reshape(test, ()))
    outside = set(importer.algebra.variables)
    then, other = (_branch(importer, branches[name]) for name in ("then_branch", "else_branch"))
    for name, one, two in zip(node.output, then.lengths, other.lengths, strict=True):
        if one != two:
            raise ConversionError(f"has {short(name)} as sequences of other lengths, by the branch; choose tensors")
    names = [name for name, one in zip(node.output, then.lengths, strict=True) for _ in range(_count(one))]
    for name, left, right in zip(names, then.results, other.results, strict=True):
        if _have_other_ranks(left, right) and _is_of_sizes(importer.builder, test):
            return _decided(importer, node, test)
        _check_alike(name, left, right)
    ends = then.end(importer.builder, 0, len(other.flags)), other.end(importer.builder, len(then.flags), 0)
    chosen = importer.builder.emit(relax.If(test, *ends))
    if flags := then.flags + other.flags:
        counts = importer.builder.emit(relax.TupleGetItem(chosen, len(names)))
        importer.index_uses.add_counts(counts, flags)
    fields = [importer.builder.emit(relax.TupleGetItem(chosen, i)) for i in range(len(names))]
    tensors = iter(
        Value(expression=_either(importer, *each, outside))
        for each in zip(names, fields, then.results, other.results, strict=True)
    )
    return [_structured(length, tensors) for length in then.lengths]


def _structure(value: Value) -> Any:
    """``None`` of a tensor, of a sequence the list of its elements'."""
    return None if value.sequence is None else [_structure(element) for element in value.sequence]


def _count(structure: Any) -> int:
    return 1 if structure is None else sum(map(_count, structure))


def _tensors(value: Value) -> list[Value]:
    return [value] if value.sequence is None else [each for element in value.sequence for each in _tensors(element)]


def _structured(structure: Any, tensors: Iterator[Value]) -> Value:
    if structure is None:
        return next(tensors)
    return Value(sequence=[_structured(element, tensors) for element in structure])


def _decided(importer: GraphImporter, node: onnx.NodeProto, test: relax.Expr) -> list[Value]:
    """The results of the branch that the model is compiled for; a call fails where the other would be taken."""
    then = importer.decisions.of(node.output[0])
    require(importer.builder, test if then else relax.op.logical_not(test))
    taken = next(a.g for a in node.attribute if a.name == ("then_branch" if then else "else_branch"))
    return importer.add_subgraph(taken, importer.index_uses)


def _is_of_sizes(builder: relax.BlockBuilder, expression: relax.Expr) -> bool:
    """Whether a value follows from sizes alone, by whatever operators."""
    todo, seen = [expression], set()
    while todo:
        value = todo.pop()
        if isinstance(value, relax.Var):
            if value in seen:
                continue
            seen.add(value)
            bound = builder.lookup_binding(value)
            if bound is None:
                return False
            todo.append(bound)
        elif isinstance(value, relax.Call):
            todo.extend(value.args)
        elif isinstance(value, relax.Tuple):
            todo.extend(value.fields)
        elif isinstance(value, relax.TupleGetItem):
            todo.append(value.tuple_value)
        elif isinstance(value, relax.If | relax.Function):
            return False
    return True


def _have_other_ranks(left: relax.Expr, right: relax.Expr) -> bool:
    one, two = left.struct_info, right.struct_info
    both = isinstance(one, relax.TensorStructInfo) and isinstance(two, relax.TensorStructInfo)
    return both and one.ndim >= 0 and two.ndim >= 0 and one.ndim != two.ndim


def _either(
    importer: GraphImporter, name: str, tensor: relax.Expr, left: relax.Expr, right: relax.Expr, outside: set[tirx.Var]
) -> relax.Expr:
    """The result of a choice, of the sizes that both branches give it where these are known outside of them."""
    one, two = (getattr(each.struct_info, "shape", None) for each in (left, right))
    if not (isinstance(one, relax.ShapeExpr) and isinstance(two, relax.ShapeExpr)):
        return importer.sized(tensor, name)
    sizes = [importer.algebra.simplify(size) for size in one.values]
    for size, other in zip(sizes, two.values, strict=True):
        used = [] if isinstance(size, int) else tirx.analysis.undefined_vars(size)
        if importer.algebra.undecided(size, importer.algebra.simplify(other)) or not outside.issuperset(used):
            return importer.sized(tensor, name)
        if not importer.algebra.equal(size, importer.algebra.simplify(other)):
            return importer.sized(tensor, name)
    return importer.builder.match_cast(tensor, relax.TensorStructInfo(sizes, tensor.struct_info.dtype))


def _branch(importer: GraphImporter, graph: onnx.GraphProto) -> _Branch:
    """A branch whose bindings run only when it is taken."""
    uses = importer.index_uses.branch()
    importer.builder.begin_scope()
    importer.builder._begin_binding_block()
    try:
        values = importer.add_subgraph(graph, uses)
        results = [expression_of(each, importer.builder) for value in values for each in _tensors(value)]
        counts, flags = uses.counted()
    finally:
        block = importer.builder._end_block()
        importer.builder.end_scope()
    return _Branch(block, results, [_structure(value) for value in values], counts, flags)


def _check_alike(name: str, left: relax.Expr, right: relax.Expr) -> None:
    """Raise :class:`ConversionError` for results of two branches that no tensor type can be for both."""
    infos = [result.struct_info for result in (left, right)]
    if not all(isinstance(info, relax.TensorStructInfo) for info in infos):
        return
    one, other = infos
    if one.dtype != other.dtype:
        raise ConversionError(f"has {short(name)} of {one.dtype} or {other.dtype}, by the branch; correct the model")
    if one.ndim != other.ndim or one.ndim < 0:
        raise ConversionError(
            f"has {short(name)} of {one.ndim} or {other.ndim} dimensions, by the branch; export the model with fixed "
            "sizes, which decide the condition"
        )


BRANCHES = {"If": choice}
"""What converts operators that choose a graph, by their names."""
