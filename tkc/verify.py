"""What stages of the pipeline promise, as conditions that are checked behind them.

A condition reads a :class:`~tkc.compilation.Compilation` and yields a :class:`Violation` for each place where it does
not hold. ``tkc/pipeline.py`` says which stage promises which. Checked are compilations with ``verify=True`` or
``TKC_VERIFY=1``, and every one in the tests; some conditions are checked in every compilation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tvm import IRModule, relax, tirx
from tvm.ir import GlobalVar, Op

from tkc.contracts import (
    GLOBAL_SYMBOL,
    IS_SCHEDULED,
    KERNEL,
    KERNEL_SYMBOL_PREFIX,
    MAIN,
    NUM_INPUT,
    OP_PATTERN,
    OPAQUE_PATTERN,
    PRIMITIVE,
    RETAINING_MAIN,
    UPDATES,
)
from tkc.errors import InternalError
from tkc.passes.graph.kernel_call import kernel_dispatch
from tkc.passes.graph.updates import overwritten, updates

if TYPE_CHECKING:
    from tkc.compilation import Compilation


@dataclass(frozen=True)
class Violation:
    """Where a condition does not hold: in which function of the module, and how, as a clause."""

    function: str | None
    what: str


@dataclass(frozen=True)
class Condition:
    """What is true of a compilation. ``name`` states it in a few words, ``violations`` looks where it is not.

    One that is cheap, and whose violation would be a wrong result without an error, is ``always`` checked.
    """

    name: str
    violations: Callable[[Compilation], Iterable[Violation]]
    always: bool = False


def verify(stage: str, state: Compilation, conditions: Iterable[Condition], step: str = "") -> None:
    """Raise :class:`tkc.InternalError` for the first of ``conditions`` that does not hold after ``stage``.

    ``step`` is the pass of the stage that ran last, if the stage is not through.
    """
    for condition in conditions:
        for violation in condition.violations(state):
            where = f"the pass {step} of the stage '{stage}'" if step else f"the stage '{stage}'"
            of = f" of the function {violation.function}" if violation.function else ""
            error = InternalError(f"after {where}, this does not hold{of}: {condition.name}; {violation.what}")
            error.stage, error.kind, error.function = stage, condition.name, violation.function
            raise error


def _well_formed(state: Compilation) -> Iterator[Violation]:
    fault = _fault(state.module)
    if fault is not None:
        functions = ((name, function) for name, function in state.module.functions_items())
        broken = (n.name_hint for n, f in functions if isinstance(f, relax.Function) and _fault(f) is not None)
        yield Violation(next(broken, None), fault)


def _fault(program: IRModule | relax.Function) -> str | None:
    try:
        relax.analysis.well_formed(program)
    except Exception as error:  # of a type that TVM chooses
        return str(error).strip().splitlines()[-1]
    return None


def _inputs_counted(state: Compilation) -> Iterator[Violation]:
    main = next((f for name, f in state.module.functions_items() if name.name_hint == MAIN), None)
    if not isinstance(main, relax.Function):
        yield Violation(MAIN, "the module has no such graph function")
        return
    count = (main.attrs or {}).get(NUM_INPUT)
    if count is not None and not 0 <= int(count) <= len(main.params):
        yield Violation(MAIN, f"it has {len(main.params)} parameters, of which {int(count)} are said to be inputs")


def returned(module: IRModule) -> relax.StructInfo | None:
    """What the model returns, as the code of ``main`` says, which may differ from what the function is declared to."""
    main = next((f for name, f in module.functions_items() if name.name_hint == MAIN), None)
    return main.body.struct_info if isinstance(main, relax.Function) else None


def _results_kept(state: Compilation) -> Iterator[Violation]:
    expected, found = _fields(state.returned), _fields(returned(state.module))
    if len(expected) != len(found):
        yield Violation(MAIN, f"it returned {len(expected)} values, and returns {len(found)}")
    for position, (before, after) in enumerate(zip(expected, found, strict=False)):
        tensors = isinstance(before, relax.TensorStructInfo) and isinstance(after, relax.TensorStructInfo)
        if tensors and not _may_be_equal(before, after):
            yield Violation(MAIN, f"result {position} was {before}, and is {after}")


def _fields(info: relax.StructInfo | None) -> list[relax.StructInfo]:
    if isinstance(info, relax.TupleStructInfo):
        return [leaf for field in info.fields for leaf in _fields(field)]
    return [] if info is None else [info]


def _updates_returned(state: Compilation) -> Iterator[Violation]:
    for name, function in _graph_functions(state.module):
        positions = [int(position) for position in (function.attrs or {}).get(UPDATES, ())]
        if not positions:
            continue
        if len(set(positions)) < len(positions) or not all(0 <= p < len(function.params) for p in positions):
            yield Violation(name, f"it updates the parameters {positions} of {len(function.params)}")
            continue
        result = function.ret_struct_info
        if not isinstance(result, relax.TupleStructInfo) or len(result.fields) < len(positions):
            yield Violation(name, f"it updates {len(positions)} parameters and returns {result}")
            continue
        for position, value in zip(positions, result.fields[-len(positions) :], strict=True):
            target = function.params[position]
            if not _may_be_equal(target.struct_info, value):
                yield Violation(name, f"{target.name_hint} is {target.struct_info}, and its new value {value}")


def _may_be_equal(left: relax.StructInfo, right: relax.StructInfo) -> bool:
    """Whether two tensors have one dtype and, as far as sizes are numbers, one shape."""
    if not (isinstance(left, relax.TensorStructInfo) and isinstance(right, relax.TensorStructInfo)):
        return False
    if left.dtype != right.dtype or (left.ndim != right.ndim and -1 not in (left.ndim, right.ndim)):
        return False
    known = isinstance(left.shape, relax.ShapeExpr) and isinstance(right.shape, relax.ShapeExpr)
    pairs = zip(left.shape, right.shape, strict=True) if known else ()
    return all(int(a) == int(b) for a, b in pairs if isinstance(a, tirx.IntImm) and isinstance(b, tirx.IntImm))


def _kernels_marked(state: Compilation) -> Iterator[Violation]:
    for name, function in _tensor_functions(state.module):
        dispatch = kernel_dispatch(function)
        if dispatch is None:
            continue
        attributes = function.attrs
        if int(attributes.get(OP_PATTERN, -1)) != OPAQUE_PATTERN or not attributes.get(IS_SCHEDULED, False):
            yield Violation(name, "it calls a kernel, and is not marked opaque and scheduled")
        wanted = sorted(request.symbol for request in dispatch.requests)
        if (called := sorted(_kernel_symbols(function))) != wanted:
            yield Violation(name, f"it calls {_listed(called)} and should call {_listed(wanted)}")


def _kernels_requested(state: Compilation) -> Iterator[Violation]:
    requested = {request.symbol for kernel in state.kernels or () for request in kernel.requests}
    for name, function in _tensor_functions(state.module):
        called = _kernel_symbols(function)
        if called and KERNEL not in (function.attrs or {}):
            yield Violation(name, f"it has taken in the call of {_listed(called)}")
        elif missing := [symbol for symbol in called if symbol not in requested]:
            yield Violation(name, f"no library of {_listed(missing)} is requested")


def _attention_spelled_out(state: Compilation) -> Iterator[Violation]:
    for name, call in _operator_calls(state.module):
        # TVM lowers attention in windows itself.
        if call.op.name in ("relax.nn.attention", "relax.nn.attention_bias") and call.attrs.window_size is None:
            yield Violation(name, f"{call.op.name} is left")


def _opaque_unfused(state: Compilation) -> Iterator[Violation]:
    for name, function in _graph_functions(state.module):
        if not (function.attrs or {}).get(PRIMITIVE, False):
            continue
        for call in _calls(function):
            callee = call.args[0] if call.args else None
            if isinstance(callee, GlobalVar) and _is_opaque(state.module[callee]):
                yield Violation(name, f"it fuses {callee.name_hint}, which is opaque")


def _is_opaque(function: object) -> bool:
    return isinstance(function, tirx.PrimFunc) and int((function.attrs or {}).get(OP_PATTERN, -1)) == OPAQUE_PATTERN


_LOWERED_LATER = frozenset(
    {
        "relax.call_tir",
        "relax.call_tir_inplace",
        "relax.call_pure_packed",
        "relax.call_inplace_packed",
        "relax.call_dps_packed",
        "relax.reshape",  # a view
        "relax.memory.view",
        "relax.memory.ensure_zero_copy",
        "relax.shape_of",
        "relax.tensor_to_shape",
        "relax.shape_to_tensor",
        "relax.builtin.alloc_tensor",
        "relax.null_value",
        "relax.assert_op",
        "relax.print",
    }
)
"""Operators that the last stage lowers."""

_OF_THE_MACHINE = frozenset(
    {
        "relax.call_builtin_with_ctx",
        "relax.vm.alloc_storage",
        "relax.vm.alloc_tensor",
        "relax.vm.kill_object",
        "relax.null_value",
    }
)
"""Operators for which TVM's ``CodeGenVM`` has code."""


