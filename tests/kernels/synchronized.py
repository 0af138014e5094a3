"""The kernels for Hopper whose synchronization is checked: one configuration of each kind that a family has.

A family without a row here is checked by the first of its own cases.

Sizes are such that each ring of stages is gone through more than once, and persistent blocks have several tiles. The
tilings have few columns where the number of columns changes nothing but the time that it takes to generate the code.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from tests.kernels.cuda_threads import Launch
from tests.kernels.extremes import CASES, of_checked
from tkc.kernels import SPECS, KernelRequest, Target
from tkc.kernels.attention.latent_spec import LatentConfiguration
from tkc.kernels.attention.parameters import AttentionParameters, LatentParameters
from tkc.kernels.attention.spec import DecodeConfiguration, PrefillConfiguration
from tkc.kernels.batched_matmul.parameters import BatchedMatmulParameters
from tkc.kernels.convolution.parameters import ConvolutionParameters
from tkc.kernels.gated_matmul.parameters import GatedMatmulParameters
from tkc.kernels.grouped_matmul.parameters import GroupedMatmulParameters
from tkc.kernels.matmul.parameters import BatchNorm, MatmulParameters
from tkc.kernels.matmul.tiling import Tiling
from tkc.kernels.scaled_matmul.parameters import ScaledMatmulParameters
from tkc.kernels.scaled_matmul.spec import ScaledTiling

HOPPER = Target.parse("cuda:sm_90a")
_ROWS = 9000
_SIZES = {"m": _ROWS, "tokens": 7000}
_OFFSETS = np.array([2000, 2000, 5000, 5100, 8800])
_ROW_NUMBERS = np.arange(_ROWS) % 7000
_GROUPED = {"offsets": _OFFSETS, "rows": _ROW_NUMBERS}
_ATTENTION = AttentionParameters(4, 2, 64, 64, "bfloat16", 0.125, causal="bottom_right", sinks=True)
_PREFILL = {"batch": 3, "queries": 128 * 23, "keys": 700}
_LATENT = LatentParameters(64, 256, 64, "bfloat16", 0.1)


@dataclass(frozen=True)
class Checked:
    """A kernel by its parameters and configuration (none: the first), and the sizes and tensors it is run with."""

    kernel: str
    parameters: Any
    configuration: Any
    sizes: Mapping[str, int]
    tensors: Mapping[str, Any] = field(default_factory=dict)
    cluster: int = 1

    @property
    def request(self) -> KernelRequest:
        """What is generated."""
        request = KernelRequest(self.kernel, self.parameters, self.configuration, HOPPER)
        if self.configuration is None:
            first = request.spec.configurations(self.parameters, HOPPER)[0]
            return KernelRequest(self.kernel, self.parameters, first, HOPPER)
        return request

    def launch(self, boxes: Mapping[str, int]) -> Launch:
        """How it is run; ``boxes`` are the bytes that each descriptor's copies move."""
        return Launch(self.sizes, boxes, self.tensors, self.cluster)


def _case(name: str, **tensors: Any) -> Checked:
    case = CASES[name]
    return Checked(case.kernel, case.parameters, None, {**case.usual, "token_blocks": 1}, tensors)


_EPILOGUE: dict[str, Any] = {"bias": True, "activation": "relu"}

_NORMALIZED = ConvolutionParameters(
    *(128, 192, (1, 1), "bfloat16"),
    batch_norm=BatchNorm("bfloat16", 1e-5),
    activation="relu",
    activation_is_last=True,
    residual=True,
)

