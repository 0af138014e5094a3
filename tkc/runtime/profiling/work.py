"""The work of a call at the sizes that it has: operations, bytes, and the dtype that it computes in."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter, ValidationError

from tkc.kernels.registry import SPECS
from tkc.runtime.call_table import DYNAMIC_CALL, FunctionWork
from tkc.runtime.sizes import Formula


@dataclass(frozen=True)
class MeasuredWork:
    """The least that a call has to compute and to move; ``dtype`` is that of its first tensor of floats."""

    flops: float
    bytes: float
    dtype: str


def measured_work(work: FunctionWork, symbol: str, arguments: Sequence[Any]) -> MeasuredWork | None:
    """The work of a call by ``symbol`` with ``arguments``; ``None`` where it is not known."""
    operands = list(_operands(symbol, arguments))
    sizes: dict[str, int] = {}
    for parameter, operand in zip(work.parameters, operands, strict=False):
        if isinstance(parameter, str):
            if isinstance(operand, int):
                sizes[parameter] = operand
        elif hasattr(operand, "shape"):
            found = zip(parameter, operand.shape, strict=False)
            sizes.update({dim: int(size) for dim, size in found if isinstance(dim, str) and dim})
    dtypes = [str(operand.dtype) for operand in operands if hasattr(operand, "dtype")]
    dtype = next((dtype for dtype in dtypes if "float" in dtype), "float32")
    try:
        if work.kernel is not None:
            return _kernel_work(work, operands, dtype)
        if work.flops is None or work.bytes is None:
            return None
        return MeasuredWork(float(Formula(work.flops)(sizes)), float(Formula(work.bytes)(sizes)), dtype)
    except (KeyError, NameError, ArithmeticError, ValueError, RecursionError, ValidationError):
        return None  # a size that no tensor has, or a kernel of which this release knows no more


def _operands(symbol: str, arguments: Sequence[Any]) -> Iterator[Any]:
    """The tensors and sizes of a call. Those that take sizes get the function first, and the sizes as one shape."""
    import tvm_ffi

    for argument in arguments[1:] if symbol == DYNAMIC_CALL else arguments:
        if isinstance(argument, tvm_ffi.Shape):
            yield from map(int, argument)
        else:
            yield argument


def _kernel_work(work: FunctionWork, operands: Sequence[Any], dtype: str) -> MeasuredWork | None:
    spec = SPECS[str(work.kernel)]
    parameters: Any = TypeAdapter(spec.parameters_type).validate_python(dict(work.settings))
    sizes: dict[str, int] = {}
    types = (*spec.inputs(parameters), *spec.outputs(parameters))
    for tensor, operand in zip(types, operands, strict=False):
        found = zip(tensor.shape, operand.shape, strict=True)
        sizes.update({dim: int(size) for dim, size in found if isinstance(dim, str)})
    least = spec.work(parameters, sizes)
    return MeasuredWork(float(least.flops), float(least.bytes), dtype)
