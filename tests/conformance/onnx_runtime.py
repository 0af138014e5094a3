"""Which of ONNX's backend tests ONNX Runtime itself passes on the CPU, by the same comparison as TKC's results.

ONNX Runtime is no requirement of TKC's: install it (``pip install onnxruntime``) where this is run.

    python -m tests.conformance.onnx_runtime    # minutes; writes docs/conformance/onnx_runtime.json
"""

from __future__ import annotations

import json
import multiprocessing
import os
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
from onnx.backend.test.case.test_case import TestCase

from tests.conformance.onnx_cases import backend_cases, data_sets, disagreement, inputs_of, model_of
from tests.conformance.onnx_record import RUNTIME

_LIMIT = 60.0  # seconds of one case


def passes(case: TestCase) -> bool:
    """Whether ONNX Runtime gives what ONNX expects, for each data set of a case."""
    import onnxruntime as ort  # type: ignore[import-not-found]  # no requirement of TKC's

    try:
        for given, expected in data_sets(case):
            model = model_of(case)
            options = ort.SessionOptions()
            options.log_severity_level, options.intra_op_num_threads = 4, 1
            session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
            names = [value.name for value in inputs_of(model)]
            found = session.run(None, dict(zip(names, given, strict=True)))
            if _text(expected) or _text(found):
                if not all(np.array_equal(_texts(one), _texts(two)) for one, two in zip(found, expected, strict=True)):
                    return False
            elif disagreement(found, expected, case) is not None:
                return False
    except Exception:
        return False
    return True


def _text(values: Any) -> bool:
    return any(isinstance(value, np.ndarray) and value.dtype.kind in "OUS" for value in values)


def _texts(value: Any) -> np.ndarray:
    return np.asarray(value).astype(str)


def _serve(connection: Connection, cases: dict[str, TestCase]) -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    while True:
        connection.send(passes(cases[connection.recv()]))


def main() -> None:
    """Run every case, in a worker that is replaced where one ends it, and write which passed."""
    import onnx
    import onnxruntime as ort

    cases = backend_cases()
    context = multiprocessing.get_context("fork")
    worker, passed = None, []
    for name in cases:
        if worker is None:
            mine, its = context.Pipe()
            worker = context.Process(target=_serve, args=(its, cases), daemon=True)
            worker.start()
            its.close()
        mine.send(name)
        try:
            if not mine.poll(_LIMIT):
                raise EOFError
            if mine.recv():
                passed.append(name)
        except (EOFError, ConnectionResetError):
            worker.kill()
            worker.join()
            worker = None
    record = {"onnxruntime": ort.__version__, "onnx": onnx.__version__, "passed": sorted(passed)}
    RUNTIME.write_text(json.dumps(record, indent=1) + "\n")
    print(f"ONNX Runtime {ort.__version__} passes {len(passed):,} of {len(cases):,} cases")


if __name__ == "__main__":
    main()
