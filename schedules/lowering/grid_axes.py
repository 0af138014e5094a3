"""Blocks along the second and third axis of a grid, of which CUDA launches no more than 65,535, laid along the first.

That takes 2^31 - 1. TVM's sorts have a row at each place of the second axis, and products of matrices the matrices of a
batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import tvm
from tvm import arith, tirx
from tvm.ir import IRModule, Op
from tvm.ir.transform import PassContext
from tvm.tirx.stmt_functor import ir_transform

from tkc.contracts import LAUNCH_PARAMETERS, THREAD_EXTENT
from tkc.kernels.devices import HIGHEST_GRID, WIDEST_GRID
from tkc.schedules.blocks import static, thread_tag
from tkc.schedules.target import is_gpu_code

_FIRST = "blockIdx.x"
_FURTHER = ("blockIdx.y", "blockIdx.z")
_LAUNCH = Op.get("tirx.tvm_call_packed")
_LAUNCHED = "int32"


@tvm.transform.module_pass(opt_level=0, name="WidenGrids")
class WidenGrids:
    """Launches what may have too many blocks along a further axis with these along the first, in the same order.

    It follows the division into host and device code. Grids that are known to be low stay as they are.
    """

    def transform_module(self, module: IRModule, _: PassContext) -> IRModule:
        """``module`` with the kernels, and what launches them, so written."""
        kernels = {v.name_hint: (v, func) for v, func in module.functions_items() if is_gpu_code(func)}
        result = IRModule(module.functions, attrs=module.attrs)

        def widened(call: tirx.Call) -> tirx.Call | None:
            name = call.args[0]
            if not call.op.same_as(_LAUNCH) or not isinstance(name, tirx.StringImm) or name.value not in kernels:
                return None
            variable, kernel = kernels[name.value]
            grid = _Grid.of(kernel, call)
            if grid is None:
                return None
            result[variable] = grid.kernel()  # each is launched in one place
            return grid.launch()

        for variable, host in module.functions_items():
            if kernels and isinstance(host, tirx.PrimFunc) and not is_gpu_code(host):
                result[variable] = host.with_body(ir_transform(host.body, None, widened, ["tirx.Call"]))
        return result


@dataclass(frozen=True)
class _Grid:
    """A launch of ``func`` by ``call``, with the axes ``moved`` along the first."""

    func: tirx.PrimFunc
    call: tirx.Call
    extents: dict[str, tirx.PrimExpr]
    moved: tuple[str, ...]

    @classmethod
    def of(cls, func: tirx.PrimFunc, call: tirx.Call) -> _Grid | None:
        """The launch, if it may have too many blocks along a further axis."""
        tags = map(str, func.attrs[LAUNCH_PARAMETERS])
        extents = dict(zip(tags, call.args[1 + len(func.params) :], strict=True))
        analyzer = arith.Analyzer()
        high = [
            tag
            for tag in _FURTHER
            if tag in extents and analyzer.const_int_bound(extents[tag]).max_value > HIGHEST_GRID
        ]
        return cls(func, call, extents, (_FIRST, *high)) if high else None

    def launch(self) -> tirx.Call:
        """What the host calls: the kernel with the lengths of all axes but the last, and all blocks along the first."""
        lengths = [self._length(tag).astype(_LAUNCHED) for tag in self.moved[:-1]]  # where all is launched, they fit
        arguments = [*self.call.args[: 1 + len(self.func.params)], *lengths]
        blocks = prod((self._length(tag).astype("int64") for tag in self.moved), start=tirx.const(1, "int64"))
        remaining = {tag: extent for tag, extent in self.extents.items() if tag not in self.moved}
        return tirx.Call(self.call.dtype, self.call.op, [*arguments, blocks, *remaining.values()], span=self.call.span)

    def kernel(self) -> tirx.PrimFunc:
        """The device code, which finds its place along each axis."""
        block = tirx.Var("block", _LAUNCHED)
        lengths = [tirx.Var(f"blocks_{tag[-1]}", _LAUNCHED) for tag in self.moved[:-1]]
        positive = [tirx.max(length, tirx.const(1, _LAUNCHED)) for length in lengths]  # so that no place looks negative
        rest: tirx.PrimExpr = block
        places: dict[str, tirx.PrimExpr] = {}
        for tag, length in zip(self.moved, positive, strict=False):
            is_one = static(self._length(tag)) == 1
            places[tag] = tirx.const(0, _LAUNCHED) if is_one else tirx.truncmod(rest, length)
            rest = rest if is_one else tirx.truncdiv(rest, length)
        places[self.moved[-1]] = rest
        bound: list[tirx.Stmt] = []

        def placed(launch: tirx.AttrStmt) -> tirx.Stmt | None:
            place = places.get(thread_tag(launch) or "")
            if place is None:
                return None
            variable = launch.node.var
            bound.append(tirx.Bind(variable, place.astype(variable.dtype)))
            return launch.body

        body = ir_transform(self.func.body, None, placed, ["tirx.AttrStmt"])
        axis = tirx.IterVar(tvm.ir.Range(0, WIDEST_GRID), block, tirx.IterVar.ThreadIndex, _FIRST)
        launched = tirx.AttrStmt(axis, THREAD_EXTENT, tirx.const(WIDEST_GRID, _LAUNCHED), tirx.SeqStmt([*bound, body]))
        tags = [_FIRST, *(tag for tag in self.extents if tag not in self.moved)]
        func = tirx.PrimFunc(
            [*self.func.params, *lengths], launched, self.func.ret_type, self.func.buffer_map, self.func.attrs
        )
        return func.with_attr(LAUNCH_PARAMETERS, tags)

    def _length(self, tag: str) -> tirx.PrimExpr:
        return self.extents.get(tag, tirx.const(1, _LAUNCHED))
