"""Data outside of the file, and outside of the folder."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path

from onnx import ModelProto, TensorProto, helper

from tests.frontend.hostile_onnx.files import FILES, HUGE, model_of


def _external(
    name: str,
    entries: dict[str, str] | list[tuple[str, str]],
    prepare: Callable[[Path], object] | None = None,
    dims: Iterable[int] = (4,),
    data_type: int = 1,
) -> None:
    def make(folder: Path) -> ModelProto:
        (folder / "data.bin").write_bytes(bytes(64))
        if prepare is not None:
            prepare(folder)
        tensor = TensorProto(name="w", data_type=data_type, dims=dims, data_location=TensorProto.EXTERNAL)
        for key, value in entries.items() if isinstance(entries, dict) else entries:
            tensor.external_data.add(key=key, value=value.replace("{folder}", str(folder)))
        return model_of([helper.make_node("Add", ["x", "w"], ["y"])], [tensor])

    FILES[f"external: {name}"] = make


_external("absolute", {"location": "/etc/passwd"})
_external("absolute, of the folder itself", {"location": "{folder}/data.bin"})
_external("above", {"location": "../data.bin"}, lambda folder: (folder.parent / "data.bin").write_bytes(bytes(64)))
_external("above and back", {"location": "sub/../../data.bin"})
_external("link", {"location": "link"}, lambda folder: (folder / "link").symlink_to("/etc/passwd"))
_external("linked folder", {"location": "link/passwd"}, lambda folder: (folder / "link").symlink_to("/etc"))
_external("link to itself", {"location": "link"}, lambda folder: (folder / "link").symlink_to("link"))
_external("hard link", {"location": "hard"}, lambda folder: os.link(folder / "data.bin", folder / "hard"))
_external("missing", {"location": "nothing.bin"})
_external("folder", {"location": "."})
_external("pipe", {"location": "pipe"}, lambda folder: os.mkfifo(folder / "pipe"))
_external("device", {"location": "zero"}, lambda folder: (folder / "zero").symlink_to("/dev/zero"))
_external("no place", {})
_external("empty place", {"location": ""})
_external("null character", {"location": "data\0.bin"})
_external("long name", {"location": "d" * 100_000})
_external("surrogates", {"location": "\U0010ffff"})
_external("backslashes", {"location": "..\\data.bin"})
_external("offset beyond", {"location": "data.bin", "offset": "4096"})
_external("offset at the end", {"location": "data.bin", "offset": "60"})
_external("offset negative", {"location": "data.bin", "offset": "-16"})
_external("offset huge", {"location": "data.bin", "offset": str(1 << 70)})
_external("offset no number", {"location": "data.bin", "offset": "x"})
_external("offset of many digits", {"location": "data.bin", "offset": "1" * 100_000})
_external("offset not aligned", {"location": "data.bin", "offset": "1"})
_external("length too small", {"location": "data.bin", "length": "4"})
_external("length too large", {"location": "data.bin", "length": "64"})
_external("length beyond", {"location": "data.bin", "length": str(1 << 62)})
_external("length negative", {"location": "data.bin", "length": "-16"})
_external("length no number", {"location": "data.bin", "length": "NaN"})
_external("doubled places", [("location", "data.bin"), ("location", "/etc/passwd")])
_external("doubled offsets", [("location", "data.bin"), ("offset", "0"), ("offset", "4096")])
_external("unknown key", {"location": "data.bin", "__class__": "x"})
_external("sizes of 2^40", {"location": "data.bin"}, dims=[HUGE])
_external("sizes that overflow", {"location": "data.bin"}, dims=[1 << 32, 1 << 32])
_external("sizes negative", {"location": "data.bin"}, dims=[-1])
_external("sizes negative twice", {"location": "data.bin"}, dims=[-2, -2])
_external("texts", {"location": "data.bin"}, data_type=8)
_external("unknown type", {"location": "data.bin"}, data_type=77)
_external("four bits", {"location": "data.bin"}, data_type=22)
_external("the model itself", {"location": "model.onnx", "offset": "0"})
_external("sparse file", {"location": "sparse"}, lambda folder: os.truncate(
    os.open(folder / "sparse", os.O_CREAT | os.O_WRONLY), 1 << 42), dims=[HUGE])  # fmt: skip
