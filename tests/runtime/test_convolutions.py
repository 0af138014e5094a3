"""Weights that oneDNN has packed, for images of several shapes."""

from __future__ import annotations

import json

import pytest
import torch

from tkc.runtime import convolutions
from tkc.runtime.convolutions import MOST_SHAPES, Packed, PackedWeight, convolve

pytestmark = pytest.mark.skipif(not convolutions._has_onednn(), reason="this PyTorch has no oneDNN")

DESCRIPTION = json.dumps(
    {
        "strides": [1, 1],
        "padding": [1, 1],
        "dilation": [1, 1],
        "groups": 1,
        "transposed": False,
        "output_padding": [0, 0],
        "is_constant": True,
    }
)


def packed_for(weight: PackedWeight, size: int) -> torch.Tensor | None:
    """What ``weight`` is for images of ``size``."""
    pack = lambda image, plain: torch.ops.mkldnn._reorder_convolution_weight(  # noqa: E731
        plain, [1, 1], [1, 1], [1, 1], 1, list(image.shape)
    )
    found: torch.Tensor | None = weight.of(torch.zeros(1, 96, size, size), pack)
    return found


def test_a_shape_that_comes_again_has_a_weight_of_its_own() -> None:
    """The first one at once, others from their second call on; all of them stay."""
    weight = PackedWeight(torch.randn(24, 96, 3, 3))
    first = packed_for(weight, 8)
    assert first is not None
    assert packed_for(weight, 40) is None
    second = packed_for(weight, 40)
    assert second is not None and second is not first
    assert packed_for(weight, 8) is first
    assert packed_for(weight, 40) is second


def test_shapes_by_turns_are_packed() -> None:
    """Sizes that change from call to call come again, too."""
    weight = PackedWeight(torch.randn(24, 96, 3, 3))
    found = [[packed_for(weight, size) is not None for size in (8, 40, 20)] for _ in range(3)]
    assert found[-1] == [True, True, True]


def test_weights_of_so_many_shapes_are_kept() -> None:
    """What was packed first goes."""
    weight = PackedWeight(torch.randn(24, 96, 3, 3))
    for size in range(4, 4 + MOST_SHAPES + 1):
        packed_for(weight, size), packed_for(weight, size)
    assert len(weight._packed) == MOST_SHAPES
    assert packed_for(weight, 5) is not None
    assert packed_for(weight, 4) is None


def test_results_are_pytorchs_at_every_shape() -> None:
    """By turns, with weights that are packed and with the plain one."""
    weight, packed = torch.randn(24, 96, 3, 3), Packed()
    for size in (8, 40, 40, 8, 17, 8, 17, 17, 1, 40):
        image = torch.randn(2, size, size + 1, 96)
        found = convolve(packed, DESCRIPTION, image, weight)
        expected = torch.nn.functional.conv2d(image.movedim(-1, 1), weight, padding=1).movedim(1, -1)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    assert len(packed) == 1
