"""The planted faults. Each one is of a kind that has been made, or easily is; none is one that changes nothing."""

from __future__ import annotations

from .mutant import Mutant

_SIZES = "kernels/test_extreme_sizes.py::test_any_size_on_the_cpu"
_VALUES = "kernels/test_extreme_values.py::test_values_that_are_not_finite_on_the_cpu"
_QUANTIZED_NORM = "test_quantized_rms_norm_rule.py::test_other_quantization_leaves_plain_normalization"
_ORDER = "kernels/test_synchronization.py::test_all_is_ordered"


def _rule(name: str, file: str, old: str, new: str, *tests: str) -> Mutant:
    """In ``passes/{file}.py``, whose tests are ``tests/passes/{tests}``."""
    return Mutant(name, f"passes/{file}.py", old, new, tuple(f"passes/{test}" for test in tests))


def _kernel(name: str, file: str, old: str, new: str, *tests: str) -> Mutant:
    return Mutant(name, f"kernels/{file}.py", old, new, tests)


def _schedule(name: str, file: str, old: str, new: str, *tests: str) -> Mutant:
    return Mutant(name, f"schedules/{file}.py", old, new, tuple(f"schedules/{test}" for test in tests))


def _order(name: str, file: str, old: str, new: str, case: str) -> Mutant:
    """A fault of synchronization, which the generated code of one ``case`` shows."""
    return Mutant(name, file, old, new, (f"{_ORDER}[{case}]",))


