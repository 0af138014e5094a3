"""Planted faults of kernels' arithmetic."""

from __future__ import annotations

from .mutant import Mutant

_SIZES = "kernels/test_extreme_sizes.py::test_any_size_on_the_cpu"

_VALUES = "kernels/test_extreme_values.py::test_values_that_are_not_finite_on_the_cpu"


def _kernel(name: str, file: str, old: str, new: str, *tests: str) -> Mutant:
    return Mutant(name, f"kernels/{file}.py", old, new, tests)


KERNELS = (
    _kernel(
        "relu loses NaN",
        "matmul/epilogue",
        "return T.if_then_else(x < 0, 0.0, x)",
        "return T.max(x, 0.0)",
        "kernels/test_matmul.py::test_relu_keeps_nan",
    ),
    _kernel(
        "GELU's cubic coefficient",
        "matmul/epilogue",
        "scale + 0.044715 * scale * x * x",
        "scale + 0.04715 * scale * x * x",
        "kernels/test_matmul.py::test_cpu_activations_agree_with_pytorch",
    ),
    _kernel(
        "layer normalization without its epsilon",
        "normalization/definition",
        "factor = 1.0 / T.sqrt(total[0] / p.channels + T.float32(p.epsilon))",
        "factor = 1.0 / T.sqrt(total[0] / p.channels)",
        "kernels/test_normalization.py::test_agrees_with_the_reference",
        "kernels/test_normalization.py::test_a_row_of_zeros_is_divided_by_the_epsilon",
    ),
    _kernel(
        "rotary embedding turns the second half the wrong way",
        "rotary/definition",
        "values[second] * cos_2 + values[first] * sin_2",
        "values[second] * cos_2 - values[first] * sin_2",
        "kernels/test_rotary.py::test_agrees_with_the_reference",
    ),
    _kernel(
        "the gate's groups lose to themselves",
        "moe_gate/cpu",
        "(group_keys[other] == group_keys[g] and other < g)",
        "(group_keys[other] == group_keys[g] and other <= g)",
        "kernels/test_moe_gate.py::test_agrees_with_the_reference",
    ),
    _kernel(
        "the gate ranks NaN last",
        "moe_gate/ranking",
        'return T.if_then_else(T.isnan(x), T.max_value("int32"), T.if_then_else(bits < 0, NOTHING - bits, bits))',
        'return T.if_then_else(T.isnan(x), T.min_value("int32"), T.if_then_else(bits < 0, NOTHING - bits, bits))',
        "kernels/test_moe_gate.py::test_infinities_and_nan_have_their_place",
    ),
    _kernel(
        "combine reads before the first row",
        "moe_combine/weighted_sum",
        'return T.cast(T.max(T.min(position, last), T.cast(0, p.indices_dtype)), "int32")',
        'return T.cast(T.min(position, last), "int32")',
        "kernels/test_moe_combine.py::test_no_position_reads_outside",
    ),
    _kernel(
        "permute counts an expert that there is not",
        "moe_permute/definition",
        "last = T.cast(p.num_experts - 1, p.indices_dtype)",
        "last = T.cast(p.num_experts, p.indices_dtype)",
        "kernels/test_extreme_sizes.py::test_no_expert_is_counted_that_there_is_not",
    ),
    _kernel(
        "attention leaves out the last block of keys",
        "attention/cpu_tile",
        "T.ceildiv(visible_keys, block_keys)",
        "visible_keys // block_keys",
        f"{_SIZES}[prefill, no mask]",
    ),
    _kernel(
        "softmax's total is not rescaled",
        "attention/cpu",
        "total[row] = total[row] * rescale[i] + lanes[0]",
        "total[row] = total[row] + lanes[0]",
        f"{_SIZES}[decode]",
    ),
    _kernel(
        "a row that sees no key is divided by zero",
        "attention/softmax",
        "return T.if_then_else(total == 0, 0.0, weighted / total)",
        "return weighted / total",
        "kernels/test_attention.py::test_a_row_that_sees_nothing_is_zero",
    ),
    _kernel(
        "a sink's weight is not relative to the maximum",
        "attention/softmax",
        'exponent = sink * log_base_e - finite(maximum) * ((1.0 if p.mask == "additive" else unit(p)) * log_base_e)',
        "exponent = sink * log_base_e",
        f"{_SIZES}[decode, cap, sinks]",
    ),
    _kernel(
        "packed gate and up are the same half",
        "swiglu/cpu",
        "gate_up[token, p.channels + channel]",
        "gate_up[token, channel]",
        "kernels/test_swiglu.py::test_agrees_with_the_reference",
    ),
    _kernel(
        "FP8 scales lose NaN",
        "swiglu/cpu",
        'return T.reinterpret(value, "int32") & 0x7FFFFFFF',
        'return T.reinterpret(T.if_then_else(T.isnan(value), 0.0, value), "int32") & 0x7FFFFFFF',
        f"{_VALUES}[swiglu, a scale per token]",
    ),
    _kernel(
        "quantized normalization loses the weight's offset",
        "quantized_rms_norm/definition",
        "return T.float32(1.0) + stored if p.weight_offset else stored",
        "return stored",
        "kernels/test_quantized_rms_norm.py::test_agrees_with_the_reference",
    ),
    _kernel(
        "latent attention accepts a scale that is not positive",
        "attention/latent_spec",
        "if not p.scale > 0:",
        "if p.scale < 0:",
        "kernels/test_latent_attention.py::test_refusals_name_the_cause",
    ),
    _kernel(
        "a GPU without room for the tile is offered it",
        "matmul/tiling",
        "if tiling.shared_memory(weights) <= target.shared_memory",
        "if tiling.shared_memory(weights) <= 2 * target.shared_memory",
        "kernels/test_matmul_choices.py::test_configurations_fit_the_architecture",
    ),
    _kernel(
        "operands that TMA cannot load are given to WGMMA",
        "matmul/tiling",
        "return all(stride * item_bytes % TMA_ALIGNMENT == 0 for stride in strides)",
        "return all(stride * item_bytes % (TMA_ALIGNMENT // 2) == 0 for stride in strides)",
        "kernels/test_matmul_choices.py::test_operands_that_tma_cannot_load_get_no_wgmma",
    ),
)
