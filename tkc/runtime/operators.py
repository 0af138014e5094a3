"""PyTorch's operators, called in place by generated code.

Generated code calls :data:`~tkc.contracts.CALL_OPERATOR` with a description of the call, in JSON, and with the tensors
and sizes that it takes. Tensors are shared by DLPack, not copied. A description is ``{"operator": "aten::sort.stable",
"arguments": [...], "named": {...}, "results": ...}``. Each argument is a number, text, ``null`` or a list as it is, or
an object of one key: ``tensor`` or ``size`` with its place among the operands, ``ordered`` for such a tensor, given
with its axes from the outermost in memory to the innermost, ``complex`` for the complex tensor of such a tensor's
pairs, ``number`` for its one element, ``call`` for what such a call returns, ``float`` and ``parts`` for what JSON
lacks, ``dtype``, ``layout`` or ``memory_format`` by its name, ``device`` for the one that the model runs on.
``results`` is ``"tensors"``, ``"list"`` where one tensor, too, is returned as a list, or the bounds ``[least, most]``
of the one integer that the operator reads out of a tensor. Complex results are returned as pairs. ``declared`` says
what an operator of another library has promised of each result, by its fake function: dtype and shape. An operator that
writes into its arguments writes into copies of the operands ``bases``, or into views of them (``slice`` with operand,
axis, start and end; ``strided`` with operand, sizes, strides and offset), and the copies are returned behind its
results.
"""

from __future__ import annotations

import functools
import json
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from typing import Any

import torch

from tkc.contracts import (
    ATTEND,
    CALL_OPERATOR,
    CALL_TEXT,
    CONVOLVE,
    CONVOLVE_INTEGERS,
    MULTIPLY_BFLOAT16,
    MULTIPLY_INTEGERS,
    SORT,
    TOP,
)
from tkc.errors import InputError, OperatorError, OutOfMemoryError
from tkc.runtime import text_functions
from tkc.runtime.attention_calls import attend
from tkc.runtime.bfloat16_products import multiply_bfloat16
from tkc.runtime.convolutions import Packed, convolve
from tkc.runtime.input_checks import aligned
from tkc.runtime.integer_products import convolve_integers, multiply_integers
from tkc.runtime.sorts import sort, top

_EARLIER_CHECK = "tkc.check_sizes"
"""By which artifacts of format 4 that were made before :data:`tkc.contracts.CHECK` check what a model asserts."""

Operands = Sequence[Any]
_Value = Callable[[Operands], Any]


class _Running(threading.local):
    """What the calls of this thread's model need to know, and what failed in them."""

    device = torch.device("cpu")
    packed: Packed | None = None
    called: str | None = None  # the last operator of another library
    error: Exception | None = None


_RUNNING = _Running()
_AUTOCASTS = ("cpu", "cuda")


def run_on(device: torch.device, packed: Packed | None, function: Callable[..., Any], *arguments: Any) -> Any:
    """What ``function`` returns, whose operators create what they create on ``device`` and pack weights in ``packed``.

    They record no gradients, and run outside of the caller's autocast: generated code expects the dtypes that the model
    was compiled with. Raises what one of them raised, as it was.
    """
    if _THREADS.are_gone:
        torch.set_num_threads(1)
        _THREADS.are_gone = False
    running = _RUNNING
    earlier = running.device, running.packed
    running.device, running.packed, running.error, running.called = device, packed, None, None
    try:
        with _plain_computation():
            return function(*arguments)
    except Exception:
        if running.error is not None:
            raise running.error from running.error.__cause__  # and not from what the generated code made of it
        raise
    finally:
        (running.device, running.packed), running.error = earlier, None


def _plain_computation() -> AbstractContextManager[Any]:
    """No gradients, and no autocast."""
    if not any(map(torch.is_autocast_enabled, _AUTOCASTS)):
        return torch.no_grad()
    outside = ExitStack()
    outside.enter_context(torch.no_grad())
    for kind in _AUTOCASTS:
        outside.enter_context(torch.autocast(kind, enabled=False))
    return outside


class _Threads:
    """OpenMP's, in which operators run: a child that was forked has none, and would wait for them."""

    are_gone = False

    def lose(self) -> None:
        self.are_gone = True


_THREADS = _Threads()


