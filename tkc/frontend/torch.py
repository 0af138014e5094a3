"""PyTorch models as Relax: export, then one walk over the exported graph."""

from __future__ import annotations

import operator
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import fx, nn
from torch.export import ExportedProgram
from torch.export.graph_signature import ConstantArgument, InputKind, InputSpec, OutputKind, TensorArgument
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
from torch.utils import _pytree as pytree
from tvm import relax, tirx

from tkc.errors import UnsupportedModelError, UsageError
from tkc.frontend.converters import CHECKS, CONVERTERS, KEPT
from tkc.frontend.converters.emitter import Emitter, dtype_name, source_of
from tkc.frontend.converters.symbols import Symbols
from tkc.frontend.dimensions import (
    DimensionNames,
    Dimensions,
    dimension_names,
    input_dimensions,
    named_shape,
)
from tkc.frontend.model import Constant, ImportedModel, Signature, TensorSpec
from tkc.frontend.mutation import functional_name, is_in_place, is_unobserved


def import_torch(
    model: nn.Module | ExportedProgram | str | PathLike[str],
    example_args: Sequence[Any] = (),
    example_kwargs: Mapping[str, Any] | None = None,
    dynamic_shapes: Any = None,
) -> ImportedModel:
    """The Relax module, weights and signature of a PyTorch model.

    ``model`` is a module, which is exported with the examples and ``dynamic_shapes`` as ``torch.export.export`` takes
    them (and in the mode, training or evaluation, that it is in); or an exported program, or the path of a saved one
    (``.pt2``), which are complete in themselves. Parameters are the model's own tensors, not copies; tied ones come
    once, and unused ones not at all.

    Raises:
        UsageError: examples given with an exported program, a missing file, or a model that is none of these.
        UnsupportedModelError: operators without a converter (all are listed), state that the model changes,
            a file that is no exported program, or a model that ``torch.export`` cannot export.
    """
    if isinstance(model, nn.Module):
        program = _export(model, tuple(example_args), dict(example_kwargs or {}), dynamic_shapes)
        names = dimension_names(model, tuple(example_args), dict(example_kwargs or {}), dynamic_shapes)
    else:
        if example_args or example_kwargs or dynamic_shapes is not None:
            raise UsageError(
                "Example arguments and dynamic shapes were given with a program that is exported already. "
                "Leave them out, or pass the module itself."
            )
        program, names = _program(model), {}
    return _import(_simplified(program), names)


def _export(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], dynamic_shapes: Any) -> ExportedProgram:
    try:
        # Without gradients, so that a model's own torch.no_grad() blocks do not become separate subgraphs.
        with torch.no_grad():
            return torch.export.export(model, args, kwargs, dynamic_shapes=dynamic_shapes, strict=False)
    except Exception as error:
        raise UnsupportedModelError(
            f"torch.export cannot export {type(model).__name__}: {error}\n"
            "The example arguments must fit its forward, and its control flow must not depend on data "
            "(see the PyTorch documentation of torch.export)."
        ) from error


def _program(model: ExportedProgram | str | PathLike[str]) -> ExportedProgram:
    if isinstance(model, ExportedProgram):
        return model
    if not isinstance(model, str | PathLike):
        raise UsageError(
            f"A PyTorch model is a Module, an ExportedProgram or the path of a .pt2 file, not {type(model)}."
        )
    path = Path(model)
    if not path.is_file():
        raise UsageError(f"There is no file {path}.")
    try:
        return torch.export.load(path)
    except Exception as error:
        raise UnsupportedModelError(
            f"{path} is not a program that this PyTorch ({torch.__version__}) can load: {error}\n"
            "Write it with torch.export.save, by this version or an older one; if the model uses custom operators, "
            "import the package that defines them first."
        ) from error


def _simplified(program: ExportedProgram) -> ExportedProgram:
    """The program over operators that have converters, in functional form.

    Mostly it is that already. Where it is not, PyTorch traces it anew, which takes longer than exporting it, and
    replaces what it can by its core operators.
    """
    if not _unknown_operators(program.graph):
        return program
    table = torch.export.default_decompositions()
    for op in [op for op in table if op.name().partition(".")[0] in KEPT]:
        table.pop(op)
    with torch.no_grad():
        return program.run_decompositions(table)


