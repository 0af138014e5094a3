"""Operators on complex tensors, as operators on their real and imaginary parts."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from operator import attrgetter
from typing import Any

import torch
from torch.utils import _pytree as pytree

from tkc.errors import UnsupportedModelError
from tkc.frontend.torch.decompositions import decompositions
from tkc.frontend.torch.pair_calls import on_pairs

aten = torch.ops.aten


def is_linear_algebra(operator: torch._ops.OpOverload) -> bool:
    """Whether ``operator`` is one of ``torch.linalg`` that is more than arithmetic."""
    return operator.name().startswith("aten::linalg_") and "norm" not in operator.name()


@contextmanager
def complex_decompositions(*, fallback: bool) -> Iterator[dict[torch._ops.OpOverload, Callable[..., Any]]]:
    """Decompositions of the operators that make complex tensors of real ones, and meanwhile of those that read them.

    What they make is PyTorch's tensor of a real and an imaginary part, so that each operator that reads one while a
    program is traced becomes operators on these parts: by PyTorch's own rule, by one of :func:`_on_parts`, or, with
    ``fallback``, as a call of the operator on pairs. Raises :class:`UnsupportedModelError` for one that has none.
    """
    from torch._subclasses.complex_tensor import ComplexTensor  # which registers some hundred operators
    from torch._subclasses.complex_tensor._ops import common

    from tkc.runtime import fourier  # noqa: F401, which registers the operators that the transforms call

    own, of_arithmetic = _on_parts(ComplexTensor), decompositions()
    theirs = common.lookup_complex

    numbers = itertools.count()

    def drawn(operator: torch._ops.OpOverload) -> Callable[..., Any]:
        """``operator``, which draws random numbers, called where they are complex, so that they are PyTorch's."""
        like = _RANDOM[operator]

        def make(given: Any, *, dtype: torch.dtype | None = None, **how: Any) -> Any:
            is_pair = isinstance(given, ComplexTensor)
            if not is_pair and isinstance(given, torch.Tensor) and given.is_complex():
                return NotImplemented
            if not (is_pair if dtype is None else dtype.is_complex):
                return operator(given.re, dtype=dtype, **how) if is_pair else NotImplemented
            called(operator)  # or refused
            if not isinstance(given, torch.Tensor):  # a shape, which goes along as a tensor's
                given = torch.empty(given, dtype=torch.float32, device=how.get("device"))
            numbered = {} if dtype is None else {"dtype": dtype}
            return on_pairs(like, ComplexTensor, (given,), numbered, number=next(numbers))

        return make

    def called(operator: torch._ops.OpOverload) -> Callable[..., Any]:
        if not fallback:
            raise UnsupportedModelError(
                f"TKC cannot compile {operator} of complex tensors. Write it on real and imaginary parts, or let "
                "fallback=True call it in PyTorch."
            )
        return lambda *args, **kwargs: on_pairs(operator, ComplexTensor, args, kwargs)

    def lookup(operator: torch._ops.OpOverload, *args: Any, **kwargs: Any) -> Callable[..., Any] | None:
        found = own.get(operator) or own.get(operator.overloadpacket) or theirs(operator, *args, **kwargs)
        name = operator.name()
        if operator in _RANDOM:
            return drawn(operator)
        if found is None and not _OF_EACH_PART.isdisjoint((operator, operator.overloadpacket)):
            return _of_each_part(operator, ComplexTensor)
        if found is None and operator in _OF_ARITHMETIC:
            return of_arithmetic[operator]
        if found is None and is_linear_algebra(operator) and fallback:
            return called(operator)
        if found is None and torch._C._dispatch_has_kernel_for_dispatch_key(name, _COMPOSITE):
            # Not by operator.decompose, which leaves whole what the graph of real numbers keeps.
            found = functools.partial(operator._op_dk, _COMPOSITE)
        gives_tensors = any("Tensor" in str(result.type) for result in operator._schema.returns)
        return called(operator) if found is None and gives_tensors else found

    common.lookup_complex = lookup  # type: ignore[assignment]  # the same parameters by another name
    try:
        # What makes complex results of real matrices; of complex ones, the lookup is asked.
        eigen = (aten.linalg_eig.default, aten.linalg_eigvals.default, aten._linalg_eigvals.default)
        makers = {
            operator: lambda x, operator=operator: NotImplemented if x.is_complex() else called(operator)(x)
            for operator in eigen
        }
        yield {**_makers(ComplexTensor), **makers, **{operator: drawn(operator) for operator in _RANDOM}}
    finally:
        common.lookup_complex = theirs


