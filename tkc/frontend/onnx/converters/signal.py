"""Fourier transforms: matmuls with the cosines and sines of a length.

Those of a short fixed length are constants. Of other lengths the running model computes them.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
from tvm import relax, te, tirx

from tkc.frontend.onnx.converters.run_time_shapes import as_int64
from tkc.frontend.onnx.converters.shared import (
    EXACT,
    Converted,
    Converter,
    at_run_time,
    normalized_axis,
    scalar,
    size_scalar,
    size_vector,
)
from tkc.frontend.onnx.node import Node
from tkc.frontend.onnx.sizes import Size
from tkc.frontend.onnx.values import ConversionError, shape_of
from tkc.frontend.pixels import extents

_FIRST_OPSET_WITH_AXIS_INPUT = 20

# The matrices of a transform have the square of its length in elements, and are a part of the compiled model.
_LONGEST_CONSTANT = 1 << 12

# Those that the running model computes take 2 GB at this length.
_LONGEST = 1 << 14


def _dft(node: Node) -> Converted:
    """The discrete Fourier transform along one axis; the last one holds real and imaginary parts, or real ones only."""
    rank = node.rank(0)
    if rank < 2:
        raise ConversionError(f"transforms a tensor of {rank} dimensions; expected 2 or more, the last for the parts")
    if node.opset < _FIRST_OPSET_WITH_AXIS_INPUT:
        return _along(node, normalized_axis(node.attribute("axis", 1), rank))
    if at_run_time(node, 2):
        return _along_computed_axis(node)
    given = node.constant(2, "its axis")
    return _along(node, normalized_axis(-2 if given is None else int(given.item()), rank))


def _along(node: Node, axis: int) -> relax.Expr:
    """The transform along an axis that is known."""
    rank = node.rank(0)
    if axis == rank - 1:
        raise ConversionError(f"transforms its last axis, {axis}, which holds the parts of numbers; correct the model")
    moved = [i for i in range(rank) if i not in (axis, rank - 1)] + [rank - 1, axis]
    data = node.emit(relax.op.permute_dims(node.tensor(0), moved))
    spectrum = _of_last_axis(node, data)
    return relax.op.permute_dims(spectrum, [moved.index(i) for i in range(rank)])


def _along_computed_axis(node: Node) -> relax.Expr:
    """The transform along an axis that only the running model knows: it is brought to the end, and back."""
    op, emit, rank, sizes = relax.op, node.emit, node.rank(0), size_vector(node, node.shape(0))
    axis = emit(op.reshape(as_int64(node, 2), ()))
    axis = emit(op.where(op.less(axis, scalar(0, "int64")), op.add(axis, scalar(rank, "int64")), axis))
    fits = op.logical_and(op.greater_equal(axis, scalar(0, "int64")), op.less(axis, scalar(rank - 1, "int64")))
    others = relax.const(np.arange(rank - 2), "int64")
    places = emit(op.add(others, op.astype(op.greater_equal(others, axis), "int64")))
    places = emit(op.concat([places, op.reshape(axis, (1,))]))
    *outer, length = node.run_time_sizes(emit(op.take(sizes, places, 0, mode="clip")), rank - 1, emit(fits))
    parts = node.shape(0)[-1]

    def to_end(source: te.Tensor, axis: te.Tensor, outer: list[Size], length: Size) -> te.Tensor:
        def element(*index: tirx.Var) -> tirx.PrimExpr:
            *around, part, last = index
            place = [
                tirx.if_then_else(
                    axis() == i,
                    last,
                    tirx.if_then_else(axis() > i, around[min(i, rank - 3)], around[i - 1]) if rank > 2 else last,
                )
                for i in range(rank - 1)
            ]
            return source(*place, part)

        return te.compute(extents([*outer, parts, length]), element, name="to_end")

    operands = (node.tensor(0), axis, outer, length)
    moved = node.builder.emit_te(to_end, *operands, primfunc_name_hint="to_end")
    spectrum = _of_last_axis(node, moved)
    *_, made, width = shape_of(spectrum, node.algebra)
    is_axis = emit(op.equal(relax.const(np.arange(rank - 1), "int64"), axis))
    kept = emit(op.strided_slice(sizes, [0], [0], [rank - 1]))
    new = emit(op.where(is_axis, size_scalar(node, width, "int64"), kept))
    results = node.run_time_sizes(new, rank - 1)

    def back(source: te.Tensor, axis: te.Tensor, results: list[Size]) -> te.Tensor:
        def element(*index: tirx.Var) -> tirx.PrimExpr:
            *around, part = index
            place = [tirx.if_then_else(axis() > i, around[i], around[i + 1]) for i in range(rank - 2)]
            last = around[-1]
            for i in range(rank - 2):
                last = tirx.if_then_else(axis() == i, around[i], last)
            return source(*place, part, last)

        return te.compute(extents([*results, made]), element, name="back")

    return node.builder.emit_te(back, spectrum, axis, results, primfunc_name_hint="from_end")


def _of_last_axis(node: Node, data: relax.Expr) -> relax.Expr:
    """The transform of ``[..., parts, size]``, of the length that the node says, or else of the size."""
    inverse, onesided = bool(node.attribute("inverse", 0)), bool(node.attribute("onesided", 0))
    length = _length(node, 1)
    if length is None:
        length = shape_of(data, node.algebra)[-1]
        if inverse and onesided:
            node.require_at_least(length, 2)
            length = node.algebra.simplify(2 * (length - 1))
    _require_length(node, length)
    return _transformed(node, data, length, inverse=inverse, onesided=onesided)


def _stft(node: Node) -> Converted:
    """The one-sided or whole spectra of frames, each ``frame_step`` behind the one before, times a window."""
    if not node.has(1) or not (node.has(2) or node.has(3)):
        raise ConversionError("needs a frame step, and a window or a frame length; correct the model")
    size = node.shape(0)[1]
    length = node.shape(2)[0] if node.has(2) else _length(node, 3)
    assert length is not None  # one of the two is given
    if node.has(2) and node.has(3):
        known = None if at_run_time(node, 3) else _length(node, 3)
        if known is None:
            given = node.emit(relax.op.reshape(as_int64(node, 3), (1,)))
            node.require(relax.op.equal(given, size_vector(node, [length])))
        else:
            node.require_shape(2, [known])
            length = known
    _require_length(node, length)
    signal = node.tensor(0)
    if node.rank(0) == 2:
        signal = node.emit(relax.op.expand_dims(signal, [2]))
    node.require_at_least(node.algebra.simplify(size - length), 0)
    step, count = _steps(node, size, length)
    first = node.emit(relax.op.arange(0, count, 1, "int64"))
    first = node.emit(relax.op.multiply(first, step))
    first = node.emit(relax.op.reshape(first, [count, 1]))
    positions = node.emit(relax.op.add(first, node.emit(relax.op.arange(0, length, 1, "int64"))))
    frames = node.emit(relax.op.take(signal, positions, 1, mode="clip"))  # batch, frames, length, parts
    frames = node.emit(relax.op.permute_dims(frames, [0, 1, 3, 2]))
    if node.has(2):
        frames = node.emit(relax.op.multiply(frames, node.tensor(2)))
    spectrum = _transformed(node, frames, length, onesided=bool(node.attribute("onesided", 1)))
    return relax.op.permute_dims(spectrum, [0, 1, 3, 2])


def _steps(node: Node, size: Size, length: Size) -> tuple[relax.Expr, Size]:
    """The frame step, and how many frames there are, of a signal that is not shorter than one."""
    left = node.algebra.maximum(node.algebra.simplify(size - length), 0)
    if not at_run_time(node, 1):
        step = node.constant(1, "its frame step")
        number = 0 if step is None else int(step.item())
        if number < 1:
            raise ConversionError(f"has a frame step of {number}; expected 1 or more: correct the model")
        count = node.algebra.simplify(node.algebra.divide(left, number) + 1)
        return scalar(number, "int64"), count
    step = node.emit(relax.op.reshape(as_int64(node, 1), (1,)))
    one = scalar(1, "int64")
    whole = relax.op.floor_divide(size_vector(node, [left]), node.emit(relax.op.maximum(step, one)))
    fits = relax.op.reshape(relax.op.greater_equal(step, one), ())
    (count,) = node.run_time_sizes(node.emit(relax.op.add(node.emit(whole), one)), 1, node.emit(fits))
    return step, count


def _length(node: Node, position: int) -> Size | None:
    """A length that an input may say, where only the running model knows it too."""
    if not node.has(position):
        return None
    known = node.sizes(position)
    if known is not None:
        return known[0] if isinstance(known[0], tirx.PrimExpr) else int(known[0])
    given = node.emit(relax.op.reshape(as_int64(node, position), (1,)))
    (length,) = node.run_time_sizes(given, 1)
    return length


def _require_length(node: Node, length: Size) -> None:
    """See to it that a length is one that can be transformed."""
    if isinstance(length, int):
        if not 0 < length <= _LONGEST:
            raise ConversionError(f"transforms {length} elements; expected 1 to {_LONGEST}: transform them in parts")
        return
    node.require_at_least(length, 1)
    limit = size_vector(node, [length])
    node.require(relax.op.less_equal(limit, scalar(_LONGEST, "int64")))


def _transformed(
    node: Node, data: relax.Expr, length: Size, *, inverse: bool = False, onesided: bool = False
) -> relax.Expr:
    """The transform of ``[..., parts, size]``: of one part, which is real, or of two; its result has two parts.

    The one-sided inverse has one part, real, of the half of the spectrum that it is given.
    """
    *outer, parts, size = shape_of(data, node.algebra)
    if not (isinstance(parts, int) and parts in (1, 2)):
        raise ConversionError(f"has {parts} parts of each number; expected 1 or 2: fix the size of the last axis")
    given = data.struct_info.dtype
    dtype = given if given in EXACT else "float32"
    data = data if dtype == given else node.emit(relax.op.astype(data, dtype))
    half = node.algebra.simplify(length // 2 + 1)
    used = node.algebra.minimum(size, half if inverse and onesided else length)
    columns = half if onesided and not inverse else length
    if isinstance(length, int) and isinstance(used, int) and length <= _LONGEST_CONSTANT:
        cosine, sine = (
            relax.const(matrix.astype(dtype), dtype) for matrix in _matrices(length, used, inverse, onesided)
        )
    else:
        cosine, sine = (
            _computed_matrix(node, [length, used, columns], dtype, function, inverse, onesided)
            for function in (tirx.cos, tirx.sin)
        )
    if not (isinstance(used, int) and isinstance(size, int) and used == size):
        data = node.emit(relax.op.strided_slice(data, [len(outer) + 1], [0], [used], assume_inbound=True))

    def part(i: int) -> relax.Expr:
        return node.emit(relax.op.strided_slice(data, [len(outer)], [i], [i + 1], assume_inbound=True))

    def times(x: relax.Expr, matrix: relax.Expr) -> relax.Expr:
        return node.emit(relax.op.matmul(x, matrix))

    real = part(0)
    real_cosine, real_sine = times(real, cosine), times(real, sine)
    if parts == 1:
        halves = [real_cosine, real_sine]
    else:
        imaginary = part(1)
        halves = [
            node.emit(relax.op.subtract(real_cosine, times(imaginary, sine))),
            node.emit(relax.op.add(real_sine, times(imaginary, cosine))),
        ]
    result = halves[0] if inverse and onesided else node.emit(relax.op.concat(halves, len(outer)))
    return result if dtype == given else node.emit(relax.op.astype(result, given))


def _matrices(length: int, used: int, inverse: bool, onesided: bool) -> tuple[np.ndarray, np.ndarray]:
    """The cosines and sines ``[used, columns]`` that elements are multiplied by."""
    if inverse and onesided:
        return _half_to_real(length, used)
    angles = 2 * np.pi * (np.outer(np.arange(used), np.arange(length)) % length) / length
    cosine, sine = np.cos(angles), np.sin(angles) if inverse else -np.sin(angles)
    cosine, sine = (matrix / length if inverse else matrix for matrix in (cosine, sine))
    if onesided:
        cosine, sine = (matrix[:, : length // 2 + 1] for matrix in (cosine, sine))
    return cosine, sine


def _half_to_real(length: int, used: int) -> tuple[np.ndarray, np.ndarray]:
    """The inverse of the half of a spectrum whose other half mirrors it: what both add to the real part."""
    angles = 2 * np.pi * (np.outer(np.arange(used), np.arange(length)) % length) / length
    doubled = np.full((used, 1), 2.0)
    doubled[0] = 1
    if length % 2 == 0 and used == length // 2 + 1:
        doubled[-1] = 1
    return doubled * np.cos(angles) / length, doubled * np.sin(angles) / length


def _computed_matrix(
    node: Node,
    sizes: list[Size],
    dtype: str,
    function: Callable[[tirx.PrimExpr], tirx.PrimExpr],
    inverse: bool,
    onesided: bool,
) -> relax.Expr:
    """The same, by the running model: a table of all angles in float64, and from it the elements of the matrix.

    ``sizes`` are the length, and the rows and columns of the matrix.
    """

    def table(sizes: list[Size]) -> te.Tensor:
        (length,) = extents(sizes)
        whole = length.astype("float64")

        def element(i: tirx.Var) -> tirx.PrimExpr:
            number = function(tirx.const(2 * np.pi, "float64") * i.astype("float64") / whole)
            if inverse:
                return number / whole
            return number if function is tirx.cos else -number

        return te.compute((length,), element, name="angles")

    def spread(angles: te.Tensor, sizes: list[Size]) -> te.Tensor:
        length, rows, columns = extents(sizes)

        def element(row: tirx.Var, column: tirx.Var) -> tirx.PrimExpr:
            number = angles(tirx.floormod(row * column, length))
            if inverse and onesided:  # the other half mirrors this one
                alone = tirx.any(row == 0, row * 2 == length)
                number = tirx.if_then_else(alone, number, number * tirx.const(2.0, "float64"))
            return number.astype(dtype)

        return te.compute((rows, columns), element, name="matrix")

    angles = node.builder.emit_te(table, sizes[:1], primfunc_name_hint="angles")
    return node.builder.emit_te(spread, angles, sizes, primfunc_name_hint="transform_matrix")


def _mel_weight_matrix(node: Node) -> Converted:
    """Triangles over the bins of a spectrum, each from the center of one mel band to that of the band after the next.

    Of constants that make no large matrix, ONNX's own implementation computes it while the model is imported. As there,
    frequencies are computed in float64, and bands are cut to whole bins.
    """
    op, emit = relax.op, node.emit
    dtype = str(onnx.helper.tensor_dtype_to_np_dtype(node.attribute("output_datatype", onnx.TensorProto.FLOAT)))
    bands, length = (emit(op.reshape(as_int64(node, position), (1,))) for position in range(2))
    bins = emit(op.add(op.floor_divide(length, scalar(2, "int64")), scalar(1, "int64")))
    rows, columns = node.run_time_sizes(emit(op.concat([bins, bands])), 2)
    numbers = [emit(op.reshape(op.astype(node.tensor(i), "float64"), ())) for i in range(5)]

    def compute(
        bands: te.Tensor, length: te.Tensor, rate: te.Tensor, low: te.Tensor, high: te.Tensor, sizes: list[Size]
    ) -> te.Tensor:
        def mel(frequency: tirx.PrimExpr) -> tirx.PrimExpr:
            return _double(2595) * tirx.log(_double(1) + frequency / _double(700)) / _double(np.log(10))

        def bin_of(band: tirx.PrimExpr) -> tirx.PrimExpr:
            step = (mel(high()) - mel(low())) / (bands() + _double(2))
            power = (band.astype("float64") * step + mel(low())) / _double(2595) * _double(np.log(10))
            frequency = _double(700) * (tirx.exp(power) - _double(1))
            return tirx.floor((length() + _double(1)) * frequency / rate())

        def weight(row: tirx.Var, band: tirx.Var) -> tirx.PrimExpr:
            left, center, right = (bin_of(band + i) for i in range(3))
            place = row.astype("float64")
            one = _double(1)
            rising = (place - left) / tirx.max(center - left, one)
            falling = (right - place) / tirx.max(right - center, one)
            peak = tirx.if_then_else(tirx.all(place == center, left == center), one, _double(0))
            number = tirx.if_then_else(tirx.all(place >= left, place <= center, left < center), rising, peak)
            number = tirx.if_then_else(tirx.all(place >= center, place < right, center < right), falling, number)
            return number.astype(dtype)

        return te.compute(extents(sizes), weight, name="mel_weights")

    return node.builder.emit_te(compute, *numbers, [rows, columns], primfunc_name_hint="mel_weight_matrix")


def _double(number: float) -> tirx.PrimExpr:
    return tirx.const(float(number), "float64")


CONVERTERS: dict[str, Converter] = {"DFT": _dft, "MelWeightMatrix": _mel_weight_matrix, "STFT": _stft}
