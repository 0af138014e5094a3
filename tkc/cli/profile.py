"""A profile of an artifact or a model's file, with inputs from files or at random."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tkc.cli.run import chosen_inputs, copied_to, loaded
from tkc.runtime.profiling.profile import Profile, check_profile_path


def profile_model(
    path: Path,
    entry: str | None,
    inputs: Sequence[str],
    sizes: Sequence[str],
    seed: int,
    repeat: int,
    output: Path | None,
) -> Profile:
    """The profile of what :func:`loaded` has of ``path``, also written to ``output``, if that is given."""
    if output is not None:
        check_profile_path(output)
    executable = loaded(path, entry)
    values = chosen_inputs(inputs, sizes, seed, executable.signature)
    profile = executable.profile_flat([copied_to(executable.device, value) for value in values], repeat)
    if output is not None:
        profile.save(output)
    return profile
