"""Has an interrupt come out of TVM as what it is.

Where Python code that TVM calls is interrupted, TVM raises a ``RuntimeError`` without a message: it knows Python's
exceptions by their names, and ``KeyboardInterrupt`` is none that it knows.
"""

from __future__ import annotations

import tvm_ffi

for _interrupt in (KeyboardInterrupt, SystemExit):
    tvm_ffi.register_error(_interrupt.__name__, _interrupt)