RULES = (
    _rule(
        "matmul: n and k exchanged",
        "recognizers/weight_matmul",
        "return (rows, columns) if fused.transposed else (columns, rows)",
        "return (columns, rows) if fused.transposed else (rows, columns)",
        "test_matmul_rule.py::test_epilogues",
    ),
    _rule(
        "matmul: a bias for each row of the batch is taken for one of the columns",
        "recognizers/weight_matmul",
        "len(dims) <= call.struct_info.ndim and all(static(dim) == 1 for dim in dims[:-1])",
        "len(dims) <= call.struct_info.ndim",
        "test_matmul_rule.py::test_what_the_kernel_cannot_do_stays_outside",
    ),
    _rule(
        "engine: a consumed binding that the function returns",
        "graph/readers",
        "if graph.is_returned(var):",
        "if False:",
        "test_readers.py::test_results_are_read",
    ),
    _rule(
        "matmul: operands of two dtypes are not refused",
        "recognizers/weight_matmul",
        "if dtype(a) != dtype(weight) or not is_kernel_float(dtype(a)):",
        "if not is_kernel_float(dtype(a)):",
        "test_matmul_rule.py::test_operands_of_two_dtypes_are_refused",
    ),
    _rule(
        "kernel calls: inputs of other sizes are accepted",
        "graph/kernel_call",
        "            if not analyzer.can_prove_equal(expected, size):",
        "            if False:",
        "test_substitute_kernels.py::test_inputs_that_do_not_fit_are_refused",
    ),
    _rule(
        "gated: two products of different rows",
        "rules/gated_matmul",
        "if not _same_rows(graph, first.a, last.a):",
        "if False:",
        "test_gated_matmul_rule.py::test_refusals",
    ),
    _rule(
        "gated: the second product's bias is dropped",
        "rules/gated_matmul",
        "if (first.bias is None) != (last.bias is None):",
        "if False:",
        "test_gated_matmul_rule.py::test_refusals",
    ),
    _rule(
        "gated: a packed weight's columns are counted twice",
        "rules/gated_matmul",
        "n=n if gated.packed is None else n // 2,",
        "n=n,",
        "test_gated_matmul_rule.py::test_one_packed_weight",
    ),
    _rule(
        "normalization: the mean over another axis",
        "recognizers/normalization",
        "return call.args[0] if [int(axis) % (last + 1) for axis in call.attrs.axis] == [last] else None",
        "return call.args[0]",
        "test_normalization_rule.py::test_what_only_looks_alike_is_left_alone",
    ),
    _rule(
        "normalization: another power than the square",
        "recognizers/normalization",
        "graph.constant(call.args[1]) == 2",
        "graph.constant(call.args[1]) is not None",
        "test_normalization_rule.py::test_what_only_looks_alike_is_left_alone",
    ),
    _rule(
        "normalization: centered by another tensor's mean",
        "recognizers/normalization",
        "return call.args[0] if source is not None and graph.same(source, call.args[0]) else None",
        "return call.args[0] if source is not None else None",
        "test_normalization_rule.py::test_rows_centered_by_another_mean_are_normalized_as_they_are",
    ),
    _rule(
        "normalization: a broadcast term is taken for a residual",
        "recognizers/normalization",
        "return tuple(call.args) if all(graph.same_shape(shape(term), shape(call)) for term in call.args) else None",
        "return tuple(call.args)",
        "test_normalization_rule.py::test_a_broadcast_term_is_no_residual",
    ),
    _rule(
        "rotary: halves in any order",
        "recognizers/rotary",
        "and (half.begin, half.size) == (begin, size // 2)",
        "and half.size == size // 2",
        "test_rotary_rule.py::test_what_only_looks_alike_is_left_alone",
    ),
    _rule(
        "rotary: the kernel is told the wrong axis of heads",
        "recognizers/rotary",
        'layout="bshd" if heads.swapped else layout,',
        "layout=layout,",
        "test_rotary_rule.py::test_one_kernel_for_every_way_to_write_it",
    ),
    _rule(
        "rotary: several heads normalized together",
        "recognizers/rotary",
        "if not graph.equal(shape(source)[-1], shape(x)[-1]):",
        "if False:",
        "test_rotary_rule.py::test_other_normalization_stays_a_kernel_of_its_own",
    ),
    _rule(
        "swiglu: the gate in the second half is taken for the first",
        "recognizers/swiglu",
        "if [piece.begin for piece in pieces] != [0, channels]:",
        "if sorted(piece.begin for piece in pieces) != [0, channels]:",
        "test_swiglu_rule.py::test_the_gate_in_the_second_half_is_copied_out",
    ),
    _rule(
        "swiglu: thirds are taken for halves",
        "recognizers/swiglu",
        "return first if static(shape(first)[-1]) == 2 * channels else None",
        "return first",
        "test_swiglu_rule.py::test_thirds_of_one_tensor_are_not_packed",
    ),
    _rule(
        "swiglu: scales divided by another limit",
        "recognizers/fp8_quantization",
        "if isclose(self.scale.factor, 1 / limit, rel_tol=1e-6):",
        "if True:",
        "test_swiglu_rule.py::test_other_quantization_is_refused_and_leaves_plain_swiglu",
    ),
    _rule(
        "swiglu: scales without a lower bound are accepted",
        "rules/quantized_swiglu",
        "if scale.minimum <= 0:",
        "if scale.minimum < 0:",
        "test_swiglu_rule.py::test_other_quantization_is_refused_and_leaves_plain_swiglu",
    ),
    _rule(
        "quantized normalization: a static scale without a clamp is accepted",
        "rules/quantized_rms_norm",
        "if not self.cast.bounds:",
        "if False:",
        f"{_QUANTIZED_NORM}[static, not clamped]",
    ),
    _rule(
        "quantized normalization: what lies between is not consumed",
        "rules/quantized_rms_norm",
        "between_them = between(graph, x, *replaces)",
        "between_them = frozenset()",
        f"{_QUANTIZED_NORM}[the normalized values too]",
    ),
    _rule(
        "quantized normalization: another dynamic scale is taken for an equal one",
        "rules/quantized_rms_norm",
        "return left.shared(graph) == right.shared(graph) and same_form(left.scale, right.scale)",
        "return True",
        f"{_QUANTIZED_NORM}[two quantizations]",
    ),
    _rule(
        "quantized normalization: another offset than one",
        "rules/quantized_rms_norm",
        "if graph.constant(one) == 1 and",
        "if graph.constant(one) is not None and",
        "test_quantized_rms_norm_rule.py::test_a_weight_plus_another_number_stays_outside",
    ),
    _rule(
        "permute: descending order is accepted",
        "rules/moe_permute",
        "if sort.attrs.descending:",
        "if False:",
        "test_moe_permute_rule.py::test_descending_order_is_refused",
    ),
    _rule(
        "permute: an inverse that does not start at 0",
        "recognizers/permutations",
        "return static(start) == 0 and static(step) == 1",
        "return static(step) == 1",
        "test_moe_permute_rule.py::test_other_numbers_at_the_positions_of_the_order_are_no_inverse",
    ),
    _rule(
        "permute: exclusive counts are taken for inclusive ones",
        "rules/moe_permute",
        "if cumsum is not None and not cumsum.attrs.exclusive:",
        "if cumsum is not None:",
        "test_moe_permute_rule.py::test_where_experts_begin_is_not_where_they_end",
    ),
    _rule(
        "combine: weights sorted by another order",
        "recognizers/expert_sums",
        "return source if isinstance(inverse, relax.Var) and inverts(graph, inverse, order) else None",
        "return source",
        "test_moe_combine_rule.py",
    ),
    _rule(
        "scaled: the scale of another place",
        "rules/scaled_matmul",
        "return equal(product(dims), self.rows * self.columns) and equal(flattened(index, dims), position)",
        "return equal(product(dims), self.rows * self.columns)",
        "test_scaled_matmul_rule.py::test_near_misses",
    ),
    _rule(
        "scaled: a scale is applied twice",
        "rules/scaled_matmul",
        "if parts[0] is None or parts[1] is None or parts[0].keys() & parts[1].keys():",
        "if parts[0] is None or parts[1] is None:",
        "test_scaled_matmul_rule.py::test_near_misses",
    ),
    _rule(
        "attention: the keys' scale is dropped",
        "rules/attention",
        "scale=inputs.scale * query.factor * key.factor,",
        "scale=inputs.scale * query.factor,",
        "test_attention_rule.py::test_forms",
    ),
    _rule(
        "engine: a consumed binding that something else reads",
        "substitute_kernels",
        "reason = needed_elsewhere(self.graph, found.consumed, found.replaces)",
        "reason = None",
        "test_substitute_kernels.py::test_what_is_consumed_is_read_by_nothing_else",
    ),
    _rule(
        "attention: the scale before a cap is dropped",
        "rules/attention",
        "return replace(inner, factor=inner.factor * scores.factor), scores.factor",
        "return inner, scores.factor",
        "test_attention_rule.py::test_variants",
    ),
    _rule(
        "attention masks: the diagonal is off by one",
        "recognizers/masks",
        "hidden_keys.append(own + 1 + distance)",
        "hidden_keys.append(own + 2 + distance)",
        "test_attention_rule.py::test_other_positions_stay_a_mask",
        "test_attention_rule.py::test_masks_by_position",
    ),
    _rule(
        "attention masks: a finite fill where a query may see nothing",
        "recognizers/masks",
        'if found not in (Visibility(), Visibility("top_left")) and not leaves_none_out:',
        "if False:",
        "test_attention_rule.py::test_more_queries_than_keys_may_see_nothing",
    ),
    _rule(
        "attention masks: any negative number hides",
        "recognizers/masks",
        "if element == 0 or element <= LARGEST_FILL else None",
        "if element <= 0 else None",
        "test_attention_rule.py::test_a_small_number_hides_nothing",
    ),
    _rule(
        "batched: the wrong layout of the right operand",
        "rules/batched_matmul",
        'layout="nk" if transposed else "kn",',
        'layout="kn" if transposed else "nk",',
        "test_batched_matmul_rule.py::test_a_product_of_two_batches",
    ),
    _rule(
        "batched: batches are aligned from the wrong end",
        "rules/batched_matmul",
        "static(right[-1 - ones]) == 1",
        "static(right[ones]) == 1",
        "test_batched_matmul_rule.py::test_batches_broadcast",
    ),
    _rule(
        "grouped: gathered rows that something else reads",
        "recognizers/grouped_matmul",
        "if take is None or not _takes_rows(take) or not serves_only(graph, take, var):",
        "if take is None or not _takes_rows(take):",
        "test_grouped_matmul_rule.py::test_a_gather_with_other_readers_stays",
    ),
    _rule(
        "packed projections: a weight that two products share",
        "rules/merged_matmul",
        "return graph.value(weight) in graph.weights and readers == {reader}",
        "return graph.value(weight) in graph.weights",
        "test_merged_matmul_rule.py::test_left_alone",
    ),
)

