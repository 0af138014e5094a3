"""The functions of ``tkc``: their arguments, types, defaults and texts. What they do is imported when they are called.

The command line's options are made from these signatures and docstrings (``tkc/cli/options.py``).
"""

from __future__ import annotations

import difflib
import functools
import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from tkc.errors import UsageError

if TYPE_CHECKING:
    from tkc.builder import BuilderSettings
    from tkc.compiler.options import KernelProgress, Kernels
    from tkc.databases import Database
    from tkc.diagnosis.comparison import Comparison
    from tkc.kernels import Target
    from tkc.runtime.executable import Executable
    from tkc.runtime.report import Report
    from tkc.schedules.tuning.progress import Progress
    from tkc.stages import Observer
    from tkc.tuning.functions import MeasureKernels, TuningResult

P = ParamSpec("P")
R = TypeVar("R")


def _refuses_unknown_options(function: Callable[P, R]) -> Callable[P, R]:
    """``function``, which raises :class:`UsageError` for options it does not have, naming those that were meant."""
    parameters = inspect.signature(function).parameters.values()
    known = [parameter.name for parameter in parameters]
    options = ", ".join(parameter.name for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY)

    @functools.wraps(function)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        words = []
        for name in kwargs:
            if name not in known:
                close = difflib.get_close_matches(name, known, 1)
                words.append(f"{name!r} (did you mean {close[0]!r}?)" if close else repr(name))
        if words:
            raise UsageError(f"tkc.{function.__name__} has no option {', '.join(words)}; its options are {options}")
        return function(*args, **kwargs)

    return checked


def _check_entries(
    model: Any,
    example_args: Sequence[Any],
    example_kwargs: Mapping[str, Any] | None,
    dynamic_shapes: Any,
    constants: Mapping[str, Any] | None,
    entries: Mapping[str, Any] | None,
) -> None:
    """Raise :class:`UsageError` for no model at all, and for what belongs to the model beside ``entries``."""
    if entries is None:
        if model is None:
            raise UsageError("there is no model; give a module, an ExportedProgram, a .pt2 or .onnx path, or entries")
    elif not isinstance(entries, Mapping):
        raise UsageError(f"entries is a {type(entries).__name__}; give a dictionary of entries by name")
    elif example_args or example_kwargs or dynamic_shapes is not None:
        raise UsageError("examples and dynamic_shapes are those of each entry; give them to its tkc.Entry(...)")
    elif constants:
        raise UsageError("constants are bound to one ONNX model; bind them in each entry's file, or compile it alone")


def _held(entry: Any) -> Any:
    """What has the tensors of an entry."""
    from tkc.frontend.entries import Entry

    return (entry.model, entry.example_args, entry.example_kwargs) if isinstance(entry, Entry) else entry


