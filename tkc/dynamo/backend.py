"""What ``torch.compile(model, backend="tkc")`` calls: AOTAutograd, with TKC to compile the graphs that it makes."""

from __future__ import annotations

import functools
import logging
import operator
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import fx
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.convert_frame import compile_lock
from torch._dynamo.exc import ShortenTraceback
from torch._functorch.partitioners import min_cut_rematerialization_partition, must_recompute
from torch._guards import TracingContext
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils.checkpoint import CheckpointPolicy

from tkc.api import compile as compile_model
from tkc.dynamo.graph import CompiledGraph, boxed
from tkc.dynamo.options import Settings, settings_of
from tkc.dynamo.program import GraphProgram, graph_program
from tkc.dynamo.store import stored
from tkc.errors import UnsupportedModelError, UsageError
from tkc.frontend.torch.callable_operators import is_random
from tkc.runtime.executable import Executable
from tkc.targets import resolve_target

_LOG = logging.getLogger(__name__)


class OptionError(UsageError, ShortenTraceback):
    """A :class:`~tkc.UsageError` that PyTorch hands on as it is, and not as a failure of the backend."""


class RefusedGraphError(UnsupportedModelError, ShortenTraceback):
    """An :class:`~tkc.UnsupportedModelError` that PyTorch hands on as it is, and not as a failure of the backend."""


def tkc(
    module: fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    """Compile a graph that ``torch.compile`` captured; ``options`` are those of :func:`tkc.compile`.

    Its forward and, where gradients are needed, its backward graph are compiled for the device of their tensors.
    Parameters are inputs of both, so that a later optimizer step, ``load_state_dict`` or ``.to`` is seen. A graph that
    TKC refuses runs in PyTorch, and a warning names the reason; with ``options={"fallback": False}`` it raises.

    Raises :class:`~tkc.UsageError` for an option or a mode that does not exist.
    """
    try:
        settings = settings_of(options, mode)
    except UsageError as error:
        raise OptionError(str(error), first_useful_frame=None) from None
    compilers = {
        f"{kind}_compiler": functools.partial(compiled_graph, settings=settings, kind=kind)
        for kind in ("fw", "bw", "inference")
    }
    aot = aot_autograd(partition_fn=_partition, keep_inference_input_mutations=True, **compilers)
    return aot(module, example_inputs)


def _partition(joint: fx.GraphModule, *arguments: Any, **options: Any) -> tuple[fx.GraphModule, fx.GraphModule]:
    """The forward and the backward graph of both in one.

    What random operators drew is kept for the backward graph also where a checkpoint would have them draw anew: they
    would need the generator's state of the forward pass there.
    """
    for node in joint.graph.nodes:
        if is_random(node):
            for kept in (node, *(user for user in node.users if user.target is operator.getitem)):
                if must_recompute(kept):
                    kept.meta["recompute"] = CheckpointPolicy.MUST_SAVE
    return min_cut_rematerialization_partition(joint, *arguments, **options)


def compiled_graph(
    module: fx.GraphModule, example_inputs: Sequence[Any], *, settings: Settings, kind: str
) -> Callable[[list[Any]], Sequence[Any]]:
    """The compiled form of one graph, or the graph itself where TKC refuses it and ``settings`` let it run in PyTorch.

    Raises :class:`~tkc.UnsupportedModelError` where they do not.
    """
    try:
        # The compiler computes with real tensors, in its own dtypes. A backward graph is compiled when it first runs,
        # which another thread may be tracing beside: what PyTorch's tracer notes is the process's, not the thread's.
        with _disable_current_modes(), torch.no_grad(), torch._C._DisableAutocast(), compile_lock:
            # Where inputs of a forward graph share memory, AOTAutograd has it write into one base of them. What was
            # saved for a backward graph may be views of one another.
            graph = graph_program(module, in_place=kind != "bw")
            executable = _executable(graph, settings)
            if executable is not None and kind != "bw":
                executable.static_inputs = _static_inputs(graph)
            compiled = CompiledGraph(graph, executable)
    except UnsupportedModelError as error:
        if not settings.fallback:
            raise RefusedGraphError(str(error), first_useful_frame=None) from error
        _LOG.warning("a %s graph runs in PyTorch, and is not compiled: %s", _KINDS[kind], error)
        return boxed(fx.Interpreter(module).boxed_run)
    carries = any(given.offset is not None for given in graph.inputs)
    return boxed(_checking(compiled, module, settings) if carries else compiled)


def _checking(
    compiled: CompiledGraph, module: fx.GraphModule, settings: Settings
) -> Callable[[list[Any]], Sequence[Any]]:
    """``compiled``, of which calls that it refuses run in PyTorch, and the first of them warns."""
    warned = False

    def run(arguments: list[Any]) -> Sequence[Any]:
        nonlocal warned
        if (reason := compiled.refused(arguments)) is None:
            return compiled(arguments)
        if not settings.fallback:
            raise UnsupportedModelError(reason)
        if not warned:
            warned = True
            _LOG.warning("a call of a graph runs in PyTorch: %s", reason)
        return fx.Interpreter(module).boxed_run(arguments)  # type: ignore[no-any-return]  # of a graph of AOTAutograd

    return run


_KINDS = {"fw": "forward", "bw": "backward", "inference": "forward"}


def _executable(graph: GraphProgram, settings: Settings) -> Executable | None:
    program = graph.program
    if program is None:
        return None
    with _on(graph.device):
        target = resolve_target(settings.options.get("target", graph.device.type))
        if target.is_cuda != (graph.device.type == "cuda"):
            raise OptionError(f"the target {target} cannot run a graph on {graph.device}", first_useful_frame=None)
        options = {**settings.options, "target": target}
        executable = stored(program, target, options, lambda: compile_model(program, **options))
    executable.cuda_graphs = executable.cuda_graphs and settings.cuda_graphs
    return executable


def _static_inputs(graph: GraphProgram) -> tuple[int, ...]:
    """The inputs of the program that are the same memory in each call, as AOTAutograd knows of weights and buffers."""
    context = TracingContext.try_get()
    metadata = None if context is None else context.fw_metadata
    static = set(getattr(metadata, "static_input_indices", None) or ())
    return tuple(i for i, given in enumerate(graph.inputs) if given.offset is None and given.position in static)


def _on(device: torch.device) -> AbstractContextManager[Any]:
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()
