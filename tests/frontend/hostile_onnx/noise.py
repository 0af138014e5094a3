"""Files that are no models."""

from __future__ import annotations

import random
from pathlib import Path

from tests.frontend.hostile_onnx.files import FILES, made_by, varint
from tests.frontend.onnx_execution import parsed


@made_by("no bytes")
def _empty(_: Path) -> bytes:
    return b""


@made_by("text")
def _prose(_: Path) -> bytes:
    return b"this is no model " * 1000


@made_by("length beyond the file")
def _length(_: Path) -> bytes:
    return b"\x08\x0a\x3a" + varint((1 << 31) - 1) + b"x"


@made_by("length of 2^63")
def _long_length(_: Path) -> bytes:
    return b"\x08\x0a\x3a" + varint((1 << 63) - 1) + b"x"


@made_by("groups, 100,000 deep")
def _groups(_: Path) -> bytes:
    return b"\x08\x0a" + b"\x9b\x06" * 100_000


def _noise(name: str, seed: int, cut: bool) -> None:
    def make(_: Path) -> bytes:
        numbers = random.Random(seed)
        model = parsed("g (float[n, 4] x, float[4, 4] w) => (float[n, 4] y) { s = Shape(x) h = MatMul(x, w) "
                       "r = Reshape(h, s) p = Constant<value_ints = [0, 0, 0, 0]>() y = Pad(r, p) }")  # fmt: skip
        whole = bytearray(model.SerializeToString())
        if cut:
            return bytes(whole[: numbers.randrange(len(whole))])
        for _mutation in range(numbers.randint(1, 12)):
            whole[numbers.randrange(len(whole))] = numbers.randrange(256)
        return bytes(whole)

    FILES[name] = make


for _seed in range(20):
    _noise(f"noise {_seed}", _seed, False)
for _seed in range(5):
    _noise(f"cut off {_seed}", _seed, True)


@made_by("random bytes")
def _random(_: Path) -> bytes:
    return random.Random(0).randbytes(100_000)