@_refuses_unknown_options
def compile(
    model: Any = None,
    example_args: Sequence[Any] = (),
    example_kwargs: Mapping[str, Any] | None = None,
    *,
    entries: Mapping[str, Any] | None = None,
    target: str | Target = "cpu",
    dynamic_shapes: Any = None,
    kernels: Kernels = "auto",
    fallback: bool = True,
    database: Database = None,
    batch_invariant: bool = False,
    checks: bool = False,
    copy_weights: bool = False,
    exchangeable_weights: bool = False,
    max_concurrency: int | None = None,
    size_names: Mapping[str, str] | None = None,
    constants: Mapping[str, Any] | None = None,
    dump: str | Path | None = None,
    verify: bool | None = None,
    observer: Observer | None = None,
    kernel_progress: KernelProgress | None = None,
    builder: BuilderSettings | None = None,
) -> Executable:
    """Compile a whole model into one executable.

    Args:
        model: An ``nn.Module``, an ``ExportedProgram``, a ``.pt2`` or ``.onnx`` path, or an ONNX ``ModelProto``.
        example_args: Positional example inputs of an ``nn.Module``, as ``torch.export.export`` takes them.
        example_kwargs: Its named example inputs. Of an ONNX model, examples are needed of inputs that are sequences or
            optional values, or have no shape: they say how many tensors a sequence has, whether an optional value is
            there, and how many dimensions each has. Sizes stay symbolic.
        entries: Several functions by name, over one set of weights and one state, which make a :class:`Program`.
            ``{"prefill": tkc.Entry(...), "decode": tkc.Entry(...)}`` says with what examples the model is exported for
            each; an entry may also be an ``ExportedProgram``, or a ``.pt2`` or ``.onnx`` path, and then there need be
            no ``model``. What one entry updates, all find changed.
        target: ``cpu``, ``cuda`` (the GPU that the model's tensors are on, or the current one) or ``cuda:ARCH``
            (``sm_80``, ``sm_86``, ``sm_89``, ``sm_90a``, ``sm_120``; no GPU needed). For ``sm_87``, ``sm_88``,
            ``sm_100a``, ``sm_103a``, ``sm_110a`` and ``sm_121``, which nothing was measured on, kernels use 8.0's
            instructions and the least shared memory of all; the report says so.
        dynamic_shapes: Which sizes stay symbolic, as ``torch.export.export`` takes it.
        kernels: ``"auto"`` uses a kernel where one exists and pays, ``"all"`` wherever one exists, ``"none"`` nowhere.
            With ``"auto"``, PyTorch's libraries are called, too, where they are faster: for sorts, for convolutions and
            others on the CPU, and for matmuls on a GPU where a tuning record says so. The report names each.
        fallback: Call PyTorch's own operator in place where TKC has no converter of it, or refuses how it is used. The
            report names each. What is around it is compiled as ever. ``False`` refuses such a model instead.
        database: A folder of tuning records to schedule from, in place of your own (``$TKC_DATABASE_DIR``) and before
            those that come with tkc. ``False`` uses neither.
        batch_invariant: Give a row (a token, a sequence) the same bits whatever else is in the batch, and however much
            of it. Kernels whose order of summation changes with the size of the batch are left out, and generated
            code is scheduled without tuning records, which makes some sizes slower. What a model itself computes over
            the batch still depends on it, and so does a row on how far its own inputs are padded.
        checks: Check also the indices that the model computes, and have a call on a GPU wait for its checks. Generated
            code brings every index into range; where PyTorch and ONNX would raise, results are then not what the model
            means. Without this, indices that are handed in are checked: on the CPU before a call runs, on a GPU by the
            model itself, for which the next call or :meth:`Executable.check` raises; on the CPU also those that the
            model computes and writes rows by (``index_copy``), as into a cache that is too short. Kernels whose
            subgraph computes indices may not be used with it. Zeros that integers are divided by are found with and
            without it: on the CPU the call raises, on a GPU the next one.
        copy_weights: Give the executable weights of its own. Otherwise a CPU executable shares the model's memory, and
            changes when the model is trained further. On a GPU some weights are copies in any case: those that a kernel
            reads side by side, and those of convolutions, whose channels have to be last.
        exchangeable_weights: Let :meth:`Executable.load_weights` exchange also what is otherwise a constant of the
            code: initializers of an ONNX model that take less than 1 KiB, if they are several floats, and buffers of a
            PyTorch model that are a single float; and weights of bytes that decide in what type products are summed.
            Such code may take longer.
        max_concurrency: How many calls run at once (:attr:`Executable.max_concurrency`); ``None`` is one for each core,
            at least four.
        size_names: Names for symbolic sizes of a saved program, which has lost them. ``{"x_0": "batch"}`` calls ``x_0``
            by the name of its ``Dim``.
        constants: Inputs of an ONNX model that are bound at compile time, by their names. ``{"axes": np.array([1])}``
            makes ``axes`` a constant of the model, which is then no input. Arrays have the input's dtype and shape;
            a size with a name, which such an input has, is fixed wherever the name stands.
        dump: A folder for the module after each stage, and for what each pass of the stage did to it.
        verify: Check after each stage that what it promises holds, which takes longer. :class:`~tkc.InternalError` says
            what does not. ``None`` checks if ``$TKC_VERIFY`` is ``1``.
        observer: Is told each stage's name as it begins.
        kernel_progress: Is told each kernel library as it is ready, and whether it was cached.
        builder: The limits of the processes that build kernels.

    Raises a :class:`tkc.Error`: :class:`~tkc.UsageError` (also for an option that does not exist),
    :class:`~tkc.UnsupportedModelError`, :class:`~tkc.TargetError` or :class:`~tkc.KernelBuildError`.
    """
    from tkc.builder import BuilderSettings
    from tkc.compiler.compile import compiled, compiled_program
    from tkc.compiler.options import CompileOptions
    from tkc.compiler.source import ModelSource
    from tkc.runtime.local_gpu import current_gpu_of

    options = CompileOptions(
        kernels=kernels,
        fallback=fallback,
        database=database,
        batch_invariant=batch_invariant,
        exchangeable_weights=exchangeable_weights,
        dump=dump,
        verify=verify,
        observer=observer,
        kernel_progress=kernel_progress,
        builder=builder or BuilderSettings(),
    )
    _check_entries(model, example_args, example_kwargs, dynamic_shapes, constants, entries)
    with current_gpu_of(model, example_args, example_kwargs, [_held(entry) for entry in (entries or {}).values()]):
        if entries is not None:
            return compiled_program(
                model,
                entries,
                size_names,
                target,
                options,
                checks=checks,
                copy_weights=copy_weights,
                max_concurrency=max_concurrency,
            )
        return compiled(
            ModelSource(model, example_args, example_kwargs, dynamic_shapes, size_names, constants),
            target,
            options,
            checks=checks,
            copy_weights=copy_weights,
            max_concurrency=max_concurrency,
        )


