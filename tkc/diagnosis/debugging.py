"""Compares a compiled model with its source node by node, and names the first that differs."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from tkc.diagnosis.comparison import Comparison, NodeError
from tkc.errors import UsageError

if TYPE_CHECKING:
    from torch.export import ExportedProgram
    from tvm import IRModule

    from tkc.compiler.options import Kernels
    from tkc.frontend.model import ImportedModel
    from tkc.runtime.executable import Executable
    from tkc.runtime.signature import Signature

Compile = Callable[..., "Executable"]
""":func:`tkc.compile`, handed in by those who stand above it."""

_ROUNDING = {torch.float64: 2.0**-52, torch.float32: 2.0**-23, torch.bfloat16: 2.0**-7, torch.float16: 2.0**-10}
_STEPS = 64.0
"""How many roundings of the largest magnitude a node may be off by what its own operations, and those before, add."""


@dataclass(frozen=True)
class _Source:
    """The source model run once: ``inputs`` of the call, flattened, and the ``values`` of its nodes by name.

    ``own_errors`` are the deviations of its own arithmetic from float64, where these could be computed.
    """

    model: Any
    inputs: list[torch.Tensor]
    outputs: list[torch.Tensor]
    values: Mapping[str, torch.Tensor]
    own_errors: Mapping[str, float]


def compared(
    model: Any,
    example_args: Sequence[Any],
    example_kwargs: Mapping[str, Any] | None,
    *,
    dynamic_shapes: Any,
    kernels: Kernels,
    sizes: Mapping[str, int],
    seed: int,
    compile: Compile,
) -> Comparison:
    """What :func:`tkc.debug` returns, whose arguments these are; ``compile`` is :func:`tkc.compile`."""
    from tkc.frontend import import_model

    source = _run_source(model, tuple(example_args), dict(example_kwargs or {}), dynamic_shapes, sizes, seed)
    imported = import_model(source.model, fallback=True)
    executable = compile(source.model, kernels=kernels, copy_weights=True)
    results = executable.run_flat([tensor.clone() for tensor in source.inputs])
    outputs = tuple(
        _compared(spec.name, expected, found, source.own_errors.get(spec.name, 0.0), steps=_STEPS * _STEPS)
        for spec, expected, found in zip(imported.signature.outputs, source.outputs, results, strict=True)
    )
    nodes = tuple(_each_node(imported, source, compile))
    together = None
    if any(row.differs for row in outputs) and not any(row.differs for row in nodes):
        together = _first_together(imported, source, kernels, compile)
    return Comparison(nodes, outputs, together)


def _compared(
    node: str, expected: torch.Tensor, found: torch.Tensor, own_error: float = 0.0, steps: float = _STEPS
) -> NodeError:
    bound = max(_ROUNDING.get(expected.dtype, 0.0) * steps, 8 * own_error) if expected.dtype in _ROUNDING else 0.0
    return NodeError(node, _deviation(expected, found), bound)


def _deviation(expected: torch.Tensor, found: torch.Tensor) -> float:
    """The largest deviation relative to the largest finite value; infinite where NaN or infinity are elsewhere."""
    if expected.shape != found.shape or expected.dtype != found.dtype:
        return float("inf")
    if not expected.numel():
        return 0.0
    if expected.dtype not in _ROUNDING:
        return 0.0 if torch.equal(expected, found) else float("inf")
    expected, found = expected.double(), found.double()
    finite = expected.isfinite()
    same = torch.equal(finite, found.isfinite()) and torch.equal(expected.isnan(), found.isnan())
    if not same or not torch.equal(expected[expected.isinf()], found[expected.isinf()]):
        return float("inf")
    if not finite.any():
        return 0.0
    scale = expected[finite].abs().max().clamp_min(torch.finfo(torch.float32).tiny)
    return float((expected[finite] - found[finite]).abs().max() / scale)


def _run_source(
    model: Any, args: tuple[Any, ...], kwargs: dict[str, Any], dynamic_shapes: Any, sizes: Mapping[str, int], seed: int
) -> _Source:
    if isinstance(model, torch.nn.Module):
        from tkc.frontend.torch.exporting import exported

        program = exported(model, args, kwargs, dynamic_shapes)
        return _run_program(program, (args, kwargs), sizes, seed)
    if isinstance(model, torch.export.ExportedProgram):
        return _run_program(model, model.example_inputs, sizes, seed)
    if Path(str(model)).suffix == ".pt2":
        from tkc.frontend.torch.files import load_program

        program = load_program(model)
        return _run_program(program, program.example_inputs, sizes, seed)
    return _run_onnx(model, args, kwargs, sizes, seed)


def _run_program(program: ExportedProgram, example: Any, sizes: Mapping[str, int], seed: int) -> _Source:
    from tkc.frontend.torch.signature import exported_signature
    from tkc.frontend.torch.simplification import simplified
    from tkc.runtime.random_inputs import random_inputs

    program = simplified(program)
    signature = exported_signature(program)
    if signature.updated_inputs:
        raise UsageError("the model updates its inputs, and its nodes cannot be compared one by one")
    leaves = [leaf for leaf in torch.utils._pytree.tree_leaves(example) if isinstance(leaf, torch.Tensor)]
    fits = [tuple(leaf.shape) for leaf in leaves if leaf.device.type == "cpu"]
    with_examples = len(fits) == len(signature.inputs) and not sizes
    inputs = leaves if with_examples else random_inputs(signature, sizes, seed)
    given = iter(inputs)
    interpreter = _Recording(program.graph_module)
    placeholders = []
    for spec in program.graph_signature.input_specs:
        if spec.kind == torch.export.graph_signature.InputKind.USER_INPUT:
            is_tensor = isinstance(spec.arg, torch.export.graph_signature.TensorArgument)
            placeholders.append(next(given).clone() if is_tensor else getattr(spec.arg, "value", None))
        else:
            held = program.constants if spec.target in program.constants else program.state_dict
            placeholders.append(held[str(spec.target)].detach().clone())
    with torch.no_grad():
        interpreter.run(*placeholders)
    values = interpreter.values
    outputs = [
        values[spec.name]
        if spec.name in values
        else torch.tensor(interpreter.numbers[spec.name], dtype=getattr(torch, spec.held))
        for spec in signature.outputs
    ]
    return _Source(program, inputs, outputs, values, interpreter.own_errors)


class _Recording(torch.fx.Interpreter):
    """Runs a graph, keeps the value of every node, and computes each in float64, too."""

    def __init__(self, module: torch.fx.GraphModule) -> None:
        super().__init__(module, garbage_collect_values=False)
        self.values: dict[str, torch.Tensor] = {}
        self.numbers: dict[str, bool | int | float] = {}
        self.own_errors: dict[str, float] = {}

    def run_node(self, n: torch.fx.Node) -> Any:
        """Compute ``n``."""
        result = super().run_node(n)
        if isinstance(result, bool | int | float):
            self.numbers[n.name] = result
        if isinstance(result, torch.Tensor):
            self.values[n.name] = result.detach().clone()
            if n.op == "call_function" and result.dtype in (torch.float32, torch.bfloat16, torch.float16):
                args, kwargs = self.fetch_args_kwargs_from_env(n)
                wide = torch.utils._pytree.tree_map_only(torch.Tensor, _wide, (args, kwargs))
                try:
                    exact = n.target(*wide[0], **wide[1])  # type: ignore[operator]  # a function, by its op
                except Exception:  # an operator that has no float64, or wants equal dtypes
                    return result
                if isinstance(exact, torch.Tensor) and exact.dtype == torch.float64:
                    error = _deviation(exact, result.double())
                    self.own_errors[n.name] = error if error < 1 else 0.0
        return result


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.double() if tensor.is_floating_point() else tensor


def _run_onnx(
    model: Any, args: tuple[Any, ...], kwargs: dict[str, Any], sizes: Mapping[str, int], seed: int
) -> _Source:
    import numpy as np
    from onnx.reference import ReferenceEvaluator

    from tkc.frontend import import_model
    from tkc.runtime.random_inputs import random_inputs

    signature = import_model(model).signature
    if signature.strings is not None:
        raise UsageError(
            "the model computes with strings, whose codes cannot be compared node by node; compare its outputs, as tkc "
            "run --compare does"
        )
    given = _given_inputs(signature, args, kwargs)
    if given and sizes:
        raise UsageError("sizes are for random inputs; those that are given have sizes of their own")
    inputs = given or random_inputs(signature, sizes, seed)
    evaluator = ReferenceEvaluator(model if hasattr(model, "graph") else str(model))
    feeds = {spec.name: tensor.numpy() for spec, tensor in zip(signature.inputs, inputs, strict=True)}
    try:
        with np.errstate(all="ignore"):
            found: dict[str, Any] = evaluator.run(None, feeds, intermediate=True)  # type: ignore[assignment]  # a dict: intermediate
    except Exception as error:  # whatever NumPy, and ONNX's implementation of an operator, raise
        shapes = ", ".join(
            f"{spec.name} {list(tensor.shape)}" for spec, tensor in zip(signature.inputs, inputs, strict=True)
        )
        raise UsageError(
            f"ONNX's reference evaluator cannot run the model with {shapes}: {type(error).__name__}: {error}. Give "
            "inputs that it takes, or the sizes of random ones (--input, --size)"
        ) from error
    values = {
        name: torch.from_numpy(np.array(v)) for name, v in found.items() if isinstance(v, np.ndarray | np.generic)
    }
    return _Source(model, inputs, [values[name] for name in evaluator.output_names], values, {})


def _given_inputs(signature: Signature, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[torch.Tensor]:
    """The inputs of an ONNX model, given in its order or by name; none if none are."""
    if not args and not kwargs:
        return []
    names = [spec.name for spec in signature.inputs]
    named = dict(zip(names, args, strict=False)) | kwargs
    if len(args) + len(kwargs) != len(names) or named.keys() != set(names):
        raise UsageError(f"the model takes {', '.join(names)}; give each of them once, in this order or by name")
    return [torch.as_tensor(named[name]).contiguous() for name in names]


def _each_node(imported: ImportedModel, source: _Source, compile: Compile) -> list[NodeError]:
    """Every node, computed from the values that the source computed before it."""
    from tkc.diagnosis.segments import isolated

    names = _names(imported, source)
    module, read, computed = isolated(imported.module, list(names))
    given = [source.values[names[variable]] for variable in read]
    arguments = [*source.inputs, *imported.parameters.values(), *given]
    results = _run(imported, module, len(computed), arguments, {}, "none", compile)
    return [
        _node_error(imported, source, variable, names[variable], found)
        for variable, found in zip(computed, results, strict=True)
    ]


def _first_together(imported: ImportedModel, source: _Source, kernels: Kernels, compile: Compile) -> NodeError | None:
    """The first node with which the model up to it differs, each compiled as the whole model is."""
    from tkc.diagnosis.segments import up_to, whole

    names = _names(imported, source)
    bound = [v.name_hint for v in whole(imported.module).variables if v.name_hint in names]
    rows: dict[str, NodeError] = {}

    def differs(variable: str) -> bool:
        weights = dict(imported.parameters)
        (found,) = _run(imported, up_to(imported.module, variable), 1, source.inputs, weights, kernels, compile)
        # What nodes before it round differently is in its result.
        rows[variable] = _node_error(imported, source, variable, names[variable], found, steps=_STEPS * _STEPS)
        return rows[variable].differs

    first = bisect.bisect_left(bound, True, key=differs)
    return rows.get(bound[first]) if first < len(bound) else None


def _names(imported: ImportedModel, source: _Source) -> dict[str, str]:
    """The source's values by the variables that hold them."""
    names: dict[str, str] = {}
    for name, variable in imported.values.items():
        if name in source.values:
            names.setdefault(variable, name)
    return names


def _node_error(
    imported: ImportedModel, source: _Source, variable: str, name: str, found: torch.Tensor, steps: float = _STEPS
) -> NodeError:
    node = f"{name}: {imported.sources.get(variable, '')}"
    return _compared(node, source.values[name], found, source.own_errors.get(name, 0.0), steps)


def _run(
    imported: ImportedModel,
    module: IRModule,
    outputs: int,
    arguments: Sequence[torch.Tensor],
    parameters: dict[str, torch.Tensor],
    kernels: Kernels,
    compile: Compile,
) -> list[torch.Tensor]:
    """What ``module`` computes of ``arguments`` and its ``parameters``, compiled as a model is."""
    from tkc.frontend.model import ImportedModel
    from tkc.runtime.input_checks import aligned
    from tkc.runtime.signature import Signature, TensorSpec

    # Nothing is checked: the arguments are those of a call that was right.
    signature = Signature((), tuple(TensorSpec(f"value_{i}", (), "float32") for i in range(outputs)), {})
    part = ImportedModel(module, parameters, signature, sources=imported.sources)
    executable = compile(part, kernels=kernels)
    return executable._running.load()([aligned(argument.detach()) for argument in arguments])
