"""Small modules to tune, and records that are kept in memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tvm.s_tir.meta_schedule.database import TuningRecord
from tvm.script import ir as I
from tvm.script import relax as R
from tvm.script import tirx as T

from tkc.kernels.target import Target

CPU = Target.parse("cpu")


@I.ir_module
class TwoLayers:
    """Two equal products under different names, and a bias addition."""

    @T.prim_func(private=True, s_tir=True)
    def first(a: T.Buffer((64, 64), "float32"), b: T.Buffer((64, 64), "float32"), c: T.Buffer((64, 64), "float32")):  # noqa: D102
        for i, j, k in T.grid(64, 64, 64):
            with T.sblock("product"):
                vi, vj, vk = T.axis.remap("SSR", [i, j, k])
                with T.init():
                    c[vi, vj] = T.float32(0)
                c[vi, vj] += a[vi, vk] * b[vk, vj]

    @T.prim_func(private=True, s_tir=True)
    def second(x: T.Buffer((64, 64), "float32"), y: T.Buffer((64, 64), "float32"), z: T.Buffer((64, 64), "float32")):  # noqa: D102
        for i, j, k in T.grid(64, 64, 64):
            with T.sblock("product"):
                vi, vj, vk = T.axis.remap("SSR", [i, j, k])
                with T.init():
                    z[vi, vj] = T.float32(0)
                z[vi, vj] += x[vi, vk] * y[vk, vj]

    @R.function
    def main(x: R.Tensor((64, 64), "float32"), w: R.Tensor((64, 64), "float32")):  # noqa: D102
        cls = TwoLayers
        with R.dataflow():
            a = R.call_tir(cls.first, (x, w), R.Tensor((64, 64), "float32"))
            b = R.call_tir(cls.second, (a, w), R.Tensor((64, 64), "float32"))
            c = R.call_tir(cls.first, (b, w), R.Tensor((64, 64), "float32"))
            R.output(c)
        return c


@I.ir_module
class AnyRows:
    """A product with any number of rows."""

    @T.prim_func(private=True, s_tir=True)
    def product(a: T.handle, b: T.Buffer((T.int64(64), T.int64(64)), "float32"), c: T.handle):  # noqa: D102
        rows = T.int64()
        source = T.match_buffer(a, (rows, T.int64(64)), "float32")
        result = T.match_buffer(c, (rows, T.int64(64)), "float32")
        for i, j, k in T.grid(rows, T.int64(64), T.int64(64)):
            with T.sblock("product"):
                vi, vj, vk = T.axis.remap("SSR", [i, j, k])
                with T.init():
                    result[vi, vj] = T.float32(0)
                result[vi, vj] += source[vi, vk] * b[vk, vj]

    @R.function
    def main(x: R.Tensor(("rows", 64), "float32"), w: R.Tensor((64, 64), "float32")):  # noqa: D102
        rows = T.int64()
        cls = AnyRows
        with R.dataflow():
            y = R.call_tir(cls.product, (x, w), R.Tensor((rows, 64), "float32"))
            R.output(y)
        return y


@dataclass
class RecordsInMemory:
    """Records that last as long as the test; with the error of each."""

    kept: list[tuple[TuningRecord, str | None]] = field(default_factory=list)

    def all(self) -> Sequence[TuningRecord]:
        """Every record."""
        return [record for record, _ in self.kept]

    def commit(self, record: TuningRecord, error: str | None = None) -> None:
        """Keep ``record``."""
        self.kept.append((record, error))