_CHOSEN = {
    "convolution": _case("convolution"),
    "convolution, normalized": Checked(
        "convolution",
        _NORMALIZED,
        Tiling(128, 64, 64, stages=4, threads=256, blocks=32),
        {"batch": 1, "height": 1, "width": _ROWS, "m": _ROWS},
    ),
    "matmul, persistent": Checked(
        "matmul",
        MatmulParameters(128, 384, "bfloat16", **_EPILOGUE, residual=True),
        Tiling(128, 64, 64, stages=4, threads=256, blocks=32),
        _SIZES,
    ),
    "matmul, persistent, shared depth": Checked(
        "matmul", MatmulParameters(64, 192, "float32"), Tiling(64, 16, 64, stages=4, threads=256, blocks=32), _SIZES
    ),
    "matmul, wgmma": Checked(
        "matmul",
        MatmulParameters(256, 640, "bfloat16", **_EPILOGUE, residual=True),
        Tiling(128, 128, 64, stages=4, threads=256),
        _SIZES,
    ),
    "matmul, cluster": Checked(
        "matmul",
        MatmulParameters(128, 1280, "bfloat16", **_EPILOGUE),
        Tiling(64, 64, 64, stages=4, threads=128, splits=2),
        _SIZES,
        cluster=2,
    ),
    "matmul, mma": Checked(
        "matmul", MatmulParameters(128, 1280, "bfloat16"), Tiling(32, 64, 128, stages=4, threads=128), _SIZES
    ),
    "matmul, mma, cluster": Checked(
        "matmul",
        MatmulParameters(128, 2560, "bfloat16"),
        Tiling(16, 64, 128, stages=4, threads=128, splits=2),
        _SIZES,
        cluster=2,
    ),
    "batched, persistent": Checked(
        "matmul.batched",
        BatchedMatmulParameters(128, 384, "bfloat16"),
        Tiling(128, 128, 64, stages=4, threads=256, blocks=32),
        {"batch": 3, "m": 3000},
    ),
    "batched, mma": Checked(
        "matmul.batched",
        BatchedMatmulParameters(128, 1280, "bfloat16"),
        Tiling(32, 64, 128, stages=4, threads=128),
        {"batch": 3, "m": 3000},
    ),
    "batched, sizes of calls": Checked(
        "matmul.batched",
        BatchedMatmulParameters(None, None, "bfloat16", "kn"),
        None,
        {"batch": 3, "m": 300, "n": 200, "k": 1280},
    ),
    "gated, wgmma": Checked(
        "matmul.gated",
        GatedMatmulParameters(256, 640, "bfloat16"),
        Tiling(128, 128, 64, stages=4, threads=256),
        _SIZES,
    ),
    "gated, mma": Checked(
        "matmul.gated",
        GatedMatmulParameters(256, 1280, "bfloat16"),
        Tiling(32, 32, 128, stages=4, threads=128),
        _SIZES,
    ),
    "grouped, persistent": Checked(
        "matmul.grouped",
        GroupedMatmulParameters(5, 128, 384, "bfloat16"),
        Tiling(128, 128, 64, stages=4, threads=256, blocks=32),
        _SIZES,
        _GROUPED,
    ),
    "grouped, persistent, mma": Checked(
        "matmul.grouped",
        GroupedMatmulParameters(5, 64, 768, "bfloat16"),
        Tiling(32, 64, 128, stages=4, threads=128, blocks=64),
        _SIZES,
        _GROUPED,
    ),
    "grouped, gathered": Checked(
        "matmul.grouped",
        GroupedMatmulParameters(5, 128, 384, "bfloat16", gated="silu", rows="int64"),
        Tiling(128, 128, 64, stages=4, threads=256, blocks=32),
        _SIZES,
        _GROUPED,
    ),
    "grouped, wgmma": Checked(
        "matmul.grouped",
        GroupedMatmulParameters(5, 128, 640, "bfloat16"),
        Tiling(128, 128, 64, stages=4, threads=256),
        _SIZES,
        _GROUPED,
    ),
    "grouped, mma": Checked(
        "matmul.grouped",
        GroupedMatmulParameters(5, 128, 1280, "bfloat16"),
        Tiling(32, 64, 128, stages=4, threads=128),
        _SIZES,
        _GROUPED,
    ),
    "scaled, persistent": Checked(
        "matmul.scaled",
        ScaledMatmulParameters(128, 768),
        ScaledTiling(128, 128, 128, stages=4, threads=256, blocks=32),
        _SIZES,
    ),
    "scaled, wgmma": Checked(
        "matmul.scaled", ScaledMatmulParameters(256, 1280), ScaledTiling(128, 128, 128, stages=4, threads=256), _SIZES
    ),
    "scaled, mma": Checked(
        "matmul.scaled", ScaledMatmulParameters(128, 2560), ScaledTiling(32, 64, 128, stages=8, threads=128), _SIZES
    ),
    "prefill, persistent": Checked(
        "attention.prefill",
        _ATTENTION,
        PrefillConfiguration(128, 128, 2, 256, overlaps=True, blocks=132),
        _PREFILL,
    ),
    "prefill, padding": Checked(
        "attention.prefill",
        replace(_ATTENTION, mask="bool", mask_per_batch=True, mask_per_query=False),
        PrefillConfiguration(128, 128, 2, 256, overlaps=True, blocks=132),
        _PREFILL,
    ),
    "prefill, overlapped": Checked(
        "attention.prefill", _ATTENTION, PrefillConfiguration(128, 128, 2, 256, overlaps=True), _PREFILL
    ),
    "prefill, pipelined": Checked(
        "attention.prefill", _ATTENTION, PrefillConfiguration(64, 64, 2, 128), {**_PREFILL, "queries": 64}
    ),
    "decode": Checked(
        "attention.decode",
        AttentionParameters(4, 2, 64, 64, "bfloat16", 0.125, sinks=True, mask="bool"),
        DecodeConfiguration(64, 4, 128),
        {"batch": 2, "keys": 1500},
    ),
    "latent, alternating": Checked(
        "attention.latent_decode",
        _LATENT,
        LatentConfiguration(splits=1, threads=384, alternating=True),
        {"batch": 2, "keys": 600},
    ),
    "latent, pipelined": Checked(
        "attention.latent_decode",
        LatentParameters(5, 128, 64, "bfloat16", 0.1),
        LatentConfiguration(16, 64, 4, stages=2, threads=128),
        {"batch": 2, "keys": 2400},
    ),
    "permute": _case("permute", experts=np.arange(80) % 9, counts=np.full(64 * 9, 3)),
    "swiglu, a scale per token": _case("swiglu, a scale per token"),
    "swiglu, a scale per block": _case("swiglu, a scale per block"),
    "swiglu, a scale per channel": _case("swiglu, a scale per channel"),
    "gate": _case("gate"),
    "combine": _case("combine"),
    "rms": _case("rms"),
    "quantized rms, a scale per token": _case("quantized rms, a scale per token"),
    "rotary": _case("rotary"),
}


def of_cases(kernels: Collection[str]) -> dict[str, Checked]:
    """The first case of each of ``kernels``, by its name."""
    first: dict[str, Checked] = {}
    for case in of_checked(kernels).values():
        first.setdefault(case.kernel, Checked(case.kernel, case.parameters, None, case.usual))
    return first


CHECKED = _CHOSEN | of_cases(set(SPECS) - {checked.kernel for checked in _CHOSEN.values()})