_RANDOM = {
    **dict.fromkeys((aten.randn.default, aten.randn_like.default), aten.randn_like.default),
    **dict.fromkeys((aten.rand.default, aten.rand_like.default), aten.rand_like.default),
}
"""Operators that draw random numbers, and those that draw the same ones for a tensor of the shape."""
_OF_EACH_PART = frozenset(
    getattr(aten, name)
    for name in (
        *("unfold", "unfold_copy", "diagonal", "diagonal_copy", "diagonal_scatter", "diag_embed", "trace"),
        *("as_strided", "as_strided_copy", "as_strided_scatter", "slice_scatter", "select_scatter"),
        *("view_copy", "permute_copy", "narrow_copy", "unbind_copy", "expand_copy", "squeeze_copy", "unsqueeze_copy"),
        *("t_copy", "transpose_copy", "alias_copy", "detach_copy", "slice_copy", "select_copy", "split_copy"),
        *("put", "take", "gather", "index_select", "index_copy", "index_put", "masked_scatter", "constant_pad_nd"),
        *("scatter_add", "flip", "roll", "rot90", "tril", "triu", "repeat", "cumsum", "sum", "mean", "nansum"),
        *("reflection_pad1d", "reflection_pad2d", "reflection_pad3d"),
        *("unbind", "unsafe_split", "split_with_sizes", "split_with_sizes_copy", "_chunk_cat", "block_diag"),
        *("im2col", "col2im", "unfold_backward", "zero", "replication_pad1d", "replication_pad2d", "replication_pad3d"),
    )
) | {aten.scatter.src}
"""Operators that move or add up elements: of the real parts, and of the imaginary ones."""
_OF_ARITHMETIC = frozenset({aten.addbmm.default, aten.addmv.default, aten._trilinear.default, aten.dist.default})
"""Operators whose decomposition (``decompositions/``) holds for complex numbers, too."""
_PLACES = frozenset({"index", "indices", "mask"})
"""Arguments that say where, and are the same for both parts."""


def _of_each_part(operator: torch._ops.OpOverload, pair: type[torch.Tensor]) -> Callable[..., Any]:
    """The operator on real parts, then on imaginary ones, which are zero for a real tensor among complex ones."""
    names = [argument.name for argument in operator._schema.arguments]

    def imaginary(x: torch.Tensor) -> torch.Tensor:
        return x.im if isinstance(x, pair) else torch.zeros_like(x)  # type: ignore[attr-defined]  # a ComplexTensor

    def imaginary_of(name: str, value: Any) -> Any:
        return value if name in _PLACES else pytree.tree_map_only(torch.Tensor, imaginary, value)

    def of_both(*args: Any, **kwargs: Any) -> Any:
        real_args, real_kwargs = pytree.tree_map_only(pair, attrgetter("re"), (args, kwargs))
        real = operator(*real_args, **real_kwargs)
        other = operator(
            *(imaginary_of(name, value) for name, value in zip(names, args, strict=False)),
            **{name: imaginary_of(name, value) for name, value in kwargs.items()},
        )
        return pytree.tree_map(pair, real, other)

    return of_both