@_refuses_unknown_options
def explain(
    model: Any = None,
    example_args: Sequence[Any] = (),
    example_kwargs: Mapping[str, Any] | None = None,
    *,
    entries: Mapping[str, Any] | None = None,
    target: str | Target = "cpu",
    dynamic_shapes: Any = None,
    kernels: Kernels = "auto",
    fallback: bool = True,
    database: Database = None,
    batch_invariant: bool = False,
    checks: bool = False,
    size_names: Mapping[str, str] | None = None,
    constants: Mapping[str, Any] | None = None,
    dump: str | Path | None = None,
    verify: bool | None = None,
    observer: Observer | None = None,
) -> Report:
    """The report of a compilation without building anything: no kernel is compiled and no code generated.

    Arguments and errors are those of :func:`compile`. For ``entries`` it is a :class:`ProgramReport`.
    """
    from tkc.builder import BuilderSettings
    from tkc.compiler.explain import explained_only, explained_program
    from tkc.compiler.options import CompileOptions
    from tkc.compiler.source import ModelSource

    options = CompileOptions(
        kernels=kernels,
        fallback=fallback,
        database=database,
        batch_invariant=batch_invariant,
        dump=dump,
        verify=verify,
        observer=observer,
        kernel_progress=None,
        builder=BuilderSettings(),
    )
    _check_entries(model, example_args, example_kwargs, dynamic_shapes, constants, entries)
    if entries is not None:
        return explained_program(model, entries, size_names, target, options, checks=checks)
    source = ModelSource(model, example_args, example_kwargs, dynamic_shapes, size_names, constants)
    return explained_only(source, target, options, checks=checks)


