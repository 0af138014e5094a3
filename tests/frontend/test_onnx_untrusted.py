"""ONNX files made by an enemy: each is compiled, or refused by name, in bounded memory and time."""

from __future__ import annotations

import resource
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest

import tkc
from tests.frontend.hostile_onnx import FILES
from tests.frontend.onnx_execution import parsed
from tkc.child import in_child
from tkc.frontend.onnx.importer import import_onnx

_SECONDS = 10  # on a machine that does nothing else; twice as many here
_SCHEDULED = ("chain", "sizes: least", "sizes: power", "sizes: division", "sizes: Cum", "sizes: names", "sizes: TopK")
"""Those that are followed further than to their import."""
_ROOM = 3 << 30

# What means something, however strange: it may be compiled.
_COMPILED = frozenset(
    {
        *("doubled output", "output that names an input", "names of control characters", "version below zero"),
        *("output of another type", "output of another shape", "value of a lying type", "opset 1", "segment"),
        *("attribute not a number", "unknown attribute", "axis out of range", "both kinds of data"),
        *("initializer of another type than its input", "If of other types", "Loop without an end", "Scan"),
        *("external: hard link", "external: offset not aligned", "external: unknown key", "external: the model itself"),
        *(name for name in FILES if name.startswith(("noise", "cut off", "dimension", "chain", "If, ", "If of a con"))),
        *("sizes: ConstantOfShape just fitting", "sizes: names that overflow", "sizes: CumSum far off", "sizes: TopK"),
        *("sizes: BitShift", "sizes: power", "sizes: division by zero", "sizes: least number by minus one"),
        *("wide: 100,000 outputs", "output without a type", "sequence as output", "text as input"),
    }
)


def _limited(work: Callable[[], None]) -> str | None:
    """What ``work`` is refused with, done in a child, so that whatever it does is seen."""

    def refused() -> str | None:
        resource.setrlimit(resource.RLIMIT_CPU, (2 * _SECONDS, 2 * _SECONDS))
        used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        message = None
        try:
            work()
        except tkc.InternalError:
            raise
        except tkc.Error as error:
            message = str(error)
        assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - used) << 10 < _ROOM
        return message

    return in_child(refused, timeout=8 * _SECONDS)  # of the clock, which tests beside this one make longer


@pytest.mark.parametrize("name", FILES)
@pytest.mark.daily(3)
def test_a_hostile_file_is_refused_or_compiled(name: str, tmp_path: Path) -> None:
    """Nothing ends the process, raises another error, or takes the machine's memory; messages stay readable."""
    folder = tmp_path / "model"
    folder.mkdir()
    content = FILES[name](folder)
    path = folder / "model.onnx"
    path.write_bytes(content if isinstance(content, bytes) else content.SerializeToString())
    if name.startswith(_SCHEDULED):
        message = _limited(lambda: tkc.explain(path, kernels="none", database=False) and None)
    else:
        message = _limited(lambda: import_onnx(path) and None)
    assert message is not None or name in _COMPILED
    if message is not None:
        assert len(message) < 3000 and "\x1b" not in message and "\0" not in message


@pytest.mark.daily(1)
def test_a_long_chain_is_compiled(tmp_path: Path) -> None:
    """Each function is made of so many of them that the code generator's stack holds them."""
    model = parsed(
        "g (float[4] x) => (float[4] y) { "
        + " ".join(f"v{i + 1} = Relu(v{i})" for i in range(2000)).replace("v0)", "x)")
        + " y = Neg(v2000) }"
    )
    assert _limited(lambda: tkc.compile(model, kernels="none", database=False) and None) is None


def test_data_beside_a_linked_model_is_read(tmp_path: Path) -> None:
    """As the cache of the Hugging Face Hub has it: both the model and its data are links into one folder."""
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "main"
    blobs.mkdir()
    snapshot.mkdir(parents=True)
    (blobs / "b").write_bytes(bytes(16))
    tensor = onnx.TensorProto(name="w", data_type=1, dims=[4], data_location=1)
    tensor.external_data.add(key="location", value="model.data")
    model = parsed("g (float[4] x, float[4] w) => (float[4] y) { y = Add(x, w) }")
    del model.graph.input[1]
    model.graph.initializer.append(tensor)
    (blobs / "a").write_bytes(model.SerializeToString())
    (snapshot / "model.onnx").symlink_to("../../blobs/a")
    (snapshot / "model.data").symlink_to("../../blobs/b")
    tkc.explain(snapshot / "model.onnx", kernels="none", database=False)
