"""Functions that are scheduled for CUDA targets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import tvm
from torch.nn import functional
from tvm import relax, tirx
from tvm.relax import op

from tests.schedules.graphs import Input, size
from tkc.kernels.target import Target
from tkc.passes.canonical.windows import Windows

HOPPER = Target("cuda", "sm_90a")
BATCH, LENGTH = size("b"), size("s")


@dataclass(frozen=True)
class Case:
    """A graph of one dtype, the same in PyTorch, and the rule expected to schedule it, if it needs one."""

    name: str
    inputs: Callable[[str], Sequence[Input]]
    body: Callable[..., relax.Expr]
    reference: Callable[..., torch.Tensor]
    rule: str | None = None


def swiglu(b: relax.BlockBuilder, gate: relax.Var, up: relax.Var) -> relax.Expr:
    """``silu(gate) * up``."""
    return op.multiply(b.emit(op.nn.silu(gate)), up)


def running_sums(b: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
    """Running sums, whose memory something else would have in the meantime if it were free."""
    dtype, other = x.struct_info.dtype, x
    sums = b.emit(op.astype(b.emit(op.cumsum(b.emit(op.astype(x, "float32")), -1)), dtype))
    for _ in range(3):
        other = b.emit(op.nn.softmax(other, -1))
    return op.add(sums, other)


def normalized_pixels(b: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
    """Each channel of ``x``, which stands last, normalized over the pixels of an image."""
    wide = b.emit(op.astype(x, "float32"))
    centered = b.emit(op.subtract(wide, b.emit(op.mean(wide, [1], keepdims=True))))
    square = b.emit(op.mean(b.emit(op.multiply(centered, centered)), [1], keepdims=True))
    scale = b.emit(op.rsqrt(b.emit(op.add(square, relax.const(1e-5, "float32")))))
    return op.astype(b.emit(op.nn.relu(b.emit(op.multiply(centered, scale)))), x.struct_info.dtype)


def normalized_rows(b: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
    """Each row of ``x`` normalized, in float32."""
    wide = b.emit(op.astype(x, "float32"))
    centered = b.emit(op.subtract(wide, b.emit(op.mean(wide, [-1], keepdims=True))))
    square = b.emit(op.mean(b.emit(op.multiply(centered, centered)), [-1], keepdims=True))
    scale = b.emit(op.rsqrt(b.emit(op.add(square, relax.const(1e-3, "float32")))))
    return op.astype(b.emit(op.multiply(centered, scale)), x.struct_info.dtype)


def scaled_rows(b: relax.BlockBuilder, x: relax.Var, scale: relax.Var, bias: relax.Var) -> relax.Expr:
    """``relu(x * scale + bias)`` in float32, as batch normalization ends."""
    scaled = b.emit(op.multiply(b.emit(op.astype(x, "float32")), scale))
    shifted = b.emit(op.add(scaled, b.emit(op.astype(bias, "float32"))))
    return op.astype(b.emit(op.nn.relu(shifted)), x.struct_info.dtype)


def reversed_rows(b: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
    """``x``, each row's last number first, gathered by what is broadcast to all rows; and ``x`` added."""
    places = b.emit(op.broadcast_to(relax.const(np.arange(95, -1, -1)[None, None], "int64"), x.struct_info.shape))
    inside = b.emit(op.minimum(b.emit(op.maximum(places, relax.const(0, "int64"))), relax.const(95, "int64")))
    return op.add(b.emit(op.gather_elements(x, inside, axis=2)), x)


def summed_in_float32(b: relax.BlockBuilder, x: relax.Var, w: relax.Var) -> relax.Expr:
    """A product as the pipeline has it, which widens it before."""
    return op.astype(b.emit(op.matmul(x, w, out_dtype="float32")), x.struct_info.dtype)


