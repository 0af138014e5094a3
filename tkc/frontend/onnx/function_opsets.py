"""Functions that a model brings and that are written for other opsets than the model itself."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import onnx
import onnx.inliner
import onnx.shape_inference

from tkc.errors import UnsupportedModelError
from tkc.frontend.onnx.domains import describe, plain_domain
from tkc.frontend.onnx.opsets import OLDEST_OPSET, opsets
from tkc.frontend.onnx.untrusted import nodes_of, short, told, within_limits


def of_one_opset(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The model with functions that import its opsets; without any where onnx has to convert one.

    Where a function's operators mean the same in the model's opset, as most do, only the number differs. A model whose
    own operators mean the same in a newer opset of its functions is taken for one of that: onnx converts upwards what
    it does not convert downwards. Raises :class:`tkc.errors.UnsupportedModelError` where it cannot convert a function.
    """
    if not proto.functions:
        return proto
    result = onnx.ModelProto()
    result.CopyFrom(proto)
    called = _called(result)
    del result.functions[:]
    result.functions.extend(called)
    declared = opsets(result)
    versions = dict(declared)
    for function in called:
        for domain, version in _imports(function).items():
            _check_version(function, domain, version)
            if domain not in declared:
                versions[domain] = max(version, versions.get(domain, 0))
    standard = versions.get("", 0)
    newest = max([standard, *(_imports(function).get("", 0) for function in called)])
    if newest > standard and not _changed(nodes_of(result.graph), "", standard, newest):
        versions[""] = newest
    del result.opset_import[:]
    result.opset_import.extend(onnx.helper.make_opsetid(domain, version) for domain, version in versions.items())
    others = [function for function in result.functions if not _bring_to(function, versions)]
    return _converted(result, others) if others else result


def _called(proto: onnx.ModelProto) -> list[onnx.FunctionProto]:
    """The functions that the model calls, directly or not."""
    functions = {(function.domain, function.name): function for function in proto.functions}
    found: dict[tuple[str, str], None] = {}
    pending = [nodes_of(proto.graph)]
    while pending:
        for node in pending.pop():
            key = (node.domain, node.op_type)
            if key in functions and key not in found:
                found[key] = None
                pending.append(_nodes(functions[key]))
    # One that is defined twice is twice in what is checked, and refused there.
    return [function for function in proto.functions if (function.domain, function.name) in found]


def _converted(proto: onnx.ModelProto, others: Sequence[onnx.FunctionProto]) -> onnx.ModelProto:
    """The model with its functions replaced by their bodies, of which onnx converts those of the ``others``."""

    def inline() -> onnx.ModelProto:
        # Conversion asks for the types of what a function is called with.
        return onnx.inliner.inline_local_functions(onnx.shape_inference.infer_shapes(proto), convert_version=True)

    try:
        return within_limits(inline, proto)
    except RuntimeError as error:
        version = opsets(proto)[""]
        listed = "\n".join(f"  {_told_of(function, '', version)}" for function in others)
        raise UnsupportedModelError(
            f"The model is of ONNX opset {version}, and onnx cannot convert functions of another ({told(error)}):\n"
            f"{listed}\nExport the model and its functions for one opset."
        ) from error


def _bring_to(function: onnx.FunctionProto, versions: dict[str, int]) -> bool:
    """Have a function import ``versions`` where it means the same in them; whether it does."""
    imports = _imports(function)
    for domain, version in imports.items():
        if not _changed(_nodes(function), domain, version, versions[domain]):
            imports[domain] = versions[domain]
        elif domain or version < OLDEST_OPSET:
            raise UnsupportedModelError(
                f"{_told_of(function, domain, versions[domain])}. It cannot be converted: export the model and its "
                f"functions for one version{'' if domain else f' of at least {OLDEST_OPSET}'}."
            )
    del function.opset_import[:]
    function.opset_import.extend(onnx.helper.make_opsetid(domain, version) for domain, version in imports.items())
    return "" not in imports or imports[""] == versions[""]


def _told_of(function: onnx.FunctionProto, domain: str, version: int) -> str:
    """What of a function changed from its version of a domain's operators to the model's."""
    own = _imports(function)[domain]
    changed = ", ".join(describe(node) for node in _changed(_nodes(function), domain, own, version))
    return (
        f"{_described(function)} is written for version {own} of the operators of {short(domain or 'ai.onnx')}, and "
        f"the model for {version}, in which these are others: {changed}"
    )


def _check_version(function: onnx.FunctionProto, domain: str, version: int) -> None:
    newest = onnx.defs.onnx_opset_version()
    if not domain and not 1 <= version <= newest:
        raise UnsupportedModelError(
            f"{_described(function)} is written for ONNX opset {version}, and the installed onnx {onnx.__version__} "
            f"knows opsets from 1 up to {newest}; export the model with one of these, or install a newer onnx."
        )


def _imports(function: onnx.FunctionProto) -> dict[str, int]:
    return {plain_domain(entry.domain): entry.version for entry in function.opset_import}


def _nodes(function: onnx.FunctionProto) -> Iterator[onnx.NodeProto]:
    return nodes_of(onnx.GraphProto(node=function.node))


def _changed(nodes: Iterable[onnx.NodeProto], domain: str, version: int, other: int) -> list[onnx.NodeProto]:
    """The nodes of a domain that mean something else in the ``other`` version, as far as onnx knows their operators."""
    own = (node for node in nodes if plain_domain(node.domain) == domain)
    return [node for node in own if _since(node.op_type, domain, version) != _since(node.op_type, domain, other)]


def _since(operator: str, domain: str, version: int) -> int | None:
    """The version in which an operator became what it is in ``version``; ``None`` where there is none such."""
    try:
        return int(onnx.defs.get_schema(operator, version, domain).since_version)
    except onnx.defs.SchemaError:
        return None


def _described(function: onnx.FunctionProto) -> str:
    return f"The function {short('.'.join(filter(None, (function.domain, function.name))))} of the model"
