"""The threads that generated CPU code computes with: one pool in a process, whatever models are loaded."""

from __future__ import annotations

import os
import threading
from typing import Any

from tkc.contracts import SHARE_THREADS

_lock = threading.Lock()
_entry = 0  # where the pool of the code that was loaded first is called; that code stays loaded


def share_threads(code: Any, *, with_operators: bool = False) -> None:
    """Have the parallel loops of ``code``, a library that TVM loaded, run in the process's pool.

    The pool has as many threads as ``$TVM_NUM_THREADS`` says, else ``$OMP_NUM_THREADS``, else one for each core that
    the process may use (TVM would count physical cores, and take virtual ones for halves of one). Code
    ``with_operators`` of PyTorch's between its loops runs these in PyTorch's threads instead, as many as
    ``torch.set_num_threads`` says, unless ``$TVM_NUM_THREADS`` is set.
    """
    global _entry
    with _lock:
        in_openmp = with_operators and not os.environ.get("TVM_NUM_THREADS")
        _entry = code.get_function(SHARE_THREADS)(number_of_threads(), _entry, int(in_openmp))


def number_of_threads() -> int:
    """How many threads a parallel loop has."""
    for name in ("TVM_NUM_THREADS", "OMP_NUM_THREADS"):
        if (chosen := os.environ.get(name, "")).isdigit():
            return max(1, int(chosen))
    return len(os.sched_getaffinity(0))
