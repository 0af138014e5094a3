"""Which in-place operators of an exported graph can be read as functional ones."""

from __future__ import annotations

from torch import fx
from torch._ops import OpOverload

# Whose schema promises a new tensor, but which returns its argument when it does nothing.
_MAY_RETURN_ARGUMENT = frozenset({"aten::dropout", "aten::feature_dropout", "aten::lift_fresh"})


def is_in_place(node: fx.Node) -> bool:
    """Whether the node's operator writes into one of its arguments."""
    return isinstance(node.target, OpOverload) and node.target._schema.is_mutable


def functional_name(node: fx.Node) -> str:
    """The name of the operator that computes what the node's in-place operator writes (``aten.div.Tensor`` for
    ``aten.div_.Tensor``); of any other operator its own name."""
    name = str(node.target)
    return name.replace("_.", ".", 1) if is_in_place(node) else name


def is_unobserved(node: fx.Node) -> bool:
    """Whether nothing but the written tensor itself shows what an in-place operator writes.

    That holds where the tensor was made in the graph, is no view, and has had no view taken of it. Then
    the operator's result can simply take the tensor's place from there on.
    """
    written = node.args[0]
    if not isinstance(written, fx.Node) or written.op != "call_function" or _may_share_memory(written):
        return False
    earlier = {user for user in written.users if user < node}
    return not any(_may_share_memory(user) for user in earlier)


def changed_placeholders(graph: fx.Graph) -> set[str]:
    """The names of the graph's placeholders that its operators write into, directly or through views."""
    return {written.name for node in graph.nodes for written in written_memory(node) if written.op == "placeholder"}


def written_memory(node: fx.Node) -> list[fx.Node]:
    """The nodes into whose memory the node's operator writes, directly or through views."""
    return [_origin(written) for written in _written(node)]


def _written(node: fx.Node) -> list[fx.Node]:
    """The arguments that the node's operator writes into."""
    if not is_in_place(node):
        return []
    arguments = node.target._schema.arguments  # type: ignore[union-attr]  # an OpOverload
    given = dict(zip((argument.name for argument in arguments), node.args, strict=False)) | dict(node.kwargs)
    marked = (argument.name for argument in arguments if argument.alias_info and argument.alias_info.is_write)
    return [found for found in map(given.get, marked) if isinstance(found, fx.Node)]


def _origin(node: fx.Node) -> fx.Node:
    """The node whose memory ``node`` may be a view of."""
    while node.op == "call_function" and _may_share_memory(node) and isinstance(node.args[0], fx.Node):
        node = node.args[0]
    return node


def _may_share_memory(node: fx.Node) -> bool:
    """Whether the node's results may be views of its arguments."""
    if not isinstance(node.target, OpOverload):
        source = node.args[0] if node.args else None
        return isinstance(source, fx.Node) and isinstance(source.target, OpOverload) and _may_share_memory(source)
    schema = node.target._schema
    if schema.is_mutable:
        # Returns the tensor it wrote into, which was itself checked to be no view.
        return not is_unobserved(node)
    return schema.name in _MAY_RETURN_ARGUMENT or any(result.alias_info is not None for result in schema.returns)
