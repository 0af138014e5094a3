"""What Hopper's kernels know of warpgroups where they give each its own work: one loads, two or three compute."""

WARPGROUP = 128
"""Threads of a warpgroup."""

LOADING_REGISTERS = 24
"""Registers that a thread keeps whose warpgroup only loads. (Such counts are multiples of 8.)"""

COMPUTING_REGISTERS = {2: 240, 3: 160}
"""Registers of a thread that computes, by the number of its warpgroups: what a multiprocessor's 65,536 leave them."""
