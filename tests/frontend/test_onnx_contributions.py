"""ONNX Runtime's own operators against NumPy."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx
import pytest

from tests.frontend.onnx_execution import compiled, evaluated, parsed, run, run_all
from tests.passes.reference_execution import substituted
from tkc.errors import UnsupportedModelError
from tkc.frontend.onnx.importer import import_onnx
from tkc.passes.canonical.canonicalize import Canonicalize

RANDOM = np.random.default_rng(31)
MICROSOFT = {"domain": "com.microsoft"}
IMPORTS = ', "com.microsoft": 1'


def floats(*shape: int) -> np.ndarray:
    """Normal numbers in float32."""
    return RANDOM.normal(size=shape).astype("float32")


def heads(tensor: np.ndarray, count: int) -> np.ndarray:
    """``(batch, length, hidden)`` as ``(batch, heads, length, width)``."""
    batch, length, hidden = tensor.shape
    return tensor.reshape(batch, length, count, hidden // count).transpose(0, 2, 1, 3)


def attended(
    query: np.ndarray,
    key: np.ndarray,
    value: np.ndarray,
    added: Any = 0,
    scale: float | None = None,
    cap: float = 0,
    sink: np.ndarray | None = None,
) -> np.ndarray:
    """Attention of ``(batch, heads, length, width)``, with its heads side by side, in float64.

    A sink, a score for each head, counts among the weights, and has no value.
    """
    groups = query.shape[1] // key.shape[1]
    query, key, value = (np.repeat(x.astype("float64"), n, 1) for x, n in ((query, 1), (key, groups), (value, groups)))
    scores = query @ key.swapaxes(2, 3) * (scale or query.shape[3] ** -0.5)
    scores = (cap * np.tanh(scores / cap) if cap else scores) + added
    weights = np.exp(scores)
    rest = 0 if sink is None else np.exp(sink.astype("float64"))[:, None, None]
    result = (weights / (weights.sum(-1, keepdims=True) + rest)) @ value
    return result.transpose(0, 2, 1, 3).reshape(query.shape[0], query.shape[2], -1)


def rotated(tensor: np.ndarray, cosines: np.ndarray, sines: np.ndarray, interleaved: bool) -> np.ndarray:
    """Pairs of numbers, neighbours or of both halves, turned by angles ``(batch, length, half)``."""
    half = cosines.shape[-1]
    ways = (slice(0, None, 2), slice(1, None, 2)) if interleaved else (slice(0, half), slice(half, None))
    cosines, sines = cosines[:, None], sines[:, None]
    result = np.empty_like(tensor)
    first, second = (tensor[..., way] for way in ways)
    result[..., ways[0]] = first * cosines - second * sines
    result[..., ways[1]] = first * sines + second * cosines
    return result


CAUSAL = np.where(np.tri(5, 8, 3, dtype=bool), 0, -np.inf)


def test_attention_of_many_heads() -> None:
    """A bias, a mask of keys, a term of the scores and keys of before, causal."""
    query, key, value = (floats(2, 5, 12) for _ in range(3))
    bias, term, past = floats(36), floats(1, 3, 5, 8), [floats(2, 3, 3, 4) for _ in range(2)]
    mask = (RANDOM.random((2, 8)) > 0.3).astype("int32")
    inputs = [query, key, value, bias, mask, term, *past]
    outputs: list[tuple[str, int | None]] = [("float32", None), ("float32", 4), ("float32", 4)]
    found = run_all("MultiHeadAttention", inputs, (), outputs, num_heads=3, unidirectional=1, **MICROSOFT)
    parts = [heads(x + b, 3) for x, b in zip((query, key, value), np.split(bias, 3), strict=True)]
    caches = [np.concatenate([old, new], 2) for old, new in zip(past, parts[1:], strict=True)]
    added = term + np.where(mask, 0, -10000)[:, None, None] + CAUSAL
    assert np.allclose(found[0], attended(parts[0], *caches, added), 1e-4, 1e-5)
    assert all(np.allclose(one, other) for one, other in zip(found[1:], caches, strict=True))


@pytest.mark.daily(2)
@pytest.mark.parametrize("packed", [0, 1])
def test_packed_operands(packed: int) -> None:
    """Queries, keys and values in one tensor, or keys and values; a mask of lengths."""
    query, both = floats(2, 5, 12), floats(2, 7, 3, 2, 4)
    triple, lengths = floats(2, 5, 3, 3, 4), np.array([3, 5], "int32")
    inputs = [triple] if packed else [query, both]
    masked = [*inputs, *[None] * (4 - len(inputs)), lengths]
    found = run("MultiHeadAttention", masked, (), rank=3, num_heads=3, scale=0.4, **MICROSOFT)
    parts = [heads(query, 3), *np.moveaxis(both, 3, 0).swapaxes(2, 3)]
    parts = list(np.moveaxis(triple, 3, 0).swapaxes(2, 3)) if packed else parts
    added = np.where(np.arange(parts[1].shape[2]) < lengths[:, None], 0, -10000)[:, None, None]
    assert np.allclose(found, attended(*parts, added, 0.4), 1e-4, 1e-5)


def test_attention_with_its_projection() -> None:
    """Values wider than keys; past and present in one tensor."""
    x, weight, bias = floats(2, 5, 7), floats(7, 36), floats(36)
    past = floats(2, 2, 3, 3, 4)
    outputs: list[tuple[str, int | None]] = [("float32", None), ("float32", 5)]
    inputs = [x, weight, bias, None, past]
    found = run_all("Attention", inputs, (), outputs, num_heads=3, unidirectional=1, **MICROSOFT)
    query, key, value = (heads(part, 3) for part in np.split(x @ weight + bias, 3, 2))
    present = np.concatenate([past, np.stack([key, value])], 3)
    assert np.allclose(found[0], attended(query, *present, CAUSAL), 1e-4, 1e-5)
    assert np.allclose(found[1], present, 1e-5, 1e-5)


@pytest.mark.daily(2)
@pytest.mark.parametrize(
    ("length", "buffer", "packed", "options"),
    [
        (1, 6, False, {}),
        (3, 6, True, {"rotary_interleaved": 1, "softcap": 5.0}),
        (1, 12, False, {"local_window_size": 3, "scale": 0.3}),
        (1, 6, False, {"sink": True}),
        (3, 12, True, {"smooth_softmax": 1, "softcap": 2.0}),
        (3, 6, True, {"sink": True, "smooth_softmax": 1, "local_window_size": 3, "softcap": 2.0, "scale": 1.5}),
    ],
)
def test_grouped_queries(length: int, buffer: int, packed: bool, options: dict[str, Any]) -> None:
    """Sequences of several lengths, rotation inside, a cache that grows, and one that is large enough; sinks."""
    options = dict(options)
    sink = 3 * floats(4) if options.pop("sink", False) else None
    last = np.array([6 + length, 3 + length])
    new, past = floats(2, length, 8 * 4), [floats(2, 2, buffer, 4) for _ in range(2)]
    angles = np.outer(np.arange(20), [1, 0.1]).astype("float32")
    caches = [np.cos(angles), np.sin(angles)]
    parts = np.split(new, [16, 24], 2)
    inputs = [new, None, None] if packed else parts
    sizes = [(last - 1).astype("int32"), np.array(6 + length, "int32")]
    outputs: list[tuple[str, int | None]] = [("float32", 3), ("float32", 4), ("float32", 4)]
    given = {"num_heads": 4, "kv_num_heads": 2, "do_rotary": 1, **options, **MICROSOFT}
    given_sink = [] if sink is None else [None, None, sink]
    found = run_all("GroupQueryAttention", [*inputs, *past, *sizes, *caches, *given_sink], (6,), outputs, **given)
    positions = (last - length)[:, None] + np.arange(length)
    query, key, value = (heads(part, count) for part, count in zip(parts, (4, 2, 2), strict=True))
    interleaved = bool(options.get("rotary_interleaved"))
    query, key = (rotated(tensor, *(cache[positions] for cache in caches), interleaved) for tensor in (query, key))
    total = max(buffer, 6 + length)
    grown = [np.zeros((2, 2, total, 4), "float32") for _ in range(2)]
    for whole, old, added in zip(grown, past, (key, value), strict=True):
        whole[:, :, :buffer] = old
        for b in range(2):
            whole[b, :, last[b] - length : last[b]] = added[b]
    column = np.arange(total)
    seen = column <= positions[..., None]
    if "local_window_size" in options:
        seen &= column > positions[..., None] - 3
    hidden = np.where(seen, 0, -np.inf)[:, None]
    seen_sink = np.zeros(4) if sink is None and "smooth_softmax" in options else sink
    expected = attended(query, *grown, hidden, options.get("scale"), options.get("softcap", 0), seen_sink)
    assert np.allclose(found[0], expected, 1e-4, 1e-5)
    for one, other in zip(found[1:], grown, strict=True):
        for b in range(2):
            assert np.allclose(one[b, :, : last[b]], other[b, :, : last[b]], 1e-5, 1e-5)


@pytest.mark.daily(2)
@pytest.mark.parametrize("interleaved", [0, 1])
def test_rotary_embedding(interleaved: int) -> None:
    """The first numbers of each head, by positions of each token."""
    x, positions = floats(2, 5, 36), RANDOM.integers(0, 20, (2, 5))
    angles = np.outer(np.arange(20), [1, 0.1, 0.01, 0.001]).astype("float32")
    caches = [np.cos(angles), np.sin(angles)]
    options = {"interleaved": interleaved, "rotary_embedding_dim": 8, "num_heads": 3, **MICROSOFT}
    found = run("RotaryEmbedding", [x, positions, *caches], (2, 3), **options)
    tensor = heads(x, 3)
    tensor[..., :8] = rotated(tensor[..., :8].copy(), *(cache[positions] for cache in caches), bool(interleaved))
    assert np.allclose(found, tensor.transpose(0, 2, 1, 3).reshape(2, 5, 36), 1e-5, 1e-5)


@pytest.mark.daily(2)
@pytest.mark.parametrize(
    ("bits", "zeros", "grouped"),
    [
        (4, "packed", False),
        (4, "floats", False),
        (8, None, False),
        (2, "packed", False),
        (4, None, True),
        (4, "packed", True),
        (4, "floats", True),
        (8, "packed", True),
        (2, "packed", True),
    ],
)
def test_weights_of_few_bits(bits: int, zeros: str | None, grouped: bool) -> None:
    """A last block that is not full, zero points as the weights or as floats, and none; rows of any block's scale."""
    depth, columns, block = 72, 7, 32
    codes = RANDOM.integers(0, 1 << bits, (columns, 3, block))
    points = RANDOM.integers(0, 1 << bits, (columns, 3))

    def packed(numbers: np.ndarray) -> np.ndarray:
        each = 8 // bits
        padded = np.pad(numbers, [(0, 0)] * (numbers.ndim - 1) + [(0, -numbers.shape[-1] % each)])
        parts = padded.reshape(*padded.shape[:-1], -1, each) << (np.arange(each) * bits)
        return parts.sum(-1).astype("uint8")

    scales, x, bias = floats(columns, 3), floats(2, 3, depth), floats(columns)
    given = {"packed": packed(points), "floats": points.astype("float32"), None: None}[zeros]
    groups = RANDOM.permutation(np.arange(depth) // block) if grouped else np.arange(depth) // block
    inputs = [x, packed(codes), scales, given, groups.astype("int32") if grouped else None, bias]
    constant = [i for i in range(1, 6) if inputs[i] is not None]
    found = run("MatMulNBits", inputs, constant, K=depth, N=columns, bits=bits, block_size=block, **MICROSOFT)
    offsets = points if zeros else np.full_like(points, 1 << (bits - 1))
    weight = (codes.reshape(columns, -1)[:, :depth] - offsets[:, groups]) * scales[:, groups]
    assert np.allclose(found, x @ weight.T + bias, 1e-4, 1e-3)


@pytest.mark.parametrize(
    ("groups", "constant", "bits", "told"),
    [
        (np.full(64, 2), True, 4, "g_idx from 2 to 2 for 2 blocks"),
        (np.full(64, -1), True, 4, "g_idx from -1 to -1"),
        (np.zeros(63), True, 4, "63 numbers in g_idx for 64 rows"),
        (np.zeros(64), False, 4, "needs g_idx to be a constant"),
        (np.zeros(64), True, 5, "has weights of 5 bits; export the model with 2, 4 or 8 bits"),
    ],
)
def test_groups_that_are_not_there_are_refused(groups: np.ndarray, constant: bool, bits: int, told: str) -> None:
    """A scale that does not exist is none that is read."""
    inputs = [floats(2, 64), np.zeros((3, 2, 16), "uint8"), floats(3, 2), None, groups.astype("int32")]
    with pytest.raises(UnsupportedModelError, match=told):
        run("MatMulNBits", inputs, (1, 2, 4) if constant else (1, 2), K=64, N=3, bits=bits, block_size=32, **MICROSOFT)


def test_fused_operators() -> None:
    """One model of those that are elementwise, normalize, or transpose."""
    model = parsed(
        """g (float[n, 5, 8] x, float[n, 5, 8] s, float[8] g, float[8] b) =>
        (float[n, 5, 8] r0, float[n, 5, 8] r1, float[n, 5, 8] r2, float[n, 5, 8] r3, float[n, 5, 8] r4,
         float[n, 5, 5] r5, float[n, 5, 4] r6, float[n, 5, 8] r7) {
            r0, m, v, r1 = com.microsoft.SkipLayerNormalization <epsilon = 0.001> (x, s, g, b, b)
            r2, m2, v2, r3 = com.microsoft.SkipSimplifiedLayerNormalization <epsilon = 0.001> (x, s, g, b)
            r4 = com.microsoft.QuickGelu <alpha = 2.0> (x)
            r5 = com.microsoft.FusedMatMul <transB = 1, alpha = 0.5> (x, s)
            r6 = com.microsoft.BiasSplitGelu (x, b)
            r7 = SimplifiedLayerNormalization <axis = -1, epsilon = 0.001> (x, g)
        }""".replace("r0, m, v, r1", "r0, , , r1").replace("r2, m2, v2, r3", "r2, , , r3"),
        imports=IMPORTS,
    )
    x, s, g, b = floats(2, 5, 8), floats(2, 5, 8), floats(8), floats(8)
    found = evaluated(model, x, s, g, b)
    total = x + s + b
    centered = total - total.mean(-1, keepdims=True)
    gelu = np.vectorize(lambda number: number / 2 * (1 + math.erf(number / math.sqrt(2))))

    def scaled(numbers: np.ndarray) -> np.ndarray:
        return numbers / np.sqrt((numbers**2).mean(-1, keepdims=True) + 0.001) * g

    shifted = x + b
    expected = [
        scaled(centered) + b, total, scaled(total), total, x / (1 + np.exp(-2 * x)), x @ s.swapaxes(1, 2) / 2,
        shifted[..., :4] * gelu(shifted[..., 4:]), scaled(x),
    ]  # fmt: skip
    for one, other in zip(found, expected, strict=True):
        assert np.allclose(one, other, 1e-4, 1e-5)


def test_fused_convolution() -> None:
    """A tensor that is added before the activation."""
    x, weight, bias, added = floats(1, 3, 6, 6), floats(4, 3, 3, 3), floats(4), floats(1, 4, 4, 4)
    options = {"activation": "LeakyRelu", "activation_params": [0.25], **MICROSOFT}
    found = run("FusedConv", [x, weight, bias, added], **options)
    windows = np.lib.stride_tricks.sliding_window_view(x, (3, 3), (2, 3))
    total = np.einsum("nchwij,ocij->nohw", windows, weight) + bias[:, None, None] + added
    assert np.allclose(found, np.where(total < 0, total / 4, total), 1e-4, 1e-5)


ACTIVATIONS: dict[str, tuple[tuple[float, ...], tuple[str, ...], Any]] = {
    "Celu": ((0.3,), ("alpha",), lambda x, a: np.where(x < 0, a * np.expm1(x / a), x)),
    "Elu": ((0.3,), ("alpha",), lambda x, a: np.where(x < 0, a * np.expm1(x), x)),
    "HardSigmoid": ((0.3, 0.4), ("alpha", "beta"), lambda x, a, b: np.clip(a * x + b, 0, 1)),
    "HardSwish": ((), (), lambda x: x * np.clip(x / 6 + 0.5, 0, 1)),
    "LeakyRelu": ((0.3,), ("alpha",), lambda x, a: np.where(x < 0, a * x, x)),
    "ParametricSoftplus": ((0.3, 0.4), ("alpha", "beta"), lambda x, a, b: a * np.log1p(np.exp(b * x))),
    "Relu": ((), (), lambda x: np.maximum(x, 0)),
    "ScaledTanh": ((0.3, 0.4), ("alpha", "beta"), lambda x, a, b: a * np.tanh(b * x)),
    "Selu": ((0.3, 0.4), ("alpha", "gamma"), lambda x, a, g: g * np.where(x < 0, a * np.expm1(x), x)),
    "Sigmoid": ((), (), lambda x: 1 / (1 + np.exp(-x))),
    "Silu": ((), (), lambda x: x / (1 + np.exp(-x))),
    "Softplus": ((), (), lambda x: np.log1p(np.exp(x))),
    "Softsign": ((), (), lambda x: x / (1 + abs(x))),
    "Tanh": ((), (), np.tanh),
    "ThresholdedRelu": ((0.3,), ("alpha",), lambda x, a: np.where(x > a, x, 0)),
}
"""Numbers, their names and the function."""


@pytest.mark.daily(3)
@pytest.mark.parametrize("kind", sorted(ACTIVATIONS))
def test_fused_activations(kind: str) -> None:
    """Convolutions have the numbers of their activations in order, matmuls by name."""
    numbers, names, function = ACTIVATIONS[kind]
    ordered = f"activation_params = [{', '.join(map(str, numbers))}]" if numbers else ""
    named = "".join(f", activation_{name} = {number}" for name, number in zip(names, numbers, strict=True))
    model = parsed(
        f"""g (float[n, 6] x, float[6, 3] w, float[n, 6, 1, 1] i, float[3, 6, 1, 1] v, float[n, 1, 1, 6] j) =>
        (float[n, 3] r0, float[n, 3] r1, float[n, 3, 1, 1] r2, float[n, 1, 1, 3] r3) {{
            r0 = com.microsoft.FusedGemm <activation = "{kind}"{named}> (x, w)
            r1 = com.microsoft.FusedMatMulActivation <activation = "{kind}"{named}> (x, w)
            r2 = com.microsoft.FusedConv <activation = "{kind}"{", " * bool(ordered)}{ordered}> (i, v)
            r3 = com.microsoft.NhwcFusedConv <activation = "{kind}"{", " * bool(ordered)}{ordered}> (j, v)
        }}""",
        imports=IMPORTS,
    )
    x, w = floats(5, 6), floats(6, 3)
    found = evaluated(model, x, w, x[..., None, None], w.T[..., None, None].copy(), x[:, None, None])
    for one in found:
        assert np.allclose(one.reshape(5, 3), function(x @ w, *numbers), 1e-4, 1e-5)


@pytest.mark.parametrize(
    ("operator", "inputs", "options", "told"),
    [
        (
            "FusedMatMulActivation",
            2,
            {"activation": "HardSigmoid", "activation_alpha": 0.2},
            "'HardSigmoid' without beta",
        ),
        ("FusedConv", 2, {"activation": "LeakyRelu"}, "'LeakyRelu' without alpha"),
        ("FusedConv", 2, {"activation": "Clip", "activation_params": [1.0]}, "'Clip' without min and max"),
        ("GroupQueryAttention", 7, {"num_heads": 2, "kv_num_heads": 1, "qk_output": 1}, "qk_output"),
        ("Attention", 3, {"num_heads": 2, "do_rotary": 1}, "do_rotary"),
        ("FusedConv", 2, {"activation": "Mish"}, "activation 'Mish'"),
        ("MultiHeadAttention", 1, {"num_heads": 0}, "num_heads 0"),
    ],
)
def test_what_is_not_supported_is_named(operator: str, inputs: int, options: dict[str, Any], told: str) -> None:
    """By the attribute."""
    arrays = [floats(1, 4, 4, 4) for _ in range(inputs)]
    with pytest.raises(UnsupportedModelError, match=told):
        run(operator, arrays, **options, **MICROSOFT)


@pytest.mark.parametrize(
    ("graph", "kernel"),
    [
        (
            """g (float16[2, n, 512] q, float16[2, n, 512] k, float16[2, n, 512] v) => (float16[2, n, 512] y) {
                y = com.microsoft.MultiHeadAttention <num_heads = 8, unidirectional = 1> (q, k, v)
            }""",
            "attention.prefill",
        ),
        (
            """g (float16[2, 1, 512] q, float16[2, 1, 128] k, float16[2, 1, 128] v, float16[2, 2, p, 64] a,
                float16[2, 2, p, 64] b, int32[2] l, int32 t)
                => (float16[2, 1, 512] y, float16[2, 2, p1, 64] c, float16[2, 2, p1, 64] d) {
                y, c, d = com.microsoft.GroupQueryAttention <num_heads = 8, kv_num_heads = 2> (q, k, v, a, b, l, t)
            }""",
            "attention.decode",
        ),
    ],
)
def test_attention_becomes_a_kernel(graph: str, kernel: str) -> None:
    """As ONNX's own Attention does: nothing is left of the softmax."""
    module = Canonicalize()(import_onnx(parsed(graph, imports=IMPORTS)).module)
    rewritten, report = substituted(module)
    assert [call.kernel for call in report.substitutions if "attention" in call.kernel] == [kernel]
    assert "softmax" not in rewritten["main"].script()


@pytest.mark.daily(1)
@pytest.mark.parametrize(
    ("kind", "k", "normalized"), [("relu", 1, 0), ("silu", 2, 0), ("identity", 2, 1), ("gelu", 1, 1), ("swiglu", 2, 1)]
)
def test_mixture_of_experts(kind: str, k: int, normalized: int) -> None:
    """As ONNX Runtime computes it on the CPU: the experts of each row by themselves; SwiGLU's gates alternate."""
    experts, hidden, inner = 4, 8, 6
    wide = inner * 2 if kind == "swiglu" else inner
    more = ", swiglu_fusion = 1, activation_alpha = 1.702, activation_beta = 1.0" if kind == "swiglu" else ""
    model = parsed(f"""g (float[n, {hidden}] x, float[n, {experts}] r, float[{experts}, {wide}, {hidden}] w1,
        float[{experts}, {wide}] b1, float[{experts}, {hidden}, {inner}] w2) => (float[n, {hidden}] y) {{
        y = com.microsoft.MoE<activation_type = "{kind}", k = {k}, normalize_routing_weights = {normalized}{more}>
            (x, r, w1, b1, w2)
    }}""")
    model.opset_import.append(onnx.helper.make_opsetid("com.microsoft", 1))
    call = compiled(model)
    random = np.random.default_rng(0)
    shapes = ((5, hidden), (5, experts), (experts, wide, hidden), (experts, wide), (experts, hidden, inner))
    x, r, w1, b1, w2 = (random.normal(size=shape).astype("float32") for shape in shapes)
    chances = np.exp(r) / np.exp(r).sum(1, keepdims=True)
    expected = np.zeros_like(x)
    activations = {
        "relu": lambda h: np.maximum(h, 0),
        "silu": lambda h: h / (1 + np.exp(-h)),
        "identity": lambda h: h,
        "gelu": lambda h: 0.5 * h * (1 + np.tanh(np.sqrt(2 / np.pi) * (h + 0.044715 * h**3))),
        "swiglu": lambda h: h[::2] / (1 + np.exp(-1.702 * h[::2])) * (h[1::2] + 1),
    }
    for row in range(5):
        chosen = np.argsort(-chances[row])[:k]
        total = chances[row, chosen].sum() if normalized else 1
        for expert in chosen:
            made = w2[expert] @ activations[kind](w1[expert] @ x[row] + b1[expert])
            expected[row] += chances[row, expert] / total * made
    np.testing.assert_allclose(call(x, r, w1, b1, w2)[0], expected, rtol=1e-4, atol=1e-5)
