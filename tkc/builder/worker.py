"""The builder process: reads kernel requests as JSON lines, builds them with TileLang, answers as JSON lines.

A request is ``{"request": ..., "folder": ...}``; the answer ``{"library": path}`` or ``{"error": text}``.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from pathlib import Path

from tkc.kernels import KernelRequest


def main() -> None:
    """Serve until standard input closes."""
    # Whatever the libraries print goes to the log (standard error), so that answers stay one a line.
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", buffering=1)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    from tkc.builder.compile_kernel import compile_kernel

    print(json.dumps({"ready": os.getpid()}), file=answers)
    for line in sys.stdin:
        job = json.loads(line)
        try:
            library = compile_kernel(KernelRequest.from_json(job["request"]), Path(job["folder"]))
            answer = {"library": str(library)}
        except Exception as error:
            traceback.print_exc()
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=answers)


if __name__ == "__main__":
    main()