PASSES = (
    _rule(
        "index bounds: a mask that may hold vanishes (> for >=)",
        "graph/index_bounds",
        'return limit >= bound if comparison.op.name == "relax.greater_equal" else limit >= bound - 1',
        "return limit >= bound - 1",
        "test_index_bounds.py::test_a_mask_that_may_hold_stays",
    ),
    _rule(
        "scatter: indices from the end are lost",
        "lowering/indexed_elements",
        "here = tirx.any(target == index[axis], target + size == index[axis])",
        "here = target == index[axis]",
        "test_indexed_elements.py::test_positions_that_count_from_the_end",
    ),
    _rule(
        "gather: broadcast indices are read beyond their end",
        "lowering/indexed_elements",
        "held = [0 if static(size) == 1 else i for i, size in zip(index, indices.shape, strict=True)]",
        "held = list(index)",
        "test_indexed_elements.py::test_values",
    ),
    _rule(
        "concatenations: a slice begins in the wrong part",
        "canonical/concatenations",
        "yield part, size, max(begin - start, 0), min(end, past) - start",
        "yield part, size, begin, min(end, past) - start",
        "test_concatenations.py::test_values",
    ),
    _rule(
        "contractions: the product's axes are not put back",
        "canonical/contractions",
        "[order.index(axis) for axis in sorted(order)]",
        "list(range(len(order)))",
        "test_contractions.py::test_becomes_a_product",
    ),
    _rule(
        "contractions: a sum over an axis that only one operand has",
        "canonical/contractions",
        "            if axis in over:\n                return None\n",
        "",
        "test_contractions.py",
    ),
)

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
        "values[half + j] * cos_2 + values[j] * sin_2",
        "values[half + j] * cos_2 - values[j] * sin_2",
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
        "attention/cpu",
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
        "kernels/test_matmul.py::test_configurations_fit_the_architecture",
    ),
    _kernel(
        "operands that TMA cannot load are given to WGMMA",
        "matmul/tiling",
        "return all(stride * item_bytes % TMA_ALIGNMENT == 0 for stride in strides)",
        "return all(stride * item_bytes % (TMA_ALIGNMENT // 2) == 0 for stride in strides)",
        "kernels/test_matmul.py::test_operands_that_tma_cannot_load_get_no_wgmma",
    ),
)

SYNCHRONIZATION = (
    _order(
        "persistent matmul: slices are loaded where others are read",
        "kernels/matmul/persistent.py",
        "            k.ring.wait_empty(at, parity)\n            T.tma_copy(\n                s.region(tensors.a,",
        "            T.tma_copy(\n                s.region(tensors.a,",
        "matmul, persistent",
    ),
    _order(
        "persistent matmul: slices are multiplied before they are loaded",
        "kernels/matmul/persistent.py",
        "            k.ring.wait_full(at, parity)\n            _multiply(",
        "            _multiply(",
        "matmul, persistent",
    ),
    _order(
        "persistent matmul: the residual's slice is never given back",
        "kernels/matmul/persistent.py",
        "    k.ring.arrive_empty(at)\n\n\n@T.macro\ndef _activate(",
        "\n\n@T.macro\ndef _activate(",
        "matmul, persistent",
    ),
    _order(
        "ring: the parity of a slot counts slices, not rounds",
        "kernels/hopper/ring.py",
        "return self.stage(slice_), slice_ // self.stages % 2",
        "return self.stage(slice_), slice_ % 2",
        "matmul, persistent",
    ),
    _order(
        "ring: one warpgroup gives back what two read",
        "kernels/hopper/ring.py",
        "stages, WARPGROUP * consumers)",
        "stages, WARPGROUP)",
        "matmul, persistent",
    ),
    _order(
        "persistent matmul: a tile is written where the last one's store still reads",
        "kernels/matmul/persistent.py",
        "        k.staging.wait()\n        T.copy(own.bias",
        "        T.copy(own.bias",
        "matmul, persistent",
    ),
    _order(
        "float32 matmul: parts are multiplied before they are made",
        "kernels/matmul/tf32.py",
        "    T.mbarrier_wait_parity(s.split[at], parity)\n",
        "",
        "matmul, persistent, shared depth",
    ),
    _order(
        "shared depth: partial sums are read before they are written",
        "kernels/matmul/shared_depth.py",
        "        T.mbarrier_wait_parity(e.given[part], turn % 2)\n",
        "",
        "matmul, persistent, shared depth",
    ),
    _order(
        "shared depth: partial sums are overwritten before they are read",
        "kernels/matmul/shared_depth.py",
        "        T.mbarrier_wait_parity(e.taken[part], (turn + 1) % 2)\n",
        "",
        "matmul, persistent, shared depth",
    ),
    _order(
        "cluster: received sums are not waited for",
        "kernels/matmul/split.py",
        "            T.mbarrier_wait_parity(all_received[0], 0)\n",
        "",
        "matmul, cluster",
    ),
    _order(
        "cluster: sums are sent over operands that a peer still reads",
        "kernels/matmul/split.py",
        "            T.fence_proxy_async()\n            T.cluster_sync()\n",
        "            T.fence_proxy_async()\n",
        "matmul, cluster",
    ),
    _order(
        "grouped: gathered rows are multiplied without a proxy fence",
        "kernels/grouped_matmul/persistent.py",
        "            if p.rows is not None:\n                T.fence_proxy_async()\n",
        "",
        "grouped, gathered",
    ),
    _order(
        "grouped: a product's slice is given back while it runs",
        "kernels/grouped_matmul/persistent.py",
        "T.wait_wgmma(len(sums))",
        "T.wait_wgmma(len(sums) + 1)",
        "grouped, persistent",
    ),
    _order(
        "scaled: sums are read while their product runs",
        "kernels/scaled_matmul/persistent.py",
        "T.wait_wgmma(slices - 1 - nth)",
        "T.wait_wgmma(slices - nth)",
        "scaled, persistent",
    ),
    _order(
        "prefill: the queries' tile is loaded over the last one",
        "kernels/attention/overlapped.py",
        "        k.q_ring.wait_empty(*k.q_ring.slot(turn))\n",
        "",
        "prefill, persistent",
    ),
    _order(
        "prefill: values are given back while they are multiplied",
        "kernels/attention/overlapped.py",
        "                T.wait_wgmma(0)\n                k.v_ring.arrive_empty(",
        "                k.v_ring.arrive_empty(",
        "prefill, overlapped",
    ),
    _order(
        "prefill: keys are multiplied before they are loaded",
        "kernels/attention/overlapped.py",
        "            k.k_ring.wait_full(at, parity)\n            _score(",
        "            _score(",
        "prefill, overlapped",
    ),
    _order(
        "latent: weights are multiplied without a proxy fence",
        "kernels/attention/latent_alternating.py",
        "    T.fence_proxy_async()\n    T.barrier_arrive(s.weighted[own])",
        "    T.barrier_arrive(s.weighted[own])",
        "latent, alternating",
    ),
    _order(
        "latent: scores of keys that are not loaded",
        "kernels/attention/latent_alternating.py",
        "        T.barrier_wait(s.loaded[(2 * own + nth) * chunks + i], pair & 1)\n",
        "",
        "latent, alternating",
    ),
    _order(
        "latent: the other warpgroup's weights are not waited for",
        "kernels/attention/latent_alternating.py",
        "    T.barrier_wait(s.weighted[other], (pair + other) & 1)\n",
        "",
        "latent, alternating",
    ),
    _order(
        "latent: a part is given back while it is multiplied",
        "kernels/attention/latent_alternating.py",
        "T.wait_wgmma(s.parts - 1 - part)",
        "T.wait_wgmma(s.parts - part)",
        "latent, alternating",
    ),
    _order(
        "builder: no fence between threads' reads and the next bulk load",
        "tkc/builder/async_proxy.py",
        "                ordered.append(tvm.tirx.Evaluate(T.fence_proxy_async()))\n",
        "",
        "matmul, mma",
    ),
    _order(
        "builder: kernels begin before the one before them has ended",
        "tkc/builder/dependent_launch.py",
        "body = tvm.tirx.SeqStmt([tvm.tirx.Evaluate(T.pdl_sync()), statement.body])",
        "body = statement.body",
        "rms",
    ),
)

SCHEDULES = (
    _schedule(
        "exp overflows too early",
        "lowering/vector_math",
        "tirx.max(tirx.min(x, _f32(89.0)), _f32(-104.0))",
        "tirx.max(tirx.min(x, _f32(88.0)), _f32(-104.0))",
        "test_vector_math.py::test_special_values",
        "test_vector_math.py::test_error_is_within_the_stated_limit",
    ),
    _schedule(
        "tanh's series is used too far out",
        "lowering/vector_math",
        "return tirx.Select(magnitude < _f32(0.25), near, away)",
        "return tirx.Select(magnitude < _f32(0.75), near, away)",
        "test_vector_math.py::test_error_is_within_the_stated_limit",
    ),
    _schedule(
        "a launch that may be empty is not guarded",
        "lowering/launch_guards",
        "if not analyzer.can_prove(extent > 0):",
        "if analyzer.can_prove(extent <= 0):",
        "test_launch_guards.py::test_a_grid_that_may_be_empty_is_launched_under_a_condition",
    ),
    _schedule(
        "a function is taken for empty where one of its results is",
        "rules/empty",
        "if not stores or not all(0 in map(static, store.buffer.shape) for store in stores):",
        "if not stores or not any(0 in map(static, store.buffer.shape) for store in stores):",
        "test_empty.py::test_only_what_has_no_elements_is_left_out",
    ),
)

MUTANTS = (*RULES, *PASSES, *KERNELS, *SYNCHRONIZATION, *SCHEDULES)
