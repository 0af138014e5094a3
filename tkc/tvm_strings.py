"""Has TVM's strings copied and pickled as Python's own.

TVM returns names as a subclass of ``str`` that holds a reference to TVM's memory. ``copy`` and ``pickle`` would hand on
that reference uncounted, so that the memory is freed twice: a child's answer, or a dataclass made a dictionary, then
ends the process at some later collection of garbage.
"""

from __future__ import annotations

import copyreg
from typing import Any

from tvm_ffi.core import String


def _as_plain(text: String) -> tuple[Any, ...]:
    return str, (str(text),)


copyreg.pickle(String, _as_plain)