def exported_signature(program: ExportedProgram, names: DimensionNames | None = None) -> Signature:
    """How a compiled ``program`` is called; ``names`` are those that the user gave its dimensions."""
    graph_signature = program.graph_signature
    dimensions = _dimensions(program, names or {})
    specs = _user_inputs(program)
    outputs = [spec for spec in graph_signature.output_specs if spec.kind == OutputKind.USER_OUTPUT]
    values = _values(program)
    return Signature(
        leaves=tuple(
            Constant(spec.arg.name, spec.arg.value)
            if isinstance(spec.arg, ConstantArgument)
            else TensorSpec(spec.arg.name, shape, dtype_name(values[spec.arg.name].dtype))
            for spec, shape in zip(specs, dimensions.shapes, strict=True)
        ),
        outputs=tuple(
            TensorSpec(name, named_shape(values[name].shape, dimensions), dtype_name(values[name].dtype))
            for name in (spec.arg.name for spec in outputs if isinstance(spec.arg, TensorArgument))
        ),
        sizes=dimensions.sizes,
        in_spec=pytree.treespec_dumps(program.call_spec.in_spec),
        out_spec=_written(program.call_spec.out_spec),
        constant_outputs=tuple(
            (position, Constant(spec.arg.name, spec.arg.value))
            for position, spec in enumerate(outputs)
            if isinstance(spec.arg, ConstantArgument)
        ),
    )


def _written(spec: pytree.TreeSpec) -> str | None:
    """The spec as text; ``None`` where it names a class that PyTorch has no written form of."""
    try:
        return pytree.treespec_dumps(spec)
    except NotImplementedError:
        return None


def _values(program: ExportedProgram) -> dict[str, Any]:
    """The (fake) value of each node."""
    return {node.name: node.meta.get("val") for node in program.graph.nodes}


def _user_inputs(program: ExportedProgram) -> list[InputSpec]:
    return [spec for spec in program.graph_signature.input_specs if spec.kind == InputKind.USER_INPUT]


def _dimensions(program: ExportedProgram, names: DimensionNames) -> Dimensions:
    values = _values(program)
    inputs = [
        (spec.arg.name, values[spec.arg.name] if isinstance(spec.arg, TensorArgument) else None)
        for spec in _user_inputs(program)
    ]
    return input_dimensions(inputs, names, program.range_constraints)


