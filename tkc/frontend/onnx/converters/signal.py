"""Fourier transforms: matmuls with the cosines and sines of a fixed length."""

from __future__ import annotations

import numpy as np
from tvm import relax

from tkc.frontend.onnx.converters.shared import Converted, Converter, normalized_axis
from tkc.frontend.onnx.graph import ConversionError, Node, shape_of
from tkc.frontend.onnx.sizes import Size

_FIRST_OPSET_WITH_AXIS_INPUT = 20

# The matrices of a transform have the square of its length in elements, and are a part of the compiled model.
_LONGEST = 4096


def _dft(node: Node) -> Converted:
    """The discrete Fourier transform along one axis; the last one holds real and imaginary parts, or real ones only."""
    rank = node.rank(0)
    if node.opset >= _FIRST_OPSET_WITH_AXIS_INPUT:
        given = node.constant(2, "its axis")
        axis = -2 if given is None else int(given.item())
    else:
        axis = node.attribute("axis", 1)
    axis = normalized_axis(axis, rank)
    inverse, onesided = bool(node.attribute("inverse", 0)), bool(node.attribute("onesided", 0))
    length = _length(node, 1, "its length")
    if length is None:
        length = node.shape(0)[axis]
        if inverse and onesided and isinstance(length, int):
            length = 2 * (length - 1)
    moved = [i for i in range(rank) if i not in (axis, rank - 1)] + [rank - 1, axis]
    data = node.emit(relax.op.permute_dims(node.tensor(0), moved))
    spectrum = _transformed(node, data, _fixed(length), inverse=inverse, onesided=onesided)
    return relax.op.permute_dims(spectrum, [moved.index(i) for i in range(rank)])


def _stft(node: Node) -> Converted:
    """The one-sided or whole spectra of frames, each ``frame_step`` behind the one before, times a window."""
    step = _length(node, 1, "its frame step")
    window_length = node.shape(2)[0] if node.has(2) else None
    length = _length(node, 3, "its frame length") if node.has(3) else window_length
    if step is None or step < 1 or length is None:
        raise ConversionError("needs a frame step of at least 1, and a window or a frame length; correct the model")
    length = _fixed(length)
    signal = node.tensor(0)
    if node.rank(0) == 2:
        signal = node.emit(relax.op.expand_dims(signal, [2]))
    node.algebra.at_least(node.shape(0)[1], length)
    count = node.algebra.simplify(node.algebra.divide(node.shape(0)[1] - length, step) + 1)
    first = node.emit(relax.op.arange(0, count, 1, "int64"))
    first = node.emit(relax.op.multiply(first, relax.const(step, "int64")))
    first = node.emit(relax.op.reshape(first, [count, 1]))
    positions = node.emit(relax.op.add(first, relax.const(np.arange(length), "int64")))
    frames = node.emit(relax.op.take(signal, positions, 1, mode="clip"))  # batch, frames, length, parts
    frames = node.emit(relax.op.permute_dims(frames, [0, 1, 3, 2]))
    if node.has(2):
        frames = node.emit(relax.op.multiply(frames, node.tensor(2)))
    spectrum = _transformed(node, frames, length, onesided=bool(node.attribute("onesided", 1)))
    return relax.op.permute_dims(spectrum, [0, 1, 3, 2])


def _length(node: Node, position: int, what: str) -> int | None:
    given = node.constant(position, what)
    return None if given is None else int(given.item())


def _fixed(length: Size) -> int:
    if not isinstance(length, int) or not 0 < length <= _LONGEST:
        raise ConversionError(
            f"transforms {length} elements; expected a fixed number, 1 to {_LONGEST}: fix the size, or give the length"
        )
    return length


def _transformed(
    node: Node, data: relax.Expr, length: int, *, inverse: bool = False, onesided: bool = False
) -> relax.Expr:
    """The transform of ``[..., parts, size]``: of one part, which is real, or of two; its result has two parts.

    The one-sided inverse has one part, real, of the half of the spectrum that it is given.
    """
    *outer, parts, size = shape_of(data, node.algebra)
    dtype = data.struct_info.dtype
    if parts not in (1, 2) or not isinstance(size, int):
        raise ConversionError("needs a last axis of 1 or 2 elements, and a fixed size of the axis that it transforms")
    if inverse and onesided:
        cosine, sine = _half_to_real(length, min(size, length // 2 + 1))
    else:
        angles = 2 * np.pi * (np.outer(np.arange(min(size, length)), np.arange(length)) % length) / length
        cosine, sine = np.cos(angles), np.sin(angles) if inverse else -np.sin(angles)
        cosine, sine = (matrix / length if inverse else matrix for matrix in (cosine, sine))
        if onesided:
            cosine, sine = (matrix[:, : length // 2 + 1] for matrix in (cosine, sine))
    used = len(cosine)
    if used < size:
        data = node.emit(relax.op.strided_slice(data, [len(outer) + 1], [0], [used]))

    def part(i: int) -> relax.Expr:
        taken = node.emit(relax.op.strided_slice(data, [len(outer)], [i], [i + 1]))
        return taken

    def times(x: relax.Expr, matrix: np.ndarray) -> relax.Expr:
        return node.emit(relax.op.matmul(x, relax.const(matrix.astype(dtype), dtype)))

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
    if inverse and onesided:
        return halves[0]
    return node.emit(relax.op.concat(halves, len(outer)))


def _half_to_real(length: int, used: int) -> tuple[np.ndarray, np.ndarray]:
    """The inverse of the half of a spectrum whose other half mirrors it: what both add to the real part."""
    angles = 2 * np.pi * (np.outer(np.arange(used), np.arange(length)) % length) / length
    doubled = np.full((used, 1), 2.0)
    doubled[0] = 1
    if length % 2 == 0 and used == length // 2 + 1:
        doubled[-1] = 1
    return doubled * np.cos(angles) / length, doubled * np.sin(angles) / length


def _mel_weight_matrix(node: Node) -> Converted:
    """Of constants, ONNX's own implementation computes it while the model is imported."""
    for position in range(len(node.inputs)):
        node.constant(position, "all its inputs")
    raise ConversionError("makes too large a matrix; store it as an initializer")


CONVERTERS: dict[str, Converter] = {"DFT": _dft, "MelWeightMatrix": _mel_weight_matrix, "STFT": _stft}