def _functions_only(state: Compilation) -> Iterator[Violation]:
    for name, function in _graph_functions(state.module):
        if (function.attrs or {}).get(PRIMITIVE, False):
            yield Violation(name, "it is a group of operators that has not become a TensorIR function")
    yield from _other_operators(state.module, _LOWERED_LATER)


def _machine_operators(state: Compilation) -> Iterator[Violation]:
    yield from _other_operators(state.module, _OF_THE_MACHINE)


def _other_operators(module: IRModule, known: frozenset[str]) -> Iterator[Violation]:
    for name, call in _operator_calls(module):
        if call.op.name not in known:
            yield Violation(name, f"{call.op.name} is left")


def _updated_in_place(state: Compilation) -> Iterator[Violation]:
    for name, function in _graph_functions(state.module):
        if updates(function):
            yield from (Violation(name, what) for what in overwritten(function))


def _scheduled(state: Compilation) -> Iterator[Violation]:
    for name, function in _tensor_functions(state.module):
        attributes = function.attrs or {}
        if KERNEL not in attributes and not attributes.get(IS_SCHEDULED, False):
            yield Violation(name, "it has no schedule")


def _entries_exported(state: Compilation) -> Iterator[Violation]:
    functions = {name.name_hint: function for name, function in state.module.functions_items()}
    for entry in (MAIN, RETAINING_MAIN):
        symbol = ((functions[entry].attrs if entry in functions else None) or {}).get(GLOBAL_SYMBOL)
        if (entry in functions or entry == MAIN) and symbol != entry:
            yield Violation(entry, "it has no symbol of its name")


