"""ONNX Runtime's operators of quantized weights and small fusions against NumPy.

All that have a CPU kernel in ONNX Runtime were compared with it, too (``docs/conformance/README.md``).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from tests.frontend.onnx_execution import compiled, evaluated, parsed, run, run_all
from tkc.errors import InputError, UnsupportedModelError

RANDOM = np.random.default_rng(5)
MICROSOFT = {"domain": "com.microsoft"}
IMPORTS = ', "com.microsoft": 1'


def floats(*shape: int) -> np.ndarray:
    """Normal numbers in float32."""
    return RANDOM.normal(size=shape).astype("float32")


def codes(dtype: str, *shape: int) -> np.ndarray:
    """Random whole numbers of the whole range of a type."""
    limits = np.iinfo(dtype)
    return RANDOM.integers(limits.min, limits.max + 1, shape).astype(dtype)


def unpacked(packed: np.ndarray, bits: int) -> np.ndarray:
    """The numbers of bytes, the lowest bits first."""
    parts = [packed >> shift & ((1 << bits) - 1) for shift in range(0, 8, bits)]
    return np.stack(parts, -1).reshape(*packed.shape[:-1], -1).astype("float32")


@pytest.mark.daily(1)
@pytest.mark.parametrize("columns", [False, True])
def test_quantized_attention(columns: bool) -> None:
    """A projection of integers, by scales of columns or of all; causal, with keys of before and a mask of lengths."""
    x, weight, bias = codes("uint8", 2, 5, 8), codes("int8", 8, 24), floats(24)
    scale = np.abs(floats(24)) / 50 if columns else np.float32(0.02)
    zero = codes("int8", 24) if columns else np.int8(3)
    past, lengths = floats(2, 2, 2, 3, 4), np.array([8, 5], "int32")
    inputs = [x, weight, bias, np.float32(0.01), scale, lengths, np.uint8(120), zero, past]
    outputs: list[tuple[str, int | None]] = [("float32", None), ("float32", 5)]
    arrays = [np.asarray(each) for each in inputs]
    found = run_all("QAttention", arrays, (1, 2, 3, 4, 6, 7), outputs, num_heads=2, unidirectional=1, **MICROSOFT)
    total = (x.astype("int32") - 120) @ (weight.astype("int32") - zero)
    packed = total.astype("float32") * (np.float32(0.01) * scale) + bias
    query, *new = (part.reshape(2, 5, 2, 4).transpose(0, 2, 1, 3) for part in np.split(packed, 3, 2))
    key, value = (np.concatenate(pair, 2) for pair in zip(past, new, strict=True))
    scores = query @ key.swapaxes(2, 3) / 2 + np.where(np.arange(8) < lengths[:, None], 0, -10000)[:, None, None]
    scores = np.where(np.tri(5, 8, 3, dtype=bool), scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    result = (weights / weights.sum(-1, keepdims=True)) @ value
    assert np.allclose(found[0], result.transpose(0, 2, 1, 3).reshape(2, 5, 8), 1e-4, 1e-5)
    assert np.allclose(found[1], np.stack([key, value]), 1e-6, 1e-6)


@pytest.mark.daily(1)
@pytest.mark.parametrize("segments", [False, True])
def test_quantized_embeddings(segments: bool) -> None:
    """Three tables of bytes, or two; ones of the mask are counted."""
    ids, kinds, mask = (RANDOM.integers(0, count, (2, 4)).astype("int32") for count in (7, 2, 2))
    tables = [codes("uint8", rows, 8) for rows in (7, 6, 2)] + [codes("uint8", 8) for _ in range(2)]
    scales, zeros = np.linspace(0.01, 0.05, 5, dtype="float32"), np.arange(100, 105).astype("uint8")
    real = [(table.astype("float32") - zero) * scale for table, scale, zero in zip(tables, scales, zeros, strict=True)]
    given: list[Any] = [ids, kinds, *tables, mask, *map(np.asarray, scales), *map(np.asarray, zeros)]
    if not segments:
        for position in (1, 4, 10, 15):
            given[position] = None
    constant = [i for i in range(2, 18) if i != 7 and given[i] is not None]
    outputs: list[tuple[str, int | None]] = [("float32", 3), ("int32", 1)]
    found = run_all("QEmbedLayerNormalization", given, constant, outputs, epsilon=1e-5, **MICROSOFT)
    total = real[0][ids] + real[1][:4] + (real[2][kinds] if segments else 0)
    centered = total - total.mean(-1, keepdims=True)
    expected = centered / np.sqrt((centered**2).mean(-1, keepdims=True) + 1e-5) * real[3] + real[4]
    assert np.allclose(found[0], expected, 1e-4, 1e-5) and np.array_equal(found[1], mask.sum(1))


def test_embeddings_of_as_many_tokens_as_a_call_has() -> None:
    """Positions count from 0; more tokens than positions fail."""
    model = parsed(
        """g (int64[b, n] ids, float[7, 4] words, float[5, 4] places, float[4] g, float[4] c) => (float[b, n, 4] y) {
            y, m, sum = com.microsoft.EmbedLayerNormalization(ids, , words, places, , g, c) }""",
        imports=IMPORTS,
    )
    words, places, ids = floats(7, 4), floats(5, 4), RANDOM.integers(0, 7, (2, 3))
    call = compiled(model)
    found = call(ids, words, places, np.ones(4, "float32"), np.zeros(4, "float32"))[0]
    total = words[ids] + places[:3]
    centered = total - total.mean(-1, keepdims=True)
    assert np.allclose(found, centered / np.sqrt((centered**2).mean(-1, keepdims=True) + 1e-12), 1e-4, 1e-5)
    with pytest.raises(InputError, match="sizes"):
        call(RANDOM.integers(0, 7, (2, 6)), words, places, np.ones(4, "float32"), np.zeros(4, "float32"))


@pytest.mark.parametrize(("kind", "depth", "columns"), [(0, 32, 5), (1, 23, 3)])
def test_weights_of_bitsandbytes(kind: int, depth: int, columns: int) -> None:
    """FP4 and NF4, the higher four bits first; an odd number of weights, and a last block that is not full."""
    fp4 = [0, 0.0052083333, 0.6666667, 1, 0.3333333, 0.5, 0.1666667, 0.25]
    nf4 = [-1, -0.6961928, -0.52507305, -0.3949175, -0.28444138, -0.18477343, -0.091050036, 0,
           0.0795803, 0.1609302, 0.2461123, 0.33791524, 0.44070983, 0.562617, 0.72295684, 1]  # fmt: skip
    table = np.array([*fp4, *(-x for x in fp4)] if kind == 0 else nf4, "float32")
    total = depth * columns
    packed, largest = codes("uint8", (total + 1) // 2), np.abs(floats(math.ceil(total / 16)))
    x = floats(2, 3, depth)
    options = {"K": depth, "N": columns, "block_size": 16, "quant_type": kind}
    found = run("MatMulBnb4", [x, packed, largest], (1, 2), **options, **MICROSOFT)
    flat = np.stack([packed >> 4, packed & 15], 1).ravel()[:total]
    weight = (table[flat] * np.repeat(largest, 16)[:total]).reshape(columns, depth)
    assert np.allclose(found, x @ weight.T, 1e-4, 1e-5)


@pytest.mark.daily(2)
@pytest.mark.parametrize(("bits", "zeros"), [(4, True), (8, False), (2, True)])
def test_gathered_blocks(bits: int, zeros: bool) -> None:
    """A row that is out of range is zeros; zero points fill their last byte in part."""
    table, scales = codes("uint8", 7, 48 * bits // 8), floats(7, 3)
    points = codes("uint8", 7, math.ceil(3 * bits / 8)) if zeros else None
    indices = np.array([[0, -1, 6], [7, -8, 3]])
    options = {"bits": bits, "block_size": 16, "gather_axis": 0, "quantize_axis": 1}
    constant = (0, 2, 3) if zeros else (0, 2)
    found = run("GatherBlockQuantized", [table, indices, scales, points], constant, rank=3, **options, **MICROSOFT)
    shift = np.float32(1 << (bits - 1)) if points is None else np.repeat(unpacked(points, bits)[:, :3], 16, 1)
    real = (unpacked(table, bits) - shift) * np.repeat(scales, 16, 1)
    expected = np.where((np.abs(indices + 0.5) < 7.5)[..., None], real[indices.clip(-7, 6)], 0)
    np.testing.assert_array_equal(found, expected.astype("float32"))


@pytest.mark.daily(2)
@pytest.mark.parametrize(
    ("kind", "bits", "block", "zeros", "mixed"),
    [("swiglu", 4, 16, True, False), ("relu", 8, 0, False, True), ("gelu", 2, 0, True, False)],
)
def test_quantized_experts(kind: str, bits: int, block: int, zeros: bool, mixed: bool) -> None:
    """Scales of rows or of blocks, zero points, and weights of the outputs that are not the router's."""
    experts, hidden, inner, k = 4, 32, 48, 2
    wide = inner * 2 if kind == "swiglu" else inner
    x, logits, mixing = floats(2, 3, hidden), floats(6, experts), np.abs(floats(6, experts))

    def layer(rows: int, width: int) -> tuple[list[np.ndarray | None], np.ndarray]:
        packed, blocks = codes("uint8", experts, rows, width * bits // 8), width // block if block else 1
        scales = np.abs(floats(*((experts, rows, blocks) if block else (experts, rows)))) / 50
        bytes_ = math.ceil((blocks if block else rows) * bits / 8)
        points = codes("uint8", *((experts, rows, bytes_) if block else (experts, bytes_))) if zeros else None
        shift: Any = np.float32(1 << (bits - 1))
        if points is not None:
            shift = unpacked(points, bits)[..., : blocks if block else rows].reshape(experts, rows, blocks)
            shift = np.repeat(shift, width // blocks, 2)
        spread = np.repeat(scales.reshape(experts, rows, blocks), width // blocks, 2)
        return [packed, scales, floats(experts, rows), points], (unpacked(packed, bits) - shift) * spread

    (first, weight1), (second, weight2) = layer(wide, hidden), layer(hidden, inner)
    inputs = [x, logits, *first[:3], *second[:3], None, None, None, first[3], second[3]]
    inputs += [None, mixing] if mixed else []
    constant = [i for i in range(2, 13) if inputs[i] is not None]
    options = {"expert_weight_bits": bits, "k": k, "activation_type": kind, "weights_prepacked": 0}
    options |= {"block_size": block} if block else {}
    options |= {"swiglu_fusion": 1, "activation_alpha": 1.702, "activation_beta": 1.0} if kind == "swiglu" else {}
    found = run("QMoE", inputs, constant, **options, **MICROSOFT)
    activations = {
        "relu": lambda h: np.maximum(h, 0),
        "gelu": lambda h: 0.5 * h * (1 + np.tanh(np.sqrt(2 / np.pi) * (h + 0.044715 * h**3))),
        "swiglu": lambda h: h[::2] / (1 + np.exp(-1.702 * h[::2])) * (h[1::2] + 1),
    }
    expected = np.zeros((6, hidden))
    for row, numbers in enumerate(x.reshape(6, hidden).astype("float64")):
        chosen = np.argsort(-logits[row])[:k]
        weights = mixing[row, chosen] if mixed else np.exp(logits[row, chosen]) / np.exp(logits[row, chosen]).sum()
        for expert, weight in zip(chosen, weights, strict=True):
            made = activations[kind](weight1[expert] @ numbers + first[2][expert])  # type: ignore[index]
            expected[row] += weight * (weight2[expert] @ made + second[2][expert])  # type: ignore[index]
    np.testing.assert_allclose(found.reshape(6, hidden), expected, rtol=1e-3, atol=1e-3)


def test_forms_of_standard_operators() -> None:
    """One model of them, with a symbolic size."""
    model = parsed(
        """g (float[n, 9] x, float[4, 9] w, float[n, 9] s) =>
        (float[n, 4] r0, float[n, 4] r1, float[n, 4, 3] r2, float[n, 1, 9] r3, float[a, 12] r4, float[n, 9] r5,
         float[n, 9] r6, float[n, 4] r7, float[n, 4] r8) {
            r0 = com.microsoft.CDist<metric = "sqeuclidean">(x, w)
            r1 = com.microsoft.CDist<metric = "euclidean">(x, w)
            r2 = com.microsoft.UnfoldTensor<size = 3, step = 2, dim = -1>(x)
            one = Constant<value = int32[1] {1}>()
            r3 = com.microsoft.ExpandDims(x, one)
            pads = Constant<value_ints = [1, 0, 0, 3]>()
            value = Constant<value_floats = [2.0]>()
            r4 = com.microsoft.Pad(x, pads, value)
            r5 = com.microsoft.BiasSoftmax<axis = 1, is_inner_broadcast = 0>(x, s)
            r6 = com.microsoft.SwiGLU<limit = 1.0, activation_alpha = 1.7, activation_beta = 1.0>(x, s)
            t = Transpose(w)
            r7 = com.microsoft.GemmFastGelu(x, t)
            r8 = com.microsoft.FusedMatMulActivation<transB = 1, activation = "LeakyRelu", activation_alpha = 0.1>(x, w)
        }""",
        imports=IMPORTS,
    )
    x, w, s = floats(3, 9), floats(4, 9), floats(3, 9)
    squares = ((x[:, None] - w) ** 2).sum(2)
    biased = np.exp(x + s)
    gate, product = np.minimum(x, 1), x @ w.T
    expected = [
        squares, np.sqrt(squares), np.lib.stride_tricks.sliding_window_view(x, 3, 1)[:, ::2], x[:, None],
        np.pad(x, ((1, 0), (0, 3)), constant_values=2), biased / biased.sum(1, keepdims=True),
        gate / (1 + np.exp(-1.7 * gate)) * (np.clip(s, -1, 1) + 1),
        product / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (product + 0.044715 * product**3))),
        np.where(product < 0, product * 0.1, product),
    ]  # fmt: skip
    for found, wanted in zip(evaluated(model, x, w, s), expected, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("last", [True, False])
def test_group_normalization_of_a_sum(last: bool) -> None:
    """With one number for an image's channel and a bias, and SiLU; and the sum."""
    x, skip, bias, scale, shift = floats(2, 3, 4, 8), floats(2, 8), floats(8), floats(8), floats(8)
    given = x if last else np.ascontiguousarray(x.transpose(0, 3, 1, 2))
    outputs: list[tuple[str, int | None]] = [("float32", None), ("float32", None)]
    options = {"groups": 4, "activation": 1, "channels_last": int(last), **MICROSOFT}
    found = run_all("SkipGroupNorm", [given, scale, shift, skip, bias], (1, 2), outputs, **options)
    total = x + skip[:, None, None] + bias
    groups = total.reshape(2, 12, 4, 2)
    mean, variance = groups.mean((1, 3), keepdims=True), groups.var((1, 3), keepdims=True)
    normal = ((groups - mean) / np.sqrt(variance + 1e-5)).reshape(x.shape) * scale + shift
    for one, other in zip(found, (normal / (1 + np.exp(-normal)), total), strict=True):
        other = other if last else other.transpose(0, 3, 1, 2)
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("operator", "inputs", "options", "told"),
    [
        ("QMoE", 7, {"quant_type": "fp4"}, "quant_type 'fp4'"),
        ("QMoE", 7, {"weights_prepacked": 1}, "prepacked"),
        ("MatMulBnb4", 3, {"K": 4, "N": 4, "block_size": 16, "quant_type": 2}, "quant_type 2"),
        ("CDist", 2, {"metric": "cosine"}, "metric 'cosine'"),
        ("QAttention", 6, {"num_heads": 2, "do_rotary": 1}, "do_rotary"),
    ],
)
def test_what_is_not_supported_is_named(operator: str, inputs: int, options: dict[str, Any], told: str) -> None:
    """By the attribute."""
    arrays = [floats(2, 4) for _ in range(inputs)]
    with pytest.raises(UnsupportedModelError, match=told):
        run(operator, arrays, **options, **MICROSOFT)


def test_rotations_of_gemma() -> None:
    """Of queries and keys, whose turned halves are given."""
    angles, parts = floats(2, 5, 4), [floats(2, 3, 5, 4) for _ in range(4)]
    outputs: list[tuple[str, int | None]] = [("float32", 4), ("float32", 4)]
    found = run_all("GemmaRotaryEmbedding", [angles, *parts], (), outputs, **MICROSOFT)
    cosines, sines = np.cos(angles)[:, None], np.sin(angles)[:, None]
    for one, plain, turned in zip(found, parts[::2], parts[1::2], strict=True):
        np.testing.assert_allclose(one, plain * cosines + turned * sines, rtol=1e-5, atol=1e-6)


def test_inverses_are_pytorchs() -> None:
    """Which the report names."""
    x = floats(2, 4, 4)
    np.testing.assert_allclose(run("Inverse", [x], **MICROSOFT), np.linalg.inv(x), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("operator", ["NhwcConv", "NhwcFusedConv"])
def test_convolutions_of_images_with_their_channels_last(operator: str) -> None:
    """Weights are as those of ``Conv``; the fused one adds a tensor before its activation."""
    x, weight, bias, added = floats(2, 7, 9, 4), floats(6, 2, 3, 3), floats(6), floats(2, 4, 5, 6)
    options: dict[str, Any] = {"group": 2, "strides": [2, 2], "pads": [1, 1, 1, 1], **MICROSOFT}
    given = [x, weight, bias]
    first = torch.from_numpy(x).movedim(-1, 1)
    expected = F.conv2d(first, torch.from_numpy(weight), torch.from_numpy(bias), 2, 1, groups=2).movedim(1, -1)
    if operator == "NhwcFusedConv":
        given, options["activation"] = [*given, added], "Relu"
        expected = F.relu(expected + torch.from_numpy(added))
    np.testing.assert_allclose(run(operator, given, **options), expected.numpy(), rtol=1e-4, atol=1e-5)