def _import(program: ExportedProgram, names: DimensionNames) -> ImportedModel:
    _check_interface(program)
    _check_operators(program.graph)
    signature = exported_signature(program, names)
    sizes = {name: tirx.SizeVar(name, "int64") for name in signature.sizes}
    solved = _dimensions(program, names).solved().items()
    symbols = Symbols({symbol: (sizes[name] - offset) // factor for symbol, (name, offset, factor) in solved})
    inputs = {
        spec.name: relax.Var(
            spec.name, relax.TensorStructInfo([sizes.get(size, size) for size in spec.shape], spec.dtype)
        )
        for spec in signature.inputs
    }
    weights = _weights(program)
    variables = {name: relax.Var(name, _struct_info(tensor)) for name, tensor in weights.parameters.items()}
    builder = relax.BlockBuilder()
    emitter = Emitter(builder, symbols)
    with builder.function("main", [*inputs.values(), *variables.values()]):
        with builder.dataflow():
            bound = inputs | {node: variables[name] for node, name in weights.names.items()} | weights.scalars
            result = builder.emit_output(relax.Tuple(_translate(program, emitter, bound)))
        builder.emit_func_output(result)
    return ImportedModel(builder.finalize(), weights.parameters, signature, program.call_spec.out_spec)


def _translate(program: ExportedProgram, emitter: Emitter, bound: Mapping[str, relax.Expr]) -> list[relax.Expr]:
    """Emit every node; the values that the program returns."""
    for node in program.graph.nodes:
        if node.op == "placeholder" and node.name in bound:
            emitter.bind(node, bound[node.name])
        elif node.op == "call_function" and str(node.target) not in CHECKS:
            _emit(emitter, node)
    (returned,) = program.graph.output_node().args
    outputs = zip(returned, program.graph_signature.output_specs, strict=True)
    return [emitter.env[node] for node, spec in outputs if isinstance(spec.arg, TensorArgument)]


def _emit(emitter: Emitter, node: fx.Node) -> None:
    value = node.meta.get("val")
    if node.target is operator.getitem:
        source, position = node.args
        emitter.env[node] = emitter.env[source][position]
    elif isinstance(value, torch.SymInt | torch.SymFloat):
        emitter.env[node] = emitter.symbols.size(value)
    elif isinstance(value, int | float | torch.SymBool):
        emitter.env[node] = value
    else:
        emitter.convert(node, CONVERTERS[functional_name(node)])
        if is_in_place(node):
            emitter.env[node.args[0]] = emitter.env[node]


@dataclass(frozen=True)
class _Weights:
    """``parameters`` by name, each tensor once; ``names`` gives the parameter of each placeholder, and ``scalars`` the
    constant of those that hold a single number."""

    parameters: dict[str, torch.Tensor]
    names: dict[str, str]
    scalars: dict[str, relax.Constant]


def _weights(program: ExportedProgram) -> _Weights:
    weights = _Weights({}, {}, {})
    seen: dict[Hashable, str] = {}
    used = {node.name for node in program.graph.nodes if node.op == "placeholder" and node.users}
    returned = {spec.arg.name for spec in program.graph_signature.output_specs}
    for spec in program.graph_signature.input_specs:
        if spec.kind == InputKind.USER_INPUT or spec.arg.name not in used | returned:
            continue
        tensor = _tensor(program, spec)
        if spec.kind != InputKind.PARAMETER and tensor.ndim == 0:
            weights.scalars[spec.arg.name] = relax.const(tensor.item(), dtype_name(tensor.dtype))
            continue
        name = seen.setdefault(_identity(tensor), spec.target)
        weights.parameters.setdefault(name, tensor)
        weights.names[spec.arg.name] = name
    return weights


def _tensor(program: ExportedProgram, spec: InputSpec) -> torch.Tensor:
    found = program.constants if spec.target in program.constants else program.state_dict
    tensor = found[spec.target].detach()
    return tensor.to_dense() if tensor.layout != torch.strided else tensor


def _identity(tensor: torch.Tensor) -> Hashable:
    """Equal for tensors that are the same memory seen in the same way."""
    if tensor.device.type == "meta" or tensor.numel() == 0:
        return id(tensor)
    return tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride()


def _struct_info(tensor: torch.Tensor) -> relax.TensorStructInfo:
    return relax.TensorStructInfo(tensor.shape, dtype_name(tensor.dtype))


_STATELESS = frozenset({InputKind.USER_INPUT, InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR})


def _check_interface(program: ExportedProgram) -> None:
    """Raises UnsupportedModelError for what a compiled model cannot take, keep or return."""
    graph_signature = program.graph_signature
    for spec in graph_signature.input_specs:
        if spec.kind not in _STATELESS or not isinstance(spec.arg, TensorArgument | ConstantArgument):
            raise UnsupportedModelError(
                f"Input {spec.arg.name!r} is a {type(spec.arg).__name__}; only tensors and constants can be inputs. "
                "Pass a number as a tensor, or leave it static."
            )
    for spec in graph_signature.output_specs:
        if spec.kind != OutputKind.USER_OUTPUT:
            raise UnsupportedModelError(
                f"The model changes {spec.target!r} ({spec.kind.name.lower()}) when it is called, and a compiled model "
                "has no state. Return the new value instead; for normalization layers, call eval() on the model."
            )
        if not isinstance(spec.arg, TensorArgument | ConstantArgument):
            raise UnsupportedModelError(
                f"Output {spec.arg.name!r} is computed from sizes; only tensors and constants can be returned. "
                "Return it as a tensor."
            )


def _check_operators(graph: fx.Graph) -> None:
    """Raises UnsupportedModelError that lists every operator without a converter."""
    unknown: dict[str, list[str]] = {}
    for node in _unknown_operators(graph):
        unknown.setdefault(str(node.target), []).append(source_of(node))
    if unknown:
        lines = [f"  {name}: {'; '.join(dict.fromkeys(places))}" for name, places in sorted(unknown.items())]
        raise UnsupportedModelError(
            "\n".join(
                [
                    "TKC cannot compile these operators of the model:",
                    *lines,
                    "Write them with other operators, or keep that part outside the compiled model.",
                ]
            )
        )


def _unknown_operators(graph: fx.Graph) -> list[fx.Node]:
    """The nodes that cannot be converted as they are, subgraphs among them."""
    nodes = [node for node in graph.nodes if node.op in ("call_function", "get_attr")]
    return [node for node in nodes if node.op == "get_attr" or not _is_known(node)]


def _is_known(node: fx.Node) -> bool:
    value = node.meta.get("val")
    if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool | int | float):
        return not free_unbacked_symbols(value)
    if str(node.target) in CHECKS or node.target is operator.getitem:
        return True
    return functional_name(node) in CONVERTERS and (not is_in_place(node) or is_unobserved(node))
