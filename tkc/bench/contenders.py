"""What a kernel is measured beside: PyTorch, torch.compile, and TileKernels where it is installed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tkc.bench.tile_kernels_calls import TileKernelsCall, tile_kernels_calls
from tkc.bench.tile_kernels_client import TileKernels, TileKernelsError
from tkc.errors import UsageError
from tkc.measure.prepared_case import Prepared, deviation
from tkc.measure.timing import Timing

PYTORCH = {
    "eager": ("PyTorch", None),
    "compile": ("torch.compile", "default"),
    "max-autotune": ("max-autotune", "max-autotune-no-cudagraphs"),  # its calls are recorded as everyone's are
}
"""PyTorch's ways to run a reference: what they are called in a row, and the mode of ``torch.compile``."""


@dataclass
class Contenders:
    """``calls`` that are still to be measured, by turns with ours, what was ``measured`` elsewhere, and ``notes``."""

    calls: dict[str, list[Callable[[], object]]] = field(default_factory=dict)
    measured: dict[str, Timing] = field(default_factory=dict)
    notes: dict[str, float | str] = field(default_factory=dict)


def known_references(names: Sequence[str]) -> Sequence[str]:
    """``names`` themselves; :class:`tkc.UsageError` where one is not in :data:`PYTORCH`."""
    if unknown := [name for name in names if name not in PYTORCH]:
        raise UsageError(f"there is no reference {', '.join(unknown)}; choose from {', '.join(PYTORCH)}")
    return names


def contenders(prepared: Prepared, references: Sequence[str], tile_kernels: TileKernels | None) -> Contenders:
    """Those that a case has: PyTorch's by ``references``, of :data:`PYTORCH`, and what ``tile_kernels`` measures."""
    found = Contenders()
    for contender, mode in (PYTORCH[reference] for reference in references):
        if mode is None:
            calls, error = prepared.reference_calls(), None
        else:
            calls, error = prepared.compiled_calls(mode)
        if calls:
            found.calls[contender] = calls
        if error is not None:
            found.notes[f"{contender} error"] = error
    if tile_kernels is not None:
        for call in tile_kernels_calls(prepared):
            _measure(call, prepared, tile_kernels, found)
    return found


def _measure(call: TileKernelsCall, prepared: Prepared, tile_kernels: TileKernels, found: Contenders) -> None:
    """Add one of TileKernels' functions; where it fails, a note says why."""
    try:
        timing, results = tile_kernels.measure(call, prepared.num_copies)
    except TileKernelsError as error:
        found.notes[f"{call.contender} failed"] = str(error)
        return
    found.measured[call.contender] = timing
    pairs = zip(results, call.expected, strict=True)
    found.notes[f"{call.contender} error"] = max(
        deviation(result.reshape(want.shape), want) for result, want in pairs if want is not None
    )
    if call.differs is not None:
        found.notes[f"{call.contender} differs"] = call.differs
