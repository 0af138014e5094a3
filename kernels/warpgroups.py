"""What Hopper's kernels know of warpgroups where they give each its own work: one loads, two or three compute."""

WARPGROUP = 128
"""Threads of a warpgroup."""

LOADING_REGISTERS = 24
"""Registers that a thread keeps whose warpgroup only loads."""

SCHEDULING_REGISTERS = 48
"""Registers that a thread keeps whose warpgroup also finds out what is to be loaded."""

SPLITTING_REGISTERS = 56
"""Registers that a thread keeps whose warpgroup takes float32 operands apart."""

_REGISTERS = 65536  # of a multiprocessor
_GRANULARITY = 8  # of what threads get and ask for


def computing_registers(warpgroups: int, *kept: int) -> int:
    """Registers of a thread that computes: what others leave to each of ``warpgroups``.

    Of these others, one for each of ``kept``, the threads have as many (none given: one that loads). They all share
    what the block is launched with, the same for each thread. To ask for more is to wait for ever.
    """
    kept = kept or (LOADING_REGISTERS,)
    every = warpgroups + len(kept)
    launched = _rounded(_REGISTERS // (WARPGROUP * every))
    return _rounded((launched * every - sum(kept)) // warpgroups)


def _rounded(registers: int) -> int:
    return registers // _GRANULARITY * _GRANULARITY
