"""Why an archive is refused."""

from __future__ import annotations

from typing import Any

from tkc.errors import UnsupportedModelError

LONGEST_TOLD = 120
"""Characters of what a file holds that a message repeats."""


def told(text: Any) -> str:
    """What a file holds, for a message."""
    whole = repr(text)
    return whole if len(whole) <= LONGEST_TOLD else f"{whole[:LONGEST_TOLD]}..."


def wrong(reason: str) -> UnsupportedModelError:
    """The error for an archive that PyTorch does not write; ``reason`` is the rest of a sentence."""
    return UnsupportedModelError(
        f"The archive is none that torch.export.save writes: {reason}. Export the model again."
    )