@functools.cache
def register() -> None:
    """Have generated code find the functions that it calls operators by."""
    import tvm_ffi

    functions: dict[str, Callable[..., Any]] = {
        CALL_OPERATOR: _call,
        _EARLIER_CHECK: _checked,
        CALL_TEXT: _call_text,
        CONVOLVE: _convolve,
        MULTIPLY_INTEGERS: _multiply_integers,
        CONVOLVE_INTEGERS: _convolve_integers,
        MULTIPLY_BFLOAT16: _of_text(multiply_bfloat16),
        ATTEND: _of_text(attend),
        SORT: _of_text(sort),
        TOP: _of_text(top),
    }
    for name, function in functions.items():
        # Tensors come as PyTorch's: through its C interface of DLPack, a tenth of what `from_dlpack` takes.
        tvm_ffi.register_global_func(name, tvm_ffi.convert_func(_noting(function), tensor_cls=torch.Tensor))
    os.register_at_fork(after_in_child=_THREADS.lose)


def _noting(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function``, whose exception is noted: TVM hands on its message alone."""

    def noting(*arguments: Any) -> Any:
        try:
            return function(*arguments)
        except Exception as error:
            _RUNNING.error = error
            raise

    return noting


def _of_text(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function`` with its description as Python's text, not TVM's."""
    return lambda description, *operands: function(str(description), *operands)


def _call(description: str, *operands: Any) -> Any:
    return _prepared(str(description))(operands)


def _call_text(description: str, *operands: Any) -> Any:
    return text_functions.called(str(description), operands)


def _convolve(description: str, image: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return convolve(_RUNNING.packed, str(description), image, weight)


def _multiply_integers(description: str, *operands: torch.Tensor) -> torch.Tensor:
    return multiply_integers(_RUNNING.packed, str(description), *operands)


def _convolve_integers(description: str, *operands: torch.Tensor) -> torch.Tensor:
    return convolve_integers(_RUNNING.packed, str(description), *operands)


def _checked(message: str, value: Any, holds: Any) -> Any:
    """``value``, if the condition on sizes, or on other numbers, ``holds``: a number, or a tensor of one."""
    if not holds:
        raise InputError(str(message))
    return value


@functools.lru_cache(maxsize=4096)
def _prepared(description: str) -> Callable[[Operands], Any]:
    """What makes the call that ``description`` describes."""
    call = json.loads(description)
    name: str = call["operator"]
    operator = _called_with_values(call)
    bounds = call["results"]
    bases: list[int] = call.get("bases", [])
    declared = None if "declared" not in call else [each and _Declared.of(each) for each in call["declared"]]
    kinds = {"tensors": _tensors, "list": _list}
    results = kinds[bounds] if isinstance(bounds, str) else lambda found, _: _size(found, name, *bounds)

    def run(given: Operands) -> Any:
        operands = list(given)
        for position in bases:
            operands[position] = operands[position].clone()
        try:
            found = operator(operands)
        except torch.OutOfMemoryError as error:
            raise OutOfMemoryError(f"there is not enough memory for {name}: {error}") from error
        except Exception as error:
            shapes = ", ".join(
                f"{str(each.dtype).removeprefix('torch.')} {list(each.shape)}"
                if isinstance(each, torch.Tensor)
                else str(each)
                for each in operands
            )
            raise OperatorError(f"PyTorch's {name}, which the model calls, failed for {shapes}: {error}") from error
        if bases:
            written = [aligned(operands[position]) for position in bases]
            found = [*([None] if found is None else _list(found, operands)), *written]
        if declared is not None:
            _check_declared(name, declared, found)
        return found if bases else results(found, operands)

    return run


@dataclass(frozen=True)
class _Declared:
    """What the fake function of an operator says of a result; sizes that only calls know are ``None``."""

    dtype: torch.dtype
    shape: tuple[int | None, ...]

    @classmethod
    def of(cls, description: Mapping[str, Any]) -> _Declared:
        return cls(getattr(torch, description["dtype"]), tuple(description["shape"]))

    def holds(self, result: torch.Tensor) -> bool:
        if result.dtype is not self.dtype or result.ndim != len(self.shape):
            return False
        return all(size is None or size == own for own, size in zip(result.shape, self.shape, strict=True))

    def __str__(self) -> str:
        sizes = ", ".join("?" if size is None else str(size) for size in self.shape)
        return f"{str(self.dtype).removeprefix('torch.')} [{sizes}]"


def _check_declared(name: str, declared: Sequence[_Declared | None], found: Any) -> None:
    """Raise :class:`OperatorError` where the results are not as the operator's fake function declares them.

    The model was compiled for those. Sizes that only a call knows are checked by generated code.
    """
    results = found if isinstance(found, list | tuple) else [found]
    _RUNNING.called = name
    if len(results) < len(declared):
        raise OperatorError(f"{name} returned {len(results)} results; its fake function has {len(declared)}")
    for place, (result, promised) in enumerate(zip(results, declared, strict=False)):
        if promised is not None and isinstance(result, torch.Tensor) and not promised.holds(result):
            raise OperatorError(
                f"{name} returned {_Declared(result.dtype, tuple(result.shape))} as result {place}; its fake function "
                f"(register_fake), by which the model was compiled, has {promised}. Mend one of them, and compile the "
                "model again"
            )


def last_called() -> str | None:
    """The operator of another library that this thread's model called last, if it calls such."""
    return _RUNNING.called


def called_as_described(description: str, device: torch.device, operands: Operands) -> Any:
    """What the operator of ``description`` returns for PyTorch's own tensors, where no compiled model runs."""
    return run_on(device, None, _called_with_values(json.loads(description)), operands)


def _called_with_values(call: Mapping[str, Any]) -> _Value:
    """The operator of a ``call``, of arguments that are made of the operands."""
    operator = _operator(call["operator"])
    arguments = [_value(argument) for argument in call["arguments"]]
    named = {key: _value(argument) for key, argument in call["named"].items()}
    if not named:
        return lambda operands: operator(*[value(operands) for value in arguments])
    return lambda operands: operator(
        *[value(operands) for value in arguments], **{key: value(operands) for key, value in named.items()}
    )


def _operator(name: str) -> Callable[..., Any]:
    namespace, _, rest = name.partition("::")
    base, _, overload = rest.partition(".")
    found: Callable[..., Any] = getattr(getattr(getattr(torch.ops, namespace), base), overload or "default")
    return found


def _value(argument: Any) -> _Value:
    """What makes an argument, as it is described, of the operands."""
    if isinstance(argument, list):
        parts = [_value(part) for part in argument]
        return lambda operands: [part(operands) for part in parts]
    if not isinstance(argument, dict):
        return lambda _: argument
    ((kind, given),) = argument.items()
    if kind in ("tensor", "size"):
        return lambda operands: operands[given]
    if kind in ("slice", "strided"):
        view = torch.ops.aten.slice.Tensor if kind == "slice" else torch.ops.aten.as_strided.default
        base, *how = given
        parts = [_value(part) for part in how]
        return lambda operands: view(operands[base], *[part(operands) for part in parts])
    if kind == "call":
        return _called_with_values(given)
    if kind == "ordered":
        place, *order = given
        back = [order.index(axis) for axis in range(len(order))]
        return lambda operands: operands[place].permute(order).contiguous().permute(back)
    if kind == "complex":
        return lambda operands: torch.view_as_complex(operands[given])
    if kind == "parts":
        return lambda _: complex(*map(float, given))
    if kind == "number":
        return lambda operands: operands[given].item()
    if kind == "device":
        return lambda _: _RUNNING.device
    constant = float(given) if kind == "float" else getattr(torch, given)
    return lambda _: constant


def _tensors(found: Any, operands: Operands) -> Any:
    """Results as generated code takes them, in memory that no operand has."""
    taken = [(each.data_ptr(), each.nbytes) for each in operands if isinstance(each, torch.Tensor)]
    if isinstance(found, torch.Tensor):
        return _own(found, taken)
    if isinstance(found, int):
        return _number(found)
    return [_own(each, taken) if isinstance(each, torch.Tensor) else _number(each) for each in found]


def _number(found: int | None) -> Any:
    """An integer as generated code takes it; ``None`` is no result."""
    import tvm_ffi

    return None if found is None else tvm_ffi.Shape((found,))


def _list(found: Any, operands: Operands) -> Any:
    return _tensors([found] if isinstance(found, torch.Tensor) else found, operands)


def _own(tensor: torch.Tensor, taken: Sequence[tuple[int, int]]) -> torch.Tensor:
    """``tensor`` in memory that is not ``taken``, as address and bytes say."""
    address = tensor.data_ptr()
    for start, size in taken:
        if start <= address < start + size:
            # Generated code may write something else there, once nothing reads the operand any more.
            tensor = tensor.clone(memory_format=torch.contiguous_format)
            break
    if tensor.requires_grad:
        tensor = tensor.detach()
    return aligned(torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor)


def _size(found: Any, name: str, least: int | None, most: int | None) -> Any:
    value = int(found)
    if (least is not None and value < least) or (most is not None and value > most):
        bounds = f"at least {least}" if most is None else f"at most {most}" if least is None else f"{least} to {most}"
        raise InputError(
            f"a number that the model reads out of a tensor ({name}) is {value}; it was exported for {bounds}"
        )
    return _number(value)