WELL_FORMED = Condition("the module is well formed", _well_formed)
INPUTS_COUNTED = Condition("main's first parameters are the inputs that it counts", _inputs_counted)
RESULTS_KEPT = Condition("the results have the dtypes and shapes of the imported model's", _results_kept, always=True)
UPDATES_RETURNED = Condition("a function returns a fitting new value of every parameter it updates", _updates_returned)
KERNELS_MARKED = Condition("a function that calls a kernel is opaque, scheduled, and calls that one", _kernels_marked)
KERNELS_REQUESTED = Condition("only kernels whose libraries are requested are called", _kernels_requested)
ATTENTION_SPELLED_OUT = Condition("attention that no kernel took is spelled out", _attention_spelled_out)
OPAQUE_UNFUSED = Condition("no opaque function is fused", _opaque_unfused)
FUNCTIONS_ONLY = Condition("no operator is left that the last stage does not lower", _functions_only)
UPDATED_IN_PLACE = Condition("parameters are updated in their own memory, and not read later", _updated_in_place)
SCHEDULED = Condition("every function has a schedule", _scheduled)
ENTRIES_EXPORTED = Condition("the program's entries are exported", _entries_exported)
MACHINE_OPERATORS = Condition("no operator is left that VM code generation lacks", _machine_operators)


def _graph_functions(module: IRModule) -> Iterator[tuple[str, relax.Function]]:
    for name, function in module.functions_items():
        if isinstance(function, relax.Function):
            yield name.name_hint, function


def _tensor_functions(module: IRModule) -> Iterator[tuple[str, tirx.PrimFunc]]:
    for name, function in module.functions_items():
        if isinstance(function, tirx.PrimFunc):
            yield name.name_hint, function


def _calls(function: relax.Function) -> list[relax.Call]:
    found: list[relax.Call] = []
    relax.analysis.post_order_visit(function, lambda e: found.append(e) if isinstance(e, relax.Call) else None)
    return found


def _operator_calls(module: IRModule) -> Iterator[tuple[str, relax.Call]]:
    for name, function in _graph_functions(module):
        for call in _calls(function):
            if isinstance(call.op, Op):
                yield name, call


def _kernel_symbols(function: tirx.PrimFunc) -> list[str]:
    """The functions of kernel libraries that ``function`` calls."""
    found: list[str] = []

    def visit(node: object) -> None:
        if isinstance(node, tirx.Call) and getattr(node.op, "name", "") in _PACKED and node.args:
            symbol = node.args[0]
            if isinstance(symbol, tirx.StringImm) and symbol.value.startswith(KERNEL_SYMBOL_PREFIX):
                found.append(str(symbol.value))

    tirx.stmt_functor.post_order_visit(function.body, visit)
    return found


_PACKED = ("tirx.tvm_call_packed", "tirx.tvm_call_cpacked")


def _listed(symbols: Iterable[str]) -> str:
    return ", ".join(symbols) or "nothing"
