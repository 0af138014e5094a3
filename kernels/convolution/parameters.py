"""The parameters of a convolution with an epilogue."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Literal

from tkc.kernels.matmul.parameters import BatchNorm, MatmulParameters

_ALONE = {"extents": 1, "strides": 1, "dilation": 1, "before": 0, "after": 0}
"""What an axis of one pixel has."""


def of_two_axes(geometry: Mapping[str, Sequence[int]]) -> dict[str, tuple[int, int]]:
    """The geometry of windows over images of one axis or two, a number of each kind for each, as this module's pairs.

    An image of one axis has the height 1. Others than these kinds are left out.
    """
    pairs = {}
    for name, alone in _ALONE.items():
        *above, last = geometry[name]
        (first,) = above or (alone,)
        pairs[name] = first, last
    return pairs


LEAST_DEPTH = 32
"""Of what is loaded of one pixel, in elements. What an image does not have of it is loaded as zeros."""


@dataclass(frozen=True)
class ConvolutionParameters:
    """``activation(batch_norm(image * weight + bias)) + residual``, accumulated in float32. ``gelu`` is exact (erf).

    Where the ``activation_is_last``, it is that of the sum with the residual.

    ``n`` and ``channels`` are those of the output and of the image. Of the image's two axes each has its ``extents`` of
    a window, ``strides``, ``dilation``, and as many zeros ``before`` and ``after`` the image. ``residual`` has the
    output's dtype: ``out_dtype``, or ``dtype`` where that is ``None``.

    An image of few channels comes as ``lines``, in which all that one window reads of a line counts as one pixel with
    so many ``channels``: the elements from one window of a line to the next, and how many windows a line has. Zeros at
    its ends are in the line.
    """

    n: int
    channels: int
    extents: tuple[int, int]
    dtype: Literal["float16", "bfloat16"]
    strides: tuple[int, int] = (1, 1)
    dilation: tuple[int, int] = (1, 1)
    before: tuple[int, int] = (0, 0)
    after: tuple[int, int] = (0, 0)
    out_dtype: Literal["float16", "bfloat16"] | None = None
    bias: bool = False
    batch_norm: BatchNorm | None = None
    activation: Literal["relu", "gelu", "gelu_tanh", "silu"] | None = None
    activation_is_last: bool = False
    residual: bool = False
    lines: tuple[int, int] | None = None

    @property
    def stored_dtype(self) -> str:
        """The dtype of the output and of a residual."""
        return self.out_dtype or self.dtype

    @property
    def product(self) -> MatmulParameters:
        """The matrix product of the windows, as rows of ``[vertical, horizontal, depth]``, and the weight."""
        k = prod(self.extents) * self.depth
        return MatmulParameters(
            self.n,
            k,
            self.dtype,
            out_dtype=self.out_dtype,
            bias=self.bias,
            activation=self.activation,
            residual=self.residual,
        )

    @property
    def depth(self) -> int:
        """The columns of the weight for one pixel: its channels, and zeros up to a multiple of :data:`LEAST_DEPTH`.

        Without the zeros where windows have one pixel, whose channels end with the depth of the product.
        """
        return self.channels if prod(self.extents) == 1 else -(-self.channels // LEAST_DEPTH) * LEAST_DEPTH

    @property
    def spans(self) -> tuple[int, int]:
        """How many pixels a window reaches over along each axis, less one."""
        vertical, horizontal = (step * (extent - 1) for step, extent in zip(self.dilation, self.extents, strict=True))
        return vertical, horizontal