def _makers(pair: Callable[[torch.Tensor, torch.Tensor], Any]) -> dict[torch._ops.OpOverload, Callable[..., Any]]:
    """What makes complex tensors of real ones and of numbers."""

    def hypot(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """The root of the sum of squares, which do not overflow where it does not."""
        x, y = x.abs(), y.abs()
        larger = torch.maximum(x, y)
        ratio = torch.minimum(x, y) / torch.where(larger == 0, 1, larger)
        return larger * (1 + ratio * ratio).sqrt()

    def to_copy(x: torch.Tensor, *, dtype: torch.dtype | None = None, **how: Any) -> Any:
        if x.is_complex() or dtype is None or not dtype.is_complex:
            return NotImplemented
        real = x.to(dtype.to_real())
        return pair(real, torch.zeros_like(real))

    def is_complex(arguments: Sequence[Any]) -> bool:
        return any(isinstance(x, torch.Tensor) and x.is_complex() for x in arguments)

    def filled(operator: torch._ops.OpOverload) -> Callable[..., Any]:
        """``full`` and its like, whose last argument is the number."""

        def make(*args: Any, dtype: torch.dtype | None = None, **how: Any) -> Any:
            *rest, number = args
            if dtype is None and isinstance(number, complex):
                dtype = torch.get_default_dtype().to_complex()
            if dtype is None or not dtype.is_complex or is_complex(rest):
                return NotImplemented
            parts = complex(number).real, complex(number).imag
            return pair(*(operator(*rest, part, dtype=dtype.to_real(), **how) for part in parts))

        return make

    def uniform(operator: torch._ops.OpOverload) -> Callable[..., Any]:
        """``zeros`` and its like."""

        def make(*args: Any, dtype: torch.dtype | None = None, **how: Any) -> Any:
            if dtype is None or not dtype.is_complex or is_complex(args):
                return NotImplemented
            real = operator(*args, dtype=dtype.to_real(), **how)
            return pair(real, torch.zeros_like(real))

        return make

    def broadcast(real: torch.Tensor, imaginary: torch.Tensor) -> Any:
        return pair(*torch.broadcast_tensors(real, imaginary))

    def polar(length: torch.Tensor, angle: torch.Tensor) -> Any:
        return pair(length * angle.cos(), length * angle.sin())

    def scaled(x: torch.Tensor, number: Any) -> Any:
        if x.is_complex() or not isinstance(number, complex):
            return NotImplemented
        return pair(x * number.real, x * number.imag)

    return {
        aten.mul.Scalar: scaled,
        aten.complex.default: broadcast,
        aten.polar.default: polar,
        aten.view_as_complex.default: lambda pairs: pair(pairs[..., 0], pairs[..., 1]),
        aten._to_copy.default: to_copy,
        aten._fft_r2c.default: lambda x, *how: _of_pairs(pair, torch.ops.tkc.fft_r2c(x, *how)),
        aten.hypot.default: hypot,
        **{o: filled(o) for o in (aten.full.default, aten.full_like.default, aten.new_full.default)},
        aten.scalar_tensor.default: filled(aten.scalar_tensor.default),
        **{
            operator: uniform(operator)
            for operator in (
                *(aten.zeros.default, aten.ones.default, aten.empty.memory_format, aten.empty_permuted.default),
                *(aten.empty_strided.default, aten.new_empty_strided.default),
                *(aten.zeros_like.default, aten.ones_like.default, aten.empty_like.default),
                *(aten.new_zeros.default, aten.new_ones.default, aten.new_empty.default, aten.eye.default, aten.eye.m),
            )
        },
    }


def _of_pairs(pair: Callable[[torch.Tensor, torch.Tensor], Any], pairs: torch.Tensor) -> Any:
    return pair(pairs[..., 0], pairs[..., 1])


def _on_parts(pair: type[torch.Tensor]) -> dict[Any, Callable[..., Any]]:
    """Operators on complex tensors, as far as PyTorch's own rules lack them, overflow, or take other arguments."""

    def parts(x: Any) -> tuple[Any, Any]:
        if isinstance(x, pair):
            return x.re, x.im  # type: ignore[attr-defined]  # a ComplexTensor
        return (x.real, x.imag) if isinstance(x, complex) else (x, None)

    def made(real: torch.Tensor, imaginary: torch.Tensor) -> torch.Tensor:
        return pair(real, imaginary)

    def like(operator: torch._ops.OpOverload, number: complex | None = None) -> Callable[..., Any]:
        """``ones_like`` and ``new_ones``, which fill with ``number``, and ``full_like``, whose last argument it is."""

        def make(x: Any, *sizes: Any, dtype: torch.dtype | None = None, **how: Any) -> Any:
            dtype = dtype or x.dtype
            if not dtype.is_complex:
                return operator(x.re, *sizes, dtype=dtype, **how)
            value = complex(sizes[-1] if number is None else number)
            sizes = sizes[:-1] if number is None else sizes
            kind = aten.new_full.default if "new" in operator.name() else aten.full_like.default
            parts = (kind(x.re, *sizes, part, dtype=dtype.to_real()) for part in (value.real, value.imag))
            return made(*parts)

        return make

    def bilinear(function: Callable[..., Any]) -> Callable[..., Any]:
        def product(x: Any, y: Any, *rest: Any) -> Any:
            (a, b), (c, d) = parts(x), parts(y)
            if d is None:
                return made(function(a, c, *rest), function(b, c, *rest))
            if b is None:
                return made(function(a, c, *rest), function(a, d, *rest))
            real = function(a, c, *rest) - function(b, d, *rest)
            return made(real, function(a, d, *rest) + function(b, c, *rest))

        return product

    def total(sign: int) -> Callable[..., Any]:
        def of(x: Any, y: Any, *, alpha: Any = 1) -> Any:
            (a, b), (c, d) = parts(x), parts(y)
            if sign < 0:
                alpha = -alpha
            if alpha != 1:
                c, d = c * alpha, None if d is None else d * alpha
            real = a + c
            nothing = torch.zeros_like(real)
            return made(real, (nothing if b is None else b) + (nothing if d is None else d))

        return of

    def linear(x: Any, weight: Any, bias: Any = None) -> Any:
        product = bilinear(torch.matmul)(x, weight.transpose(-1, -2) if weight.dim() > 1 else weight)
        return product if bias is None else product + bias

    def convolution(x: Any, weight: Any, bias: Any, *how: Any) -> Any:
        result = bilinear(lambda x, weight: aten.convolution(x, weight, None, *how))(x, weight)
        if bias is None:
            return result
        return result + bias.reshape(-1, *[1] * (len(how[0])))

    def filled(x: Any, value: Any) -> Any:
        (c, d) = parts(value)
        if isinstance(value, torch.Tensor):
            return made(aten.fill.Tensor(x.re, c), torch.zeros_like(x.re) if d is None else aten.fill.Tensor(x.im, d))
        return made(torch.full_like(x.re, c), torch.full_like(x.im, d or 0))

    def quotient(x: Any, y: Any, *, rounding_mode: str | None = None) -> Any:
        (a, b), (c, d) = parts(x), parts(y)
        if d is None:
            return made(a / c, b / c)
        if isinstance(y, complex):
            c, d = (torch.full((), part, dtype=a.dtype, device=a.device) for part in (c, d))
        b = torch.zeros_like(a) if b is None else b
        # Scaled by the divisor's larger part, so that its square does not overflow.
        scale = torch.maximum(c.abs(), d.abs())
        scale = torch.where(scale == 0, 1, scale)
        c, d = c / scale, d / scale
        length = c * c + d * d
        return made((a * c + b * d) / length / scale, (b * c - a * d) / length / scale)

    def reciprocal(x: Any) -> Any:
        return quotient(torch.ones_like(x.re), x)

    def power(x: Any, exponent: Any) -> Any:
        if isinstance(exponent, int | float) and exponent == int(exponent) and abs(exponent) <= 16:
            result = torch.ones_like(x)
            for _ in range(abs(int(exponent))):
                result = result * x
            return result if exponent >= 0 else reciprocal(result)
        if isinstance(exponent, float) and exponent == 0.5:
            return torch.sqrt(x)
        if isinstance(x, torch.Tensor):
            base = x if isinstance(x, pair) else made(x, torch.zeros_like(x))
        else:
            base = torch.full((), x, dtype=exponent.dtype, device=exponent.device)
        result = torch.exp(exponent * torch.log(base))
        return torch.where(base == 0, torch.where(torch.zeros_like(base) == exponent, 1.0, 0.0), result)

    def arcosh(x: Any) -> Any:
        return torch.log(x + torch.sqrt(x + 1) * torch.sqrt(x - 1))

    def unlike(x: Any, y: Any) -> Any:
        return torch.logical_not(torch.eq(x, y))

    def spread(x: Any, dim: Any = None, *, correction: Any = None, keepdim: bool = False) -> Any:
        how = {"correction": correction, "keepdim": keepdim}
        return torch.var(x.re, dim, **how) + torch.var(x.im, dim, **how)

    def mean(x: Any, dim: Any = None, *, keepdim: bool = False, **_: Any) -> Any:
        return made(torch.mean(x.re, dim, keepdim), torch.mean(x.im, dim, keepdim))

    def logsumexp(x: Any, dim: Any, keepdim: bool = False) -> Any:
        largest = x.re.amax(dim, keepdim=True)
        largest = torch.where(largest.abs() == math.inf, 0, largest)
        total = torch.log(torch.exp(x - largest).sum(dim, keepdim))
        return total + (largest if keepdim else largest.sum(dim))

    def of_magnitudes(operator: torch._ops.OpOverload) -> Callable[..., Any]:
        return lambda x, *args, **kwargs: operator(x.abs(), *args, **kwargs)

    def weighted(x: Any, y: Any, weight: Any) -> Any:
        return x + weight * (y - x)

    def c2r(x: Any, *how: Any) -> Any:
        return torch.ops.tkc.fft_c2r(torch.view_as_real(x), *how)

    def c2c(x: Any, *how: Any) -> Any:
        return _of_pairs(pair, torch.ops.tkc.fft_c2c(torch.view_as_real(x), *how))

    return {
        aten.add: total(1),
        aten.sub: total(-1),
        aten.mul: bilinear(torch.mul),
        aten.mm: bilinear(torch.mm),
        aten.bmm: bilinear(torch.bmm),
        aten.dot: bilinear(torch.dot),
        aten.matmul: bilinear(torch.matmul),
        aten.mv: bilinear(torch.mv),
        aten.linear: linear,
        aten.div.Tensor: quotient,
        aten.div.Scalar: quotient,
        aten.reciprocal: reciprocal,
        aten.pow: power,
        aten.convolution: convolution,
        aten.fill: filled,
        aten.acosh: arcosh,
        aten.ne: unlike,
        aten.sym_size.int: lambda x, axis: x.re.shape[axis],
        aten.sym_numel.default: lambda x: x.re.numel(),
        aten.full_like.default: like(aten.full_like.default),
        aten.new_full.default: like(aten.new_full.default),
        **{
            getattr(aten, f"{name}_like").default: like(getattr(aten, f"{name}_like").default, number)
            for name, number in (("zeros", 0), ("ones", 1), ("empty", 0))
        },
        **{
            getattr(aten, f"new_{name}").default: like(getattr(aten, f"new_{name}").default, number)
            for name, number in (("zeros", 0), ("ones", 1), ("empty", 0))
        },
        aten.addcmul: lambda x, y, z, *, value=1: x + y * z * value,
        aten.addcdiv: lambda x, y, z, *, value=1: x + y / z * value,
        aten.baddbmm: lambda x, y, z, *, beta=1, alpha=1: x * beta + torch.bmm(y, z) * alpha,
        aten.addr: lambda x, y, z, *, beta=1, alpha=1: x * beta + y.unsqueeze(1) * z.unsqueeze(0) * alpha,
        aten.lerp: weighted,
        aten.log2: lambda x: torch.log(x) * (1 / math.log(2)),
        aten.log10: lambda x: torch.log(x) * (1 / math.log(10)),
        aten.exp2: lambda x: torch.exp(x * math.log(2)),
        aten.silu: lambda x: x / (torch.exp(-x) + 1),
        aten.var.correction: spread,
        aten.std.correction: lambda *args, **how: spread(*args, **how).sqrt(),
        aten.var_mean.correction: lambda x, dim=None, **how: (spread(x, dim, **how), mean(x, dim, **how)),
        aten.std_mean.correction: lambda x, dim=None, **how: (spread(x, dim, **how).sqrt(), mean(x, dim, **how)),
        aten.norm.Scalar: of_magnitudes(aten.norm.Scalar),
        aten.norm.ScalarOpt_dim: of_magnitudes(aten.norm.ScalarOpt_dim),
        aten.logsumexp: logsumexp,
        aten._fft_c2r: c2r,
        aten._fft_c2c: c2c,
    }


_COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd
