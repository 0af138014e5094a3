"""The names that one part of the compiler leaves for a later one: attributes, annotations, entries and symbols.

Imports nothing, so that every part may import it, in every process. A name that only one file writes and reads stays
there. ``tkc/verify.py`` checks what the pipeline's stages promise in these terms.
"""

from __future__ import annotations

from typing import Final

# Entries of the generated program.

MAIN: Final = "main"
"""The graph function of the model, and the entry of the generated program that a call runs."""

RETAINING_MAIN: Final = "main_retaining_memory"
"""The entry that also returns the memory it computed in, for CUDA graphs: ``passes/lowering/retain_memory.py`` adds it
to programs for CUDA without branches and loops, ``tkc/runtime/loaded_code.py`` looks for it."""

# Attributes of functions that are TKC's own.

KERNEL: Final = "tkc.kernel"
"""Of a TensorIR function that calls a prebuilt kernel: the JSON of its ``KernelDispatch``. Written at substitution.
Such a function is opaque and scheduled: no pass fuses it, looks into it, or schedules it."""

UPDATES: Final = "tkc.updates"
"""Of a graph function: the positions of the parameters that it updates. It returns their new values, in this order,
behind everything else that it returns, as one tuple. Frontends write it; every pass that changes the parameters keeps
it right (``passes/graph/updates.py``)."""

ANY_OF_EQUAL: Final = "tkc.any_of_equal"
"""Of the main function: of equal numbers ``topk`` may take any, as PyTorch does. Without it, it takes the first ones,
as ONNX asks."""

RESULT_MEMORY: Final = "tkc.result_memory"
"""Of the main function: for each of its results, new values of what it updates among them, a number for the memory
that it lies in, :data:`GIVEN_MEMORY` for that of an argument or a weight. Results of one number may share it. All
others, and all where there is no such attribute, are tensors of their own (``passes/lowering/own_results.py``). The
PyTorch frontend writes it."""

GIVEN_MEMORY: Final = -1
"""A number in :data:`RESULT_MEMORY`."""

READ_STATE: Final = "tkc.read_state"
"""Of a graph function: the names of parameters that it only reads, and other entries of a program update."""

OPERATOR: Final = "tkc.op"
"""Of a TensorIR function that a frontend wrote for an operator Relax lacks: which one,
:data:`GROUPED_MATMUL_OPERATOR`, :data:`HISTOGRAM_OPERATOR` or :data:`LOG2_OPERATOR`. Rules recognise the operator by
it."""

GROUPED_MATMUL_OPERATOR: Final = "grouped_matmul"
"""A value of :data:`OPERATOR`: ``function(a, weight, offsets)`` multiplies each group of rows by its own weight. The
attribute :data:`WEIGHT_LAYOUT` says how the weights lie."""

WEIGHT_LAYOUT: Final = "tkc.weight_layout"
"""Of a grouped matmul: ``gkn`` for weights ``[groups, k, n]``, ``gnk`` for ``[groups, n, k]``."""

HISTOGRAM_OPERATOR: Final = "histc"
"""A value of :data:`OPERATOR`: ``function(x)`` counts the elements in equal bins from :data:`HISTOGRAM_MINIMUM` to
:data:`HISTOGRAM_MAXIMUM`, which belongs to the last bin."""

HISTOGRAM_MINIMUM: Final = "tkc.minimum"
"""Of a histogram: the lower bound of the first bin, a float."""

HISTOGRAM_MAXIMUM: Final = "tkc.maximum"
"""Of a histogram: the upper bound of the last bin, a float."""

LOG2_OPERATOR: Final = "binary_logarithm"
"""A value of :data:`OPERATOR`: ``function(x)`` is the logarithm to base 2, exact for powers of two."""

# Annotations in TensorIR.

PARTITIONED: Final = "tkc.partitioned"
"""Of a loop: its tail is computed apart. ``schedules/blocks.py`` asks for it; no loop is partitioned twice."""

EACH_IN_A_THREAD: Final = "tkc.each_in_a_thread"
"""Of a serial loop right inside of a parallel one: its iterations are independent, too. On a GPU each has a thread of
the block that has the parallel loop's iteration (``schedules/rules/fallback.py``). Frontends set it."""

RESHAPES: Final = "tkc.reshapes"
"""Of a TensorIR function: it is a ``relax.reshape``, whatever TVM can tell of its positions
(``passes/lowering/reshape_views.py``). Fused with others, it has no such attribute."""

DEFAULT_SCHEDULE: Final = "tkc.schedule"
"""Of the outermost block in a tuning record's trace: with the value :data:`BY_RULES`, the default rules schedule this
function better than anything that was tried."""

BY_RULES: Final = "default rules"
"""The value of :data:`DEFAULT_SCHEDULE`."""

# Attributes that TVM's passes read and write, under the names that TVM gives them.

NUM_INPUT: Final = "num_input"
"""Of a graph function: how many of its first parameters are inputs of a call. The others are weights and state."""

GLOBAL_SYMBOL: Final = "global_symbol"
"""Of a function: the name under which generated code exports it."""

IS_SCHEDULED: Final = "tirx.is_scheduled"
"""Of a TensorIR function: it has its schedule. Passes that write loops by hand set it, ``ScheduleModule`` sets it on
all others, and leaves the loops of those that have it."""

NO_ALIAS: Final = "tirx.noalias"
"""Of a TensorIR function: its tensors lie in memory of their own."""

S_TIR: Final = "s_tir"
"""Of a TensorIR function: it is written in blocks, which TVM's scheduling reads."""

OP_PATTERN: Final = "op_pattern"
"""Of a TensorIR function: its ``OpPatternKind``, by which ``FuseOps`` decides; where it is absent, TVM works it out."""

WINDOWS: Final = "tkc.windows"
"""Of a TensorIR function that gathers what a convolution slides over an image: the JSON of the windows' ``extents``,
``strides`` and ``dilation``, and the zeros ``before`` and ``after`` the image, lists of a number for each axis, and
:data:`CHANNELS_LAST`."""

CHANNELS_LAST: Final = "image_channels_last"
"""Whether the windows are ``[extents ..., channels]`` and the image has its channels last, or both have them first."""

INJECTIVE_PATTERN: Final = 2
"""``OpPatternKind.kInjective``: each element of the result reads one place of each operand; fused into its reader."""

REDUCTION_PATTERN: Final = 4
"""``OpPatternKind.kOutEWiseFusable``: a reduction into which the elementwise functions of its result are fused."""

OPAQUE_PATTERN: Final = 8
"""``OpPatternKind.kOpaque``: never fused with anything."""

PRIMITIVE: Final = "Primitive"
"""Of a Relax function that ``FuseOps`` made: a group of operators that ``FuseTIR`` makes one TensorIR function."""

THREAD_EXTENT: Final = "thread_extent"
"""The key of the ``AttrStmt`` that launches threads."""

LAUNCH_PARAMETERS: Final = "tirx.kernel_launch_params"
"""Of a device function: along which axes its launch says how many blocks and threads there are, in that order."""

# Symbols that generated code, its C++ addons and the runtime agree on.

KERNEL_SYMBOL_PREFIX: Final = "tkc_"
"""How the symbol of every kernel library's function begins (``KernelRequest.symbol``)."""

USE_DEVICE: Final = "tkc_use_device"
"""``device_memory.cc`` exports it: ``(device type, device index)`` on which the program takes its memory."""

ALLOC_STORAGE: Final = "tkc_alloc_storage"
"""``device_memory.cc`` exports it: ``(shape)`` in bytes to storage from the caller's allocator."""

ALLOC_TENSOR: Final = "tkc_alloc_tensor"
"""``device_memory.cc`` exports it: ``(storage, offset, shape, dtype)`` to a tensor in that storage."""

AWAIT: Final = "tkc_await"
"""``device_memory.cc`` exports it: ``(tensor)`` to that tensor, when what the caller's stream was given is done."""

CALL_OPERATOR: Final = "tkc.call_operator"
"""The runtime registers it: ``(description, *operands)`` to what PyTorch's operator gives, which the graph calls in
place where TKC has no converter. ``tkc/runtime/operators.py`` says what a description is."""

CALL_TEXT: Final = "tkc.call_text"
"""The runtime registers it: ``(description, *tensors)`` to what a function of strings makes of their codes, on the CPU
(``tkc/runtime/text_functions.py``)."""

CHECK: Final = "tkc_check"
"""``control_flow.cc`` exports it: ``(message, value, holds, *others)`` to ``value``, or an error with ``message``.
``holds`` is a number, or a tensor of one truth value, which the host reads. ``others`` are computed, and not read."""

CHECK_BOUNDS: Final = "tkc_check_bounds"
"""``control_flow.cc`` exports it: ``(message, number, least, most)`` to ``number``, a shape of one, or an error with
``message``, in which ``{number}`` stands for it. TVM takes what is in a shape for 0 or more in conditions."""

SIGNED: Final = "_signed"
"""Ends the name of a symbolic number that may be negative, as one that the model reads out of a tensor. All others are
sizes, which passes simplify as what is not negative."""

RUNTIME_CHECKS: Final = (CHECK, CHECK_BOUNDS)
"""The functions of the runtime that return what they are handed, or raise."""

ASSERTED: Final = "<tkc asserted>"
"""Stands before and behind the message in the errors of :data:`RUNTIME_CHECKS`."""

CONVOLVE: Final = "tkc.convolve"
"""The runtime registers it: ``(description, image, weight)`` to what PyTorch's library convolves them to, on the CPU
(``tkc/runtime/convolutions.py``)."""

MULTIPLY_INTEGERS: Final = "tkc.multiply_integers"
"""The runtime registers it: ``(description, left, right, *zeros)`` to the int32 product of matrices of 8-bit codes less
their zero points, by PyTorch's library, on the CPU (``tkc/runtime/integer_products.py``)."""

CONVOLVE_INTEGERS: Final = "tkc.convolve_integers"
"""The runtime registers it: ``(description, image, weight, *zeros)`` to the convolution of such codes."""

MULTIPLY_BFLOAT16: Final = "tkc.multiply_bfloat16"
"""The runtime registers it: ``(description, left, right)`` to the product of matrices of bfloat16, by PyTorch's
library, on the CPU (``tkc/runtime/bfloat16_products.py``)."""

ATTEND: Final = "tkc.attend"
"""The runtime registers it: ``(description, queries, keys, values, *masks)`` to attention of bfloat16, by PyTorch's
library, on the CPU (``tkc/runtime/attention_calls.py``)."""

SORT: Final = "tkc.sort"
"""The runtime registers it: ``(description, x)`` to the numbers of ``x`` in order along an axis, and the place of each
before, by PyTorch's library (``tkc/runtime/sorts.py``)."""

TOP: Final = "tkc.top"
"""The runtime registers it: the same of the largest or smallest numbers along an axis."""

LIBRARY_CALLS: Final = {
    CONVOLVE: "aten::convolution",
    MULTIPLY_INTEGERS: "aten::_int_mm",
    CONVOLVE_INTEGERS: "aten::convolution",
    MULTIPLY_BFLOAT16: "aten::matmul",
    ATTEND: "aten::scaled_dot_product_attention",
    SORT: "aten::sort",
    TOP: "aten::topk",
}
"""The operators of PyTorch's that such functions call, or in whose place they call others of its libraries."""
PRODUCT: Final = "tkc_product"
"""``products.cc`` exports it: ``(plan, image, weight, *operands, result)`` writes a convolution or a linear layer,
and what follows it, into ``result``, on the CPU (``passes/graph/product_call.py``)."""

MEAN_AXES: Final = 3
"""In place of the number of axes in a product's plan: what is computed are means of channels."""


def product_name(plan: list[int]) -> str:
    """What reports and profiles call a product with this plan."""
    if plan[3] == MEAN_AXES:
        return "tkc.channel_mean"
    return "tkc.depthwise_convolution" if plan[0] else "tkc.convolution" if plan[3] else "tkc.linear"


PACKED: Final = "tkc_packed"
"""``products.cc`` exports it: ``(0)`` to the address of a new store of packed weights; ``(address)`` frees it."""

USE_PACKED: Final = "tkc_use_packed"
"""``products.cc`` exports it: ``(address, threads)`` has this thread's products pack weights there, once, and take
so many threads at most, if that is not 0. Returns the address that was before."""

CHOOSE: Final = "tkc_choose"
"""``control_flow.cc`` exports it: ``(condition, function, other, *operands)`` to what ``function`` makes of the
operands if the condition holds, or ``other``. A condition is a tensor of one truth value, or a number of the host.

Graphs call this and the next two by ``call_pure_packed``, with the names of the functions of the module that they call,
each a ``StringImm`` (``passes/lowering/machine_calls.py`` puts the functions in their places). What these functions
return lies in memory of its own (``passes/lowering/own_results.py``)."""

WHILE: Final = "tkc_while"
"""``control_flow.cc`` exports it: ``(begin, step, *operands)`` to the state of a loop at its end. ``begin`` makes
``(condition, *state)`` of the operands, ``step`` of the operands and the state, as long as the condition holds."""

REPEAT: Final = "tkc_repeat"
"""``control_flow.cc`` exports it: ``(steps, begin, step, *operands)`` to the state of a loop at its end. ``steps`` is a
shape of one number; ``begin`` makes the state of the operands, ``step`` of ``(number, *operands, *state)``, where the
number, a shape as well, counts from 0."""

CONTROL_FLOW: Final = (CHOOSE, WHILE, REPEAT)
"""The functions of the runtime that call others of the program."""

SHARE_THREADS: Final = "tkc_share_threads"
"""``parallel.cc`` exports it: ``(threads, address of a pool or 0, whether in OpenMP's threads)`` to the address of the
pool that loops run in, if not in OpenMP's threads."""
