"""Checks what an executable is called with, so that nothing runs on tensors it was not compiled for."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from torch.autograd import forward_ad

from tkc.errors import IndexInputError, InputError
from tkc.runtime.overlaps import MovedOverlapCheck, OverlapCheck
from tkc.runtime.signature import IndexBound, Signature, TensorSpec
from tkc.runtime.sizes import Formula
from tkc.runtime.tensors import held, to_torch

_ALIGNMENT = 64  # bytes; what TVM assumes of every buffer

_TOO_SMALL = (
    ", as its declared sizes or an operator need (a window, a reduction, a row that is read); pad the input, or leave "
    "out the call"
)


class InputChecks:
    """The checks of one signature: each tensor by itself, then the sizes of all against each other."""

    def __init__(self, signature: Signature, device: torch.device) -> None:
        self._tensors = [_TensorCheck(spec, signature, device) for spec in signature.inputs]
        self._conditions = [Formula(text) for text in signature.conditions]
        self._dependent = [
            (position, axis, spec, Formula(dim))
            for position, spec in enumerate(signature.inputs)
            for axis, dim in enumerate(spec.shape)
            if isinstance(dim, str) and not dim.isidentifier()
        ]
        inputs = {spec.name: position for position, spec in enumerate(signature.inputs)}
        # On a GPU the elements are checked by generated code: to look at them here would be to wait for it.
        self._indices = [
            _IndexCheck(inputs[bound.input], bound) for bound in signature.index_bounds if device.type == "cpu"
        ]
        names = [spec.name for spec in signature.inputs]
        self._overlaps = OverlapCheck(names, signature.updated_inputs) if signature.updated_inputs else None
        self._accepted: list[torch.Size] = []  # the shapes of the last call; those of the next are often the same
        self._last: _LastCall | None = None

    def __call__(self, values: Sequence[Any]) -> list[torch.Tensor]:
        """The inputs as generated code takes them. Raises :class:`InputError` for what does not fit."""
        if forward_ad._current_level >= 0 or torch._C._functorch.peek_interpreter_stack() is not None:
            self._check_plain(values)
        last = self._last
        if last is not None and last.is_like(values):
            if self._overlaps is not None:
                self._overlaps(values)
            for check in self._indices:
                check(values[check.position], last.sizes)
            return list(values)
        sizes: dict[str, tuple[int, str]] = {}
        tensors = [check(value, sizes) for value, check in zip(values, self._tensors, strict=True)]
        if self._overlaps is not None:
            self._overlaps([to_torch(value, each.spec.name) for value, each in zip(values, self._tensors, strict=True)])
        named = self._check_together(tensors, sizes)
        metadata = [_metadata(value) for value in values]
        if None not in metadata and all(
            check.takes_as_it_is(value) for value, check in zip(values, self._tensors, strict=True)
        ):
            self._last = _LastCall(metadata, named)
        return tensors

    def _check_together(self, tensors: Sequence[torch.Tensor], sizes: dict[str, tuple[int, str]]) -> dict[str, int]:
        """The symbolic sizes. Raises :class:`InputError` for fitted ``tensors`` of which each by itself is right."""
        named = {name: size for name, (size, _) in sizes.items()}
        if self._conditions or self._dependent:
            shapes = [tensor.shape for tensor in tensors]
            if shapes != self._accepted:
                try:
                    self._check_relations(shapes, named)
                except (ArithmeticError, ValueError, TypeError) as error:  # the root of a negative number is complex
                    given = ", ".join(f"{name} = {size}" for name, size in sorted(named.items()))
                    what = "make no divisor 0" if isinstance(error, ZeroDivisionError) else f"give no {error}"
                    raise InputError(f"the model was exported for sizes that {what}: {given}") from None
                self._accepted = shapes
        for check in self._indices:
            check(tensors[check.position], named)
        return named

    def _check_plain(self, values: Sequence[Any]) -> None:
        """Raise :class:`InputError` for tensors that PyTorch transforms: what they carry would be dropped."""
        for value, check in zip(values, self._tensors, strict=True):
            if not isinstance(value, torch.Tensor):
                continue
            if torch._C._functorch.is_functorch_wrapped_tensor(value):
                what = "a tensor of torch.func (jvp, grad, vmap)"
            elif forward_ad._current_level >= 0 and forward_ad.unpack_dual(value).tangent is not None:
                what = "a dual tensor of forward-mode differentiation"
            else:
                continue
            raise InputError(
                f"input '{check.spec.name}' is {what}, which a compiled model computes nothing for; transform the "
                "model itself, as in torch.func.jvp(model, ...)"
            )

    def _check_relations(self, shapes: Sequence[torch.Size], sizes: dict[str, int]) -> None:
        for position, axis, spec, formula in self._dependent:
            found, expected = shapes[position][axis], formula(sizes)
            if found != expected:
                raise InputError(
                    f"axis {axis} of input '{spec.name}' is {found}, expected {expected}, which is {formula.text} "
                    f"where {_values(formula, sizes)}"
                )
        for condition in self._conditions:
            if not condition(sizes):
                raise InputError(
                    f"the model was exported for sizes with {condition.text}; found {_values(condition, sizes)}"
                )


class BoundChecks(InputChecks):
    """The checks of calls in which some inputs are the same tensors as when this was made, which are checked then."""

    def __init__(
        self, signature: Signature, device: torch.device, values: Sequence[Any], positions: Collection[int]
    ) -> None:
        """``values`` are the inputs of a call; those at ``positions`` are bound, but for those that generated code does
        not read where they are. Raises :class:`InputError` for one that does not fit."""
        super().__init__(signature, device)
        self._sizes: dict[str, tuple[int, str]] = {}
        self.bound: dict[int, torch.Tensor] = {}
        """The tensors that are bound, as generated code takes them, by their positions."""
        for position in sorted(positions):
            check, value = self._tensors[position], values[position]
            if isinstance(value, torch.Tensor) and not check.spec.is_narrow:
                tensor = check(value, self._sizes)
                if _is_where(tensor, value):
                    self.bound[position] = tensor
        self.number = len(values)
        """How many inputs there are."""
        self.moving = tuple(position for position in range(self.number) if position not in self.bound)
        """The positions of the others."""
        self._moving_checks = [(position, self._tensors[position]) for position in self.moving]
        self._complete: list[Any] = [self.bound.get(position) for position in range(self.number)]
        self._seen: dict[int, _Seen] = {}
        self._moved = None if self._overlaps is None else MovedOverlapCheck(self._overlaps, self.bound)

    def __call__(self, values: Sequence[Any]) -> list[torch.Tensor]:
        """The moving ones of all inputs ``values``, as generated code takes them."""
        if forward_ad._current_level >= 0 or torch._C._functorch.peek_interpreter_stack() is not None:
            self._check_plain(values)
        sizes = self._sizes.copy()
        moving: list[torch.Tensor] = []
        moved: dict[int, torch.Tensor] = {}
        seen: dict[int, _Seen] = {}
        for position, check in self._moving_checks:
            value = values[position]
            now = _seen(value) if check.is_of_one_shape else None
            if now is not None and self._seen.get(position) == now:
                moving.append(value)  # a cache, as it was in the call before
                continue
            self._seen.pop(position, None)
            moving.append(check(value, sizes))
            moved[position] = to_torch(value, check.spec.name)
            if now is not None and check.takes_as_it_is(value):
                seen[position] = now
        if self._moved is not None:
            self._moved(moved)
        self._seen |= seen
        if self._conditions or self._dependent or self._indices:
            complete = self._complete.copy()
            for position, tensor in zip(self.moving, moving, strict=True):
                complete[position] = tensor
            self._check_together(complete, sizes)
        return moving


_Metadata: TypeAlias = "tuple[torch.dtype, torch.device, torch.Size, tuple[int, ...]]"


def _metadata(value: Any) -> _Metadata | None:
    """Dtype, device, shape and strides of a plain tensor; ``None`` for anything else."""
    if type(value) is not torch.Tensor or value.is_nested or value.layout is not torch.strided:
        return None
    if value.requires_grad or value.is_neg():
        return None
    return value.dtype, value.device, value.shape, value.stride()


_Seen: TypeAlias = "tuple[_Metadata, int]"


def _seen(value: Any) -> _Seen | None:
    """What tells a plain tensor from another one; ``None`` for what is none."""
    metadata = _metadata(value)
    return metadata and (metadata, value.data_ptr())


class _LastCall:
    """A call whose inputs were all taken as they are. Those of the next one often differ in address alone."""

    def __init__(self, metadata: Sequence[_Metadata | None], sizes: dict[str, int]) -> None:
        self._metadata = metadata
        self.sizes = sizes

    def is_like(self, values: Sequence[Any]) -> bool:
        """Whether ``values`` have the same metadata and are aligned, so that they fit and are taken as they are."""
        if len(values) != len(self._metadata):
            return False
        for value, metadata in zip(values, self._metadata, strict=True):
            if _metadata(value) != metadata or value.data_ptr() % _ALIGNMENT:
                return False
        return True


def _is_where(tensor: torch.Tensor, value: torch.Tensor) -> bool:
    """Whether ``tensor``, made of ``value``, is its memory and no copy."""
    return tensor.data_ptr() == value.data_ptr() != 0 and not value.is_conj() and not value.is_neg()


def _values(formula: Formula, sizes: dict[str, int]) -> str:
    return ", ".join(f"{name} = {sizes[name]}" for name in sorted(formula.names))


class _TensorCheck:
    """Checks one input against its spec: kind, dtype, device, axes, sizes and their ranges."""

    def __init__(self, spec: TensorSpec, signature: Signature, device: torch.device) -> None:
        self.spec = spec
        self.dtype = getattr(torch, spec.held)
        self.device = device
        self.updated = spec.name in signature.updated_inputs
        self.dims = [(dim, signature.sizes.get(dim) if isinstance(dim, str) else None) for dim in spec.shape]
        self.is_of_one_shape = all(isinstance(dim, int) for dim in spec.shape)

    def takes_as_it_is(self, value: torch.Tensor) -> bool:
        """Whether generated code takes ``value``, which fits, where it is."""
        return (
            not self.spec.is_narrow
            and not value.is_complex()
            and value.numel() > 0
            and value.data_ptr() % _ALIGNMENT == 0
            and value.stride() == _strides(value)
        )

    def __call__(self, value: Any, sizes: dict[str, tuple[int, str]]) -> torch.Tensor:
        name = self.spec.name
        spec = self.spec
        tensor = held(value, name, spec.dtype) if spec.is_narrow else to_torch(value, name)
        if tensor.dtype != self.dtype:
            raise InputError(
                f"input '{name}' has dtype {_name(tensor.dtype)}, expected {self.spec.dtype}; "
                f"convert it with .to(torch.{self.spec.dtype})"
            )
        if tensor.layout is not torch.strided or tensor.is_nested:
            raise InputError(
                f"input '{name}' is a {'nested' if tensor.is_nested else str(tensor.layout).removeprefix('torch.')} "
                "tensor; pass a dense one (.to_dense(), .to_padded_tensor(...))"
            )
        if tensor.device != self.device:
            raise InputError(
                f"input '{name}' is on {tensor.device}, expected {self.device}; move it with .to('{self.device}')"
            )
        if tensor.dim() != len(self.dims):
            raise InputError(
                f"input '{name}' has shape {list(tensor.shape)}, expected {len(self.dims)} axes: {described(self.spec)}"
            )
        for axis, (size, (dim, bounds)) in enumerate(zip(tensor.shape, self.dims, strict=True)):
            if isinstance(dim, str) and not dim.isidentifier():
                continue  # a formula over other sizes, which is checked when all of them are known
            if isinstance(dim, int):
                if size != dim:
                    raise InputError(f"axis {axis} of input '{name}' is {size}, expected {dim}: {described(self.spec)}")
                continue
            seen, where = sizes.setdefault(dim, (size, name))
            if seen != size:
                raise InputError(f"axis {axis} of input '{name}' is {size}, but '{dim}' is {seen} in input '{where}'")
            if bounds is not None and not (
                bounds.minimum <= size and (bounds.maximum is None or size <= bounds.maximum)
            ):
                upper = "" if bounds.maximum is None else f" and at most {bounds.maximum}"
                cure = "" if size >= bounds.minimum else _TOO_SMALL
                raise InputError(
                    f"axis {axis} of input '{name}' ('{dim}') is {size}; "
                    f"the model was compiled for at least {bounds.minimum}{upper}{cure}"
                )
        if self.updated:
            _check_writable(value, tensor, name)
        tensor = tensor.detach()
        return aligned(torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor)


class _IndexCheck:
    """Checks that the elements of one input are indices into an axis."""

    def __init__(self, position: int, bound: IndexBound) -> None:
        self.position = position
        self.bound = bound
        self._size = bound.size if isinstance(bound.size, int) else Formula(bound.size)

    def __call__(self, tensor: torch.Tensor, sizes: dict[str, int]) -> None:
        if tensor.numel() == 0:
            return
        size = self._size if isinstance(self._size, int) else self._size(sizes)
        low, high = (int(bound) for bound in torch.aminmax(tensor))
        lowest = -size if self.bound.wraps else 0
        if low >= lowest and high < size:
            return
        bad = high if high >= size else low
        place = [int(axis) for axis in (tensor == bad).nonzero()[0]]
        raise IndexInputError(
            f"input '{self.bound.input}' holds the index {bad} at {place}, expected {lowest} to {size - 1}: "
            f"{self.bound.source} indexes an axis of {size} with it"
        )


def _check_writable(value: Any, tensor: torch.Tensor, name: str) -> None:
    if isinstance(value, np.ndarray) and not value.flags.writeable:
        raise InputError(f"input '{name}', which the model updates, is a read-only array; pass a copy of it")
    copied = isinstance(value, np.ndarray) and any(step < 0 for step in value.strides)
    if copied or any(size > 1 and step == 0 for size, step in zip(tensor.shape, tensor.stride(), strict=True)):
        raise InputError(
            f"input '{name}', which the model updates, is a view that cannot be written into (expanded, or reversed); "
            "pass a contiguous copy of it"
        )


def aligned(tensor: torch.Tensor) -> torch.Tensor:
    """``tensor`` as generated code and kernels need it: contiguous, and aligned for vectors; else a copy of it."""
    if tensor.numel() == 0:
        # PyTorch calls an empty tensor contiguous whatever its strides are; TVM does not.
        if tensor.stride() == _strides(tensor) and tensor.data_ptr() % _ALIGNMENT == 0:
            return tensor
        return tensor.new_empty(0).as_strided(tensor.shape, _strides(tensor))
    tensor = tensor.resolve_neg().contiguous()
    if tensor.data_ptr() % _ALIGNMENT:
        tensor = tensor.clone()
    # Nor does PyTorch care for the stride along an axis of one element, which kernels compare with what it is to be.
    if 1 in tensor.shape and tensor.stride() != (strides := _strides(tensor)):
        tensor = tensor.as_strided(tensor.shape, strides)
    return tensor


def _strides(tensor: torch.Tensor) -> tuple[int, ...]:
    """What the strides of ``tensor`` are if its elements lie one behind the other."""
    strides = [1] * tensor.ndim
    for axis in range(tensor.ndim - 1, 0, -1):
        strides[axis - 1] = strides[axis] * tensor.shape[axis]
    return tuple(strides)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def described(spec: TensorSpec) -> str:
    """A dtype and shape as messages show them."""
    return f"{spec.dtype} [{', '.join(map(str, spec.shape))}]"
