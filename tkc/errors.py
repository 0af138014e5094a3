"""The exceptions a user can meet, each with the exit code of the command line."""

from __future__ import annotations

from pathlib import Path


class Error(Exception):
    """Base of every error TKC raises on purpose. The message names the culprit, what was expected, and the cure."""

    exit_code = 2


class UsageError(Error):
    """An argument or option that means nothing: wrong value, missing file, unknown name."""


class UnsupportedModelError(Error):
    """A model that no frontend can read: unknown operators (all listed), or a file that is none."""


class InputError(Error):
    """Inputs that do not fit a compiled model's signature: count, shape, dtype, device, or a size out of range."""


class IndexInputError(InputError, IndexError):
    """Inputs that make a model index out of range: an ``IndexError``, as it is in PyTorch."""


class ValueInputError(InputError, RuntimeError):
    """Inputs of which something does not hold that a model asserts, or by which it divides integers by zero: a
    ``RuntimeError``, as it is in PyTorch."""


class TargetError(Error):
    """A target that does not exist, or that lacks its compiler or device on this machine."""


class ForkError(Error):
    """A call in a forked child that cannot run there: CUDA was in use, or another thread was inside the executable."""


class ArtifactError(Error):
    """An artifact that cannot be loaded: changed, incomplete, for another target or version."""


class CacheError(Error):
    """The cache folder cannot be read or written: it is full, read-only, or no folder."""


class OutOfMemoryError(Error, MemoryError):
    """A call that needs more memory than there is."""


class OperatorError(Error):
    """An operator of PyTorch's, which a compiled model calls in place, raised an error. Its message names both."""


class KernelBuildError(Error):
    """A kernel that did not build: the builder crashed, ran out of time or memory, or rejected it."""

    exit_code = 3


class InternalError(Error):
    """A fault of TKC itself, or of a library below it (TVM, TileLang, LLVM, nvcc), on input that should have worked.

    ``stage`` is what TKC was doing, and ``kind`` what happened there: the type of the exception that was raised, or the
    signal that ended the process that did it. ``function`` is the generated function that it happened to, where that is
    known. ``nodes`` are the model's nodes in the smallest part of it that fails
    in the same way, as PyTorch's module path and line of code, or as the ONNX node; they are empty where none was
    found. ``folder`` holds what a bug report needs.
    """

    exit_code = 3

    def __init__(self, *arguments: object) -> None:
        super().__init__(*arguments)
        self.stage: str | None = None
        self.kind: str | None = None
        self.function: str | None = None
        self.nodes: tuple[str, ...] = ()
        self.folder: Path | None = None


class TuningStoppedError(Error):
    """A tuning job that could not go on: the disk is full, or no server is left. What it measured is kept."""