@_refuses_unknown_options
def tune(
    model: Any,
    example_args: Sequence[Any] = (),
    example_kwargs: Mapping[str, Any] | None = None,
    *,
    target: str | Target = "cpu",
    dynamic_shapes: Any = None,
    database: str | os.PathLike[str] | None = None,
    trials: int | None = None,
    minutes: float | None = None,
    until_gain: float | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    rpc: str | None = None,
    device_key: str | None = None,
    resume: bool = False,
    kernels: Kernels = "auto",
    measure_kernels: MeasureKernels = "new",
    checks: bool = False,
    size_names: Mapping[str, str] | None = None,
    constants: Mapping[str, Any] | None = None,
    observer: Callable[[Progress], None] | None = None,
    started: float | None = None,
) -> TuningResult:
    """Measure the kernels that a model calls, search schedules for its other functions, and record everything measured.

    Kernels come first, in the order of what may be gained, each at the sizes that the model has: with ``minutes`` in
    three quarters of them at most, otherwise in the configurations alone that promise most. A configuration is recorded
    in place of the present one if it is faster by more than 1 %. The search for functions ends after ``trials`` or
    ``minutes``, or at ``until_gain``, whatever comes first.

    Args:
        model: As in :func:`compile`, and so are the example inputs, ``dynamic_shapes``, ``target``, ``kernels``,
            ``checks``, ``size_names`` and ``constants``: the same ones give the same functions, whose records the
            compilation finds.
        example_args: Positional example inputs.
        example_kwargs: Named example inputs.
        database: The folder of records, made if need be; your own (``$TKC_DATABASE_DIR``) if it is left out. Everything
            in it is used.
        trials: Stop after this many candidates.
        minutes: Stop after this many minutes, with the import of the model. What is under way when they end is killed.
            What cannot be, such as a search inside of TVM, is left behind in a thread of its own, for which Python
            waits when it exits. A module is exported in the caller's thread, which does not end early.
        until_gain: Stop when the last 64 candidates gained less of the model's time. 0.02 is 2 %.
        shapes: Sizes at which to tune what has symbolic sizes, instead of some spread over each declared range.
            ``{"seq": [128, 2048]}``, for example.
        rpc: Measure on the servers of this TVM RPC tracker (``host:port``) instead of this machine. Kernels are left
            out then, because they are measured on this machine only.
        device_key: The key by which those servers registered.
        resume: Go on with the job that the same call began: what it spent counts.
        measure_kernels: ``"new"`` measures kernels without a record of their own of this version and device,
            ``"again"`` all of them, ``"none"`` leaves kernels out.
        observer: Is told how far the job is: as each phase begins, and after each measurement.
        started: When the minutes began, of ``time.monotonic`` (``None``: with the call).

    Raises a :class:`tkc.Error`: :class:`~tkc.UsageError` for a budget, shapes or database that mean nothing and for a
    model with nothing to tune, :class:`~tkc.TuningStoppedError` when the job cannot go on or its minutes are over
    before anything is measured, and those of :func:`compile`.
    """
    from tkc.tuning.functions import tuned

    return tuned(
        model,
        example_args,
        example_kwargs,
        target=target,
        dynamic_shapes=dynamic_shapes,
        database=database,
        trials=trials,
        minutes=minutes,
        until_gain=until_gain,
        shapes=shapes,
        rpc=rpc,
        device_key=device_key,
        resume=resume,
        kernels=kernels,
        measure_kernels=measure_kernels,
        checks=checks,
        size_names=size_names,
        constants=constants,
        observer=observer,
        started=started,
    )


@_refuses_unknown_options
def load(path: str | Path, *, max_concurrency: int | None = None) -> Executable:
    """Read an artifact folder back as an executable, on the GPU if it is for one.

    Load only what you trust: an artifact is machine code.

    Args:
        path: The folder that :meth:`Executable.save` or ``tkc compile`` wrote.
        max_concurrency: As in :func:`compile`.

    Raises :class:`~tkc.ArtifactError` for a folder that is no artifact, has a missing or changed file, is for another
    version, target or device, or needs an operator that is not here.
    """
    from tkc.runtime.loading import load as load_executable

    return load_executable(path, max_concurrency=max_concurrency)


@_refuses_unknown_options
def debug(
    model: Any,
    example_args: Sequence[Any] = (),
    example_kwargs: Mapping[str, Any] | None = None,
    *,
    dynamic_shapes: Any = None,
    kernels: Kernels = "auto",
    sizes: Mapping[str, int] | None = None,
    seed: int = 0,
) -> Comparison:
    """Compare a model, compiled for the CPU, with PyTorch, or with ONNX's reference evaluator, node by node.

    First, the outputs of the compiled model are compared; then, in one compilation, every node by itself, computed from
    the source's values; then, if all of these agree and an output does not, the model up to a node, for ever fewer
    nodes.

    An error is a deviation relative to the source's largest value. Its bound is a number of roundings of the dtype,
    and more where PyTorch itself is that far from float64; integers and booleans must be equal.

    Args:
        model: As in :func:`compile`, and so are the other arguments. A model that carries its own signature is called
            with its own examples.
        example_args: Positional example inputs; of an ONNX model its inputs, which are random if left out.
        example_kwargs: Named example inputs.
        sizes: Symbolic sizes of random inputs, by name. Others are as small as they may be, and at least 2.
        seed: Seed of random inputs, for models without examples.

    Raises what :func:`compile` raises, and :class:`~tkc.UsageError` for a model that updates its inputs, and for inputs
    that the source cannot run with.
    """
    from tkc.diagnosis.debugging import compared

    return compared(
        model,
        example_args,
        example_kwargs,
        dynamic_shapes=dynamic_shapes,
        kernels=kernels,
        sizes=sizes or {},
        seed=seed,
        compile=compile,
    )
