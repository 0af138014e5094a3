"""Register budgets of warp-specialized kernels on Hopper. Pure Python, since tilings count warpgroups, too."""

WARPGROUP = 128
"""Threads of a warpgroup."""

LOADING_REGISTERS = 24
"""Registers per thread of a producer warpgroup, which issues TMA loads and does nothing else."""

SCHEDULING_REGISTERS = 48
"""Registers per thread of a producer warpgroup that also searches for its tiles or gathers rows."""

SPLITTING_REGISTERS = 56
"""Registers per thread of a warpgroup that splits float32 operands into TF32 parts."""

_REGISTERS = 65536  # of a multiprocessor
_GRANULARITY = 8  # of setmaxnreg


def computing_registers(warpgroups: int, *kept: int) -> int:
    """Registers per thread of ``warpgroups`` consumers: what the other warpgroups leave to each of them.

    ``kept`` are the registers per thread of the other warpgroups, one number for each (none given: one producer). A
    block is launched with the same number for every thread. Asking for more than there are deadlocks.
    """
    kept = kept or (LOADING_REGISTERS,)
    every = warpgroups + len(kept)
    launched = _rounded(_REGISTERS // (WARPGROUP * every))
    return _rounded((launched * every - sum(kept)) // warpgroups)


def _rounded(registers: int) -> int:
    return registers // _GRANULARITY * _GRANULARITY
