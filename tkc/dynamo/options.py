"""The options of ``torch.compile(model, backend="tkc", options={...})``: those of :func:`tkc.compile`."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tkc.api import compile as compile_model
from tkc.errors import UsageError

_NOT_HERE = {
    "entries": "each graph is one; tkc.compile(model, entries=...) makes a program of several",
    "dynamic_shapes": "say torch.compile(..., dynamic=True), or mark a size by torch._dynamo.mark_dynamic",
    "size_names": "the sizes of a traced graph have no names",
    "constants": "it is for ONNX models; what a traced graph reads as a constant is one",
    "copy_weights": "weights are inputs of the compiled graphs",
    "exchangeable_weights": "weights are inputs of the compiled graphs; load_state_dict of the model is seen",
}
"""Options of :func:`tkc.compile` that ``torch.compile`` has a word of its own for, and what to do instead."""

_MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")


@dataclass(frozen=True)
class Settings:
    """How graphs are compiled: ``options`` as :func:`tkc.compile` takes them, and whether on a GPU the kernels of a
    call are launched as one CUDA graph."""

    options: Mapping[str, Any]
    cuda_graphs: bool = True

    @property
    def fallback(self) -> bool:
        """Whether operators, and graphs, that TKC refuses run in PyTorch."""
        return bool(self.options.get("fallback", True))


def settings_of(options: Mapping[str, Any] | None, mode: str | None) -> Settings:
    """The settings that ``options=`` and ``mode=`` of ``torch.compile`` ask for.

    The modes are PyTorch's own. TKC compiles the same in each of them, but ``max-autotune-no-cudagraphs`` launches
    kernels one by one. Raises :class:`UsageError` for an option or a mode that does not exist, naming the nearest.
    """
    parameters = inspect.signature(compile_model).parameters.values()
    known = [each.name for each in parameters if each.kind is each.KEYWORD_ONLY and each.name not in _NOT_HERE]
    for name in options or {}:
        if name in _NOT_HERE:
            raise UsageError(f"torch.compile(backend='tkc') has no option {name!r}: {_NOT_HERE[name]}")
        if name not in known:
            raise UsageError(
                f"torch.compile(backend='tkc') has no option {name!r}{_nearest(name, known)}; "
                f"its options are {', '.join(known)}"
            )
    if mode is not None and mode not in _MODES:
        raise UsageError(
            f"torch.compile(backend='tkc') has no mode {mode!r}{_nearest(mode, _MODES)}; "
            f"its modes are {', '.join(_MODES)}"
        )
    return Settings(dict(options or {}), cuda_graphs=mode != "max-autotune-no-cudagraphs")


def _nearest(word: str, known: list[str] | tuple[str, ...]) -> str:
    close = difflib.get_close_matches(word, known, 1)
    return f" (did you mean {close[0]!r}?)" if close else ""