def windowed(b: relax.BlockBuilder, x: relax.Var, w: relax.Var, groups: int, strides: tuple[int, ...]) -> relax.Expr:
    """``x`` convolved with ``w``, channels last, as the pass for convolutions writes it; half a window of zeros."""
    extents = tuple(int(extent) for extent in w.struct_info.shape.values[: len(strides)])
    zeros = tuple(extent // 2 for extent in extents)
    windows = Windows(extents, strides, (1,) * len(strides), zeros, zeros)
    dtype, attributes = x.struct_info.dtype, {"op_pattern": 4}
    unknown = sum(isinstance(extent, tirx.Var) for extent in x.struct_info.shape.values)
    # Unlike that of others, since tests put several graphs into one module.
    name = f"sums_of_{groups}_{'_'.join(map(str, strides))}_{unknown}"
    return b.emit_te(windows.sums, x, w, groups, dtype, primfunc_name_hint=name, primfunc_attrs=attributes)


def convolved(x: torch.Tensor, w: torch.Tensor, groups: int, strides: tuple[int, ...]) -> torch.Tensor:
    """The same in PyTorch, whose convolutions of float32 on a GPU may be TensorFloat-32's."""
    function = functional.conv2d if len(strides) == 2 else functional.conv1d
    zeros = tuple(extent // 2 for extent in w.shape[: len(strides)])
    weight = w.double().movedim((-1, -2), (0, 1))
    return function(x.double().movedim(-1, 1), weight, None, strides, zeros, 1, groups).movedim(1, -1)


def rows(dtype: str) -> Input:
    """Rows of 96 numbers."""
    return ((BATCH, LENGTH, 96), dtype)


def one_by_several(columns: int) -> Case:
    """The products of one matrix and three of ``columns`` columns, which are no power of two."""
    return Case(
        f"one matrix by several of {columns} columns",
        lambda t: [((1, 10, 8), t), ((3, 8, columns), t)],
        lambda b, x, w: op.matmul(x, w),
        lambda x, w: (x.float() @ w.float()).to(x.dtype),
        "dlight-matmul",
    )


CASES = (
    Case("swiglu", lambda t: [rows(t)] * 2, swiglu, lambda g, u: functional.silu(g) * u, "gpu-elementwise"),
    Case(
        "bias",
        lambda t: [rows(t), ((96,), t)],
        lambda b, x, y: op.add(x, y),
        lambda x, y: x + y,
        "gpu-elementwise",
    ),
    *map(one_by_several, (6, 10, 28)),
    Case(
        "rows of a large image",
        lambda t: [((4, 300, 100, 96), t), ((96,), "float32"), ((96,), t)],
        scaled_rows,
        lambda x, scale, bias: (x.float() * scale + bias.float()).relu().to(x.dtype),
        "gpu-elementwise",
    ),
    *(
        Case(
            name,
            lambda t, batch=batch: [((batch, 6, 17, 96), t)],  # type: ignore[misc]
            lambda b, x: op.nn.pad(b.emit(op.nn.relu(x)), (0, 0, 1, 0, 0, 2, 0, 0)),
            lambda x: functional.pad(x.relu(), (0, 0, 0, 2, 1, 0)),
            "gpu-elementwise",
        )
        for name, batch in (("padded pixels", 3), ("padded pixels of a batch", BATCH))
    ),
    Case(
        "slices of odd rows",
        lambda t: [((BATCH, 3, 99), t)],
        lambda b, x: op.nn.relu(b.emit(op.strided_slice(x, [2], [0], [96], [1]))),
        lambda x: x[..., :96].relu(),
        "gpu-elementwise",
    ),
    Case(
        "one vector",
        lambda t: [((4,), t)] * 2,
        lambda b, x, y: op.add(x, y),
        lambda x, y: x + y,
        "gpu-elementwise",
    ),
    Case(
        "odd rows",
        lambda t: [((LENGTH, 77), t)],
        lambda b, x: op.nn.relu(x),
        functional.relu,
        "gpu-elementwise",
    ),
    Case(
        "heads first",
        lambda t: [((BATCH, LENGTH, 4, 16), t)],
        lambda b, x: op.permute_dims(x, [0, 2, 1, 3]),
        lambda x: x.permute(0, 2, 1, 3).contiguous(),
        "gpu-elementwise",
    ),
    Case(
        "transpose",
        lambda t: [rows(t)],
        lambda b, x: op.permute_dims(x, [0, 2, 1]),
        lambda x: x.transpose(1, 2).contiguous(),
        "gpu-elementwise",
    ),
    Case(
        "softmax",
        lambda t: [((BATCH, 4, LENGTH, LENGTH), t)],
        lambda b, x: op.nn.softmax(x, -1),
        lambda x: x.softmax(-1),
        "gpu-rows",
    ),
    Case(
        "max pool",
        lambda t: [((BATCH, 6, 17, 16), t)],
        lambda b, x: op.nn.max_pool2d(x, (3, 3), (2, 2), padding=(1, 1)),
        lambda x: functional.max_pool2d(x, 3, 2, 1),
        "gpu-strided-reduction",
    ),
    Case(
        "convolution of each channel",
        lambda t: [((BATCH, 6, 9, LENGTH), t), ((6, 1, 3, 5), t)],
        lambda b, x, w: op.nn.relu(b.emit(op.nn.conv2d(x, w, padding=(1, 2), groups=6))),
        lambda x, w: functional.conv2d(x, w, padding=(1, 2), groups=6).relu(),
        "gpu-strided-reduction",
    ),
    Case(
        "convolution of each channel, channels last",
        lambda t: [((8, 30, 64, 144), t), ((3, 5, 1, 144), t), ((144,), t)],
        lambda b, x, w, bias: op.nn.relu(b.emit(op.add(windowed(b, x, w, 144, (2, 1)), bias))),
        lambda x, w, bias: (convolved(x, w, 144, (2, 1)) + bias).relu().to(x.dtype),
        "gpu-vector-reduction",
    ),
    Case(
        "convolution of small groups, channels last",
        lambda t: [((BATCH, 40, 64, 32), t), ((3, 3, 4, 64), t)],
        lambda b, x, w: op.nn.relu(windowed(b, x, w, 8, (1, 1))),
        lambda x, w: convolved(x, w, 8, (1, 1)).relu().to(x.dtype),
        "gpu-vector-reduction",
    ),
    *(
        Case(
            f"convolution of each channel, stride {stride}, images of any size",
            lambda t: [((BATCH, 7, LENGTH, 48), t), ((5, 5, 1, 48), t), ((48,), t)],
            lambda b, x, w, bias, stride=stride: op.nn.relu(
                b.emit(op.add(windowed(b, x, w, 48, (stride, stride)), bias))
            ),
            lambda x, w, bias, stride=stride: (convolved(x, w, 48, (stride, stride)).to(x.dtype) + bias).relu(),
            "gpu-windows",
        )
        for stride in (1, 2)
    ),
    Case(
        "convolution of small groups, images of any size",
        lambda t: [((BATCH, LENGTH, 9, 32), t), ((3, 3, 4, 64), t)],
        lambda b, x, w: op.nn.relu(windowed(b, x, w, 8, (1, 1))),
        lambda x, w: convolved(x, w, 8, (1, 1)).relu().to(x.dtype),
        "gpu-windows",
    ),
    Case(
        "rows of any length normalized",
        lambda t: [((BATCH, 3, LENGTH), t)],
        normalized_rows,
        lambda x: functional.layer_norm(x.float(), x.shape[-1:], eps=1e-3).to(x.dtype),
        "gpu-rows",
    ),
    Case(
        "rows added to columns",
        lambda t: [((BATCH, LENGTH, LENGTH), t), ((LENGTH,), t)],
        lambda b, x, bias: op.add(b.emit(op.add(x, b.emit(op.permute_dims(x, [0, 2, 1])))), bias),
        lambda x, bias: x + x.mT + bias,
        "gpu-elementwise",
    ),
    Case(
        "convolution of a sequence, channels last",
        lambda t: [((1, 4096, 1536), t), ((4, 1, 1536), t)],
        lambda b, x, w: windowed(b, x, w, 1536, (1,)),
        lambda x, w: convolved(x, w, 1536, (1,)).to(x.dtype),
        "gpu-vector-reduction",
    ),
    Case(
        "sums of many elements",
        lambda t: [((40, 9, 70), t)],
        lambda b, x: op.nn.relu(b.emit(op.sum(b.emit(op.multiply(x, x)), [0, 1], keepdims=True))),
        lambda x: (x.float() * x).sum((0, 1), keepdim=True).to(x.dtype),
        "gpu-strided-reduction",
    ),
    Case(
        "normalization over pixels",
        lambda t: [((BATCH, 999, 96), t)],
        normalized_pixels,
        lambda x: functional.instance_norm(x.float().mT).mT.relu().to(x.dtype),
        "gpu-strided-reduction",
    ),
    Case(
        "argmax of columns",
        lambda t: [((BATCH, LENGTH, 96), t)],
        lambda b, x: op.astype(b.emit(op.argmax(x, 1)), x.struct_info.dtype),
        lambda x: x.argmax(1).to(x.dtype),
        "gpu-strided-reduction",
    ),
    Case(
        "running sums that are read late",
        lambda t: [((BATCH, 3, 1100), t)],
        running_sums,
        lambda x: x.float().cumsum(-1).to(x.dtype) + x.softmax(-1).softmax(-1).softmax(-1),
        "gpu-rows",
    ),
    Case("gather", lambda t: [rows(t)], reversed_rows, lambda x: x.flip(-1) + x, "gpu-elementwise"),
    Case("mean", lambda t: [rows(t)], lambda b, x: op.mean(x, axis=-1), lambda x: x.mean(-1), "dlight-reduction"),
    Case(
        "matmul",
        lambda t: [rows(t), ((96, 64), t)],
        lambda b, x, w: op.matmul(x, w),
        lambda x, w: x @ w,
        "dlight-matmul",
    ),
    Case(
        "wide products",
        lambda t: [((17, 200, 96), t), ((17, 96, 500), t)],
        summed_in_float32,
        lambda x, w: x @ w,
        "dlight-matmul",
    ),
    Case(
        "narrow products",
        lambda t: [((44, 70, 30), t), ((44, 30, 150), t)],
        summed_in_float32,
        lambda x, w: x @ w,
        "dlight-matmul",
    ),
    Case(
        "split",
        lambda t: [rows(t)],
        lambda b, x: op.concat(list(b.emit(op.split(x, 3, axis=-1)))[::-1], -1),
        lambda x: torch.cat(x.chunk(3, -1)[::-1], -1),
        "gpu-elementwise",
    ),
    Case(
        "masked columns",
        lambda t: [((96,), "bool"), rows(t)],
        lambda b, seen, x: op.where(seen, x, op.negative(x)),
        lambda seen, x: torch.where(seen, x, -x),
        "gpu-elementwise",
    ),
    Case(
        "masked",
        lambda t: [((BATCH, LENGTH, 96), "bool"), rows(t)],
        lambda b, seen, x: op.where(seen, x, op.negative(x)),
        lambda seen, x: torch.where(seen, x, -x),
        "gpu-elementwise",
    ),
)


def cuda_source(module: tvm.runtime.Module) -> str:
    """The CUDA source among ``module`` and what it imports."""
    if module.kind == "cuda":
        source: str = module.inspect_source("cuda")
        return source
    return "\n".join(filter(None, map(cuda_source, module.imports)))


SHORT_SCANS = (
    Case(
        "sums of columns",
        lambda t: [((BATCH, 33, 96), t)],
        lambda b, x: op.cumsum(x, 1),
        lambda x: x.float().cumsum(1).to(x.dtype),
    ),
    Case(
        "sums of rows",
        lambda t: [((BATCH, LENGTH, 128), t)],
        lambda b, x: op.cumsum(x, -1),
        lambda x: x.float().cumsum(-1).to(x.dtype),
    ),
    Case(
        "sums before each element",
        lambda t: [((5, BATCH, LENGTH), t)],
        lambda b, x: op.cumsum(x, 0, exclusive=True),
        lambda x: (x.float().cumsum(0) - x.float()).to(x.dtype),
    ),
    Case(
        "products",
        lambda t: [((BATCH, 9), t)],
        lambda b, x: op.cumprod(x, 1),
        lambda x: x.float().cumprod(1).to(x.dtype),
    ),
    Case(
        "counts",
        lambda t: [((BATCH, 17), "bool"), ((BATCH, 17), t)],
        lambda b, seen, x: op.add(op.astype(op.cumsum(seen, 1, dtype="int64"), x.struct_info.dtype), x),
        lambda seen, x: seen.cumsum(1).to(x.dtype) + x,
    ),
)
