"""Whether what TKC computed is what PyTorch computes, by a bound that follows from the operator and the dtype.

The reference is PyTorch in float64 on the same (exactly converted) inputs. What may separate a result from it is known
from two measurements instead of a constant:

- PyTorch's own error in the sample's dtype, element by element: another order of summation errs as much.
- The operator's condition: how far the float64 result moves when the inputs move by the dtype's precision, in random
  directions. It is measured with a sixteenth of that and scaled, and counts for nothing where the result does not
  shrink with the perturbation: there the operator jumps (``floor``, ``sign``), and a jump is no rounding error.
  Where it jumps with all inputs (labels of 1 and -1), each input is moved alone, and those without a jump count.
  For results in float64 it is measured with larger steps, which the reference's own precision resolves, and
  PyTorch's own error is that in float32, scaled.

Where that does not suffice, what the rounding of coordinates comes to counts as well (:mod:`.roundings`).

An element may be off by ``ULPS`` units of its own last place, and by ``FACTOR`` times the larger of the two (at the
element, or on average, since either may be small by chance). NaN and infinity stand where PyTorch has them, or where
the float64 reference, rounded, has them: TKC may keep in float32 what PyTorch lets overflow in between. Integers and
booleans are equal (of equal elements, ``topk`` may choose any); dtypes, shapes and the structure of results too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from .roundings import MovedCoordinates
from .samples import DTYPES, Sample, seed
from .ties import choose_equals

ULPS = 8
FACTOR = 4
_DIRECTIONS = 3
_PART = 16
_STEP = 2.0**-26
"""The least that inputs are moved by, relative to them: the result's change is then well above float64's precision."""


class Expected:
    """What a sample's result is compared with. Raises whatever PyTorch raises for the sample."""

    def __init__(self, sample: Sample, dtype: str, nondeterministic: bool = False, has_ties: bool = False) -> None:
        self._sample, self._dtype, self._has_ties = sample, DTYPES[dtype], has_ties
        seed(1)
        self.eager = self._run(sample.tensors)
        seed(2)
        again = self._run(sample.tensors)
        self.random = nondeterministic or not _identical(self.eager, again)
        """Only shapes and dtypes can be compared."""

    def difference(self, found: Any) -> str | None:
        """What is wrong with ``found``, in words; ``None`` if nothing is."""
        wanted, spec = pytree.tree_flatten(self.eager)
        values, found_spec = pytree.tree_flatten(found)
        if len(values) != len(wanted):
            return f"{len(values)} results instead of {len(wanted)} ({found_spec} instead of {spec})"
        exact = self._exact(wanted)
        spread = self._spread(wanted, exact)
        for position, (value, eager) in enumerate(zip(values, wanted, strict=True)):
            reason = self._leaf(value, eager, exact[position], spread[position], position)
            if reason is not None and (rounded := self._of_coordinates(wanted, exact)[position]) is not None:
                moved = spread[position]
                assert moved is not None
                reason = self._leaf(value, eager, exact[position], torch.maximum(moved, rounded), position)
            if reason is not None:
                return reason if len(wanted) == 1 else f"result {position}: {reason}"
        return None

    def _leaf(
        self, value: Any, eager: Any, exact: torch.Tensor | None, spread: torch.Tensor | None, position: int
    ) -> str | None:
        if not isinstance(eager, torch.Tensor):
            same = value == eager or (value != value and eager != eager)
            return None if self.random or same else f"{value!r} instead of {eager!r}"
        if not isinstance(value, torch.Tensor):
            return f"a {type(value).__name__} instead of a tensor"
        if value.dtype != eager.dtype:
            return f"dtype {value.dtype} instead of {eager.dtype}"
        if value.shape != eager.shape:
            return f"shape {list(value.shape)} instead of {list(eager.shape)}"
        if self.random or not value.numel():
            return None
        value, eager = value.cpu().resolve_conj(), eager.cpu().resolve_conj()
        if not eager.dtype.is_floating_point:
            if eager.dtype.is_complex:
                return self._complex_difference(value, eager, position)
            wrong = value != eager
            if not wrong.any() or (self._has_ties and choose_equals(self._sample.tensors[0].cpu(), value, eager)):
                return None
            return example(wrong, value, eager)
        return compare(value, eager, exact, torch.zeros(()) if spread is None else spread)

    def _complex_difference(self, value: torch.Tensor, eager: torch.Tensor, position: int) -> str | None:
        """What is wrong with complex numbers: they are near PyTorch's, or as near as those to what complex128 gives."""
        near = torch.isclose(value, eager, equal_nan=True)
        if near.all():
            return None
        wide = [_in(torch.complex128, _in(torch.float64, tensor)) for tensor in self._sample.tensors]
        exact = pytree.tree_leaves(self._run(wide, torch.complex128))[position].cpu().resolve_conj()
        if exact.dtype == torch.complex128 and eager.dtype != torch.complex128:
            own = (eager.to(exact.dtype) - exact).abs()
            bound = ULPS * torch.finfo(eager.dtype).eps * exact.abs() + FACTOR * own
            near |= (value.to(exact.dtype) - exact).abs() <= bound
        return None if near.all() else example(~near, value, eager)

    def _exact(self, wanted: list[Any]) -> list[torch.Tensor | None]:
        """The leaves in float64; ``None`` for those that are no float64 there."""
        if self.random or not any(map(_is_real, wanted)):
            return [None] * len(wanted)
        return self._leaves(self._sample.tensors, torch.float64, wanted)

    def _spread(self, wanted: list[Any], exact: list[torch.Tensor | None]) -> list[torch.Tensor | None]:
        """How far each leaf moves with its inputs' last places; ``None`` where there is no exact one."""
        if all(leaf is None for leaf in exact):
            return exact
        eps = max(_eps(leaf.dtype) for leaf in wanted if _is_real(leaf))
        step = max(eps, _STEP)
        tensors = [_in(torch.float64, tensor) for tensor in self._sample.tensors]
        generator = torch.Generator().manual_seed(3)
        spread = [None if leaf is None else torch.zeros_like(leaf) for leaf in exact]
        for _ in range(_DIRECTIONS):
            signs = [
                torch.randint(0, 2, t.shape, generator=generator).mul(2.0).sub(1).to(t.device, torch.float64)
                for t in tensors
            ]
            for own, found in zip(spread, self._conditions(tensors, signs, step, wanted, exact), strict=True):
                if own is not None and found is not None:
                    torch.maximum(own, found * (eps / step), out=own)
        if eps == _eps(torch.float64):
            narrow = self._leaves(self._sample.tensors, torch.float32, wanted)
            for leaf, single, own in zip(exact, narrow, spread, strict=True):
                if own is not None and leaf is not None and single is not None:
                    error = (single.double() - leaf).abs().nan_to_num(0, 0, 0) * (eps / _eps(torch.float32))
                    torch.maximum(own, error, out=own)
        return spread

    def _conditions(
        self,
        tensors: Sequence[torch.Tensor],
        signs: Sequence[torch.Tensor],
        step: float,
        wanted: list[Any],
        exact: list[torch.Tensor | None],
    ) -> list[torch.Tensor | None]:
        """How far each leaf moves with a step of the inputs; ``None`` where there is no exact one.

        Where it jumps with all of them, the sum of how far it moves with each that it does not jump with.
        """

        def of(chosen: Sequence[torch.Tensor]) -> list[tuple[torch.Tensor, torch.Tensor] | None]:
            far, near = (self._leaves(_moved(tensors, chosen, s), torch.float64, wanted) for s in (step, step / _PART))
            return [
                None
                if leaf is None or whole is None or part is None
                else _condition(_reference(like.cpu(), leaf), whole, part)
                for like, leaf, whole, part in zip(wanted, exact, far, near, strict=True)
            ]

        together = of(signs)
        real = [position for position, tensor in enumerate(tensors) if tensor.dtype == torch.float64]
        if len(real) < 2 or not any(found is not None and found[1].any() for found in together):
            return [found and found[0] for found in together]
        still = [torch.zeros_like(sign) for sign in signs]
        alone = [of([*still[:position], signs[position], *still[position + 1 :]]) for position in real]
        return [
            found and torch.where(found[1], sum(moved[0] for each in alone if (moved := each[leaf])), found[0])
            for leaf, found in enumerate(together)
        ]

    def _of_coordinates(self, wanted: list[Any], exact: list[torch.Tensor | None]) -> list[torch.Tensor | None]:
        """How far each leaf moves with the coordinates at which it is read; ``None`` where there are none."""
        found: list[torch.Tensor | None] = [None] * len(wanted)
        for seed_ in range(_DIRECTIONS):
            runs = []
            for step in (0.0, _STEP, _STEP / _PART):
                with MovedCoordinates(step, seed_) as coordinates:
                    runs.append(self._leaves(self._sample.tensors, torch.float64, wanted))
            if not coordinates.found:
                return found
            for position, (still, far, near) in enumerate(zip(*runs, strict=True)):
                if exact[position] is None or still is None or far is None or near is None:
                    continue
                moved = _condition(still, far, near)[0] * (_eps(wanted[position].dtype) / _STEP)
                before = found[position]
                found[position] = moved if before is None else torch.maximum(before, moved)
        return found

    def _leaves(
        self, tensors: Sequence[torch.Tensor], dtype: torch.dtype, wanted: list[Any]
    ) -> list[torch.Tensor | None]:
        """The leaves computed in ``dtype``; ``None`` for those that are not of it."""
        default = torch.get_default_dtype()
        torch.set_default_dtype(dtype)
        try:
            leaves = pytree.tree_leaves(self._run([_in(dtype, tensor) for tensor in tensors], dtype))
        except Exception:  # not every operator takes the dtype, and then PyTorch's own result is the reference
            return [None] * len(wanted)
        finally:
            torch.set_default_dtype(default)
        if len(leaves) != len(wanted):
            return [None] * len(wanted)
        return [
            leaf.cpu()
            if isinstance(leaf, torch.Tensor) and leaf.dtype == dtype and _is_real(like) and leaf.shape == like.shape
            else None
            for leaf, like in zip(leaves, wanted, strict=True)
        ]

    def _run(self, tensors: Sequence[torch.Tensor], dtype: torch.dtype | None = None) -> Any:
        with torch.no_grad():
            result = self._sample.call(*(tensor.clone() for tensor in tensors), dtype=dtype)
        return pytree.tree_map_only(torch.Tensor, torch.Tensor.detach, result)


def compare(value: torch.Tensor, eager: torch.Tensor, exact: torch.Tensor | None, spread: torch.Tensor) -> str | None:
    """What is wrong with ``value``, in words; ``None`` if nothing is.

    ``eager`` is PyTorch's result in the same dtype, ``exact`` the one in float64, and ``spread`` how far each element
    moves with the roundings before it.
    """
    dtype = eager.dtype
    reference = _reference(eager, exact)
    value, eager = value.double(), eager.double()
    exact = eager if exact is None else exact
    rounded = exact.to(dtype).double()
    plain = value.isfinite()
    special = ~plain & (_special(value, eager) | _special(value, rounded))
    # Where PyTorch overflows and TKC does not, the reference decides.
    comparable = plain & (eager.isfinite() | rounded.isfinite())
    own = torch.where(eager.isfinite() & rounded.isfinite(), (eager - exact).abs(), 0.0)
    allowed = FACTOR * torch.maximum(torch.maximum(own, own.mean()), torch.maximum(spread, spread.mean()))
    allowed = allowed + ULPS * _eps(dtype) * reference.abs() + torch.finfo(dtype).tiny
    wrong = ~(special | (comparable & ((value - reference).abs() <= allowed)))
    if not wrong.any():
        return None
    return example(wrong, value, eager)


def _reference(eager: torch.Tensor, exact: torch.Tensor | None) -> torch.Tensor:
    """What a result is measured from: the exact one, unless only PyTorch's own is finite in the dtype."""
    if exact is None:
        return eager.double()
    return torch.where(exact.to(eager.dtype).isfinite(), exact, eager.double())


def _special(value: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    return (value.isnan() & other.isnan()) | (value == other)


def _condition(exact: torch.Tensor, whole: torch.Tensor, part: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """How far each element moves with a step of its inputs, by a part of that step; 0 where it jumps; and where."""
    far, near = (whole - exact).abs().nan_to_num(0, 0, 0), (part - exact).abs().nan_to_num(0, 0, 0)
    jumps = near * (_PART / 4) > far
    return torch.where(jumps, 0.0, near * _PART), jumps


def _moved(tensors: Sequence[torch.Tensor], signs: Sequence[torch.Tensor], step: float) -> list[torch.Tensor]:
    pairs = zip(tensors, signs, strict=True)
    return [tensor * (1 + step * sign) if tensor.dtype == torch.float64 else tensor for tensor, sign in pairs]


def _is_real(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.dtype.is_floating_point


def _eps(dtype: torch.dtype) -> float:
    return torch.finfo(dtype).eps


def _in(dtype: torch.dtype, tensor: torch.Tensor) -> torch.Tensor:
    """``tensor`` in ``dtype``, if both are real, or both complex, numbers."""
    same_kind = tensor.dtype.is_complex if dtype.is_complex else tensor.dtype.is_floating_point
    return tensor.to(dtype) if same_kind else tensor


def _identical(first: Any, second: Any) -> bool:
    pairs = zip(pytree.tree_leaves(first), pytree.tree_leaves(second), strict=True)
    return all(_same(left, right) for left, right in pairs)


def _same(left: Any, right: Any) -> bool:
    if not isinstance(left, torch.Tensor):
        return bool(left == right or left != left)
    if left.layout != torch.strided or left.is_quantized:
        return True
    return left.shape == right.shape and torch.equal(left.isnan(), right.isnan()) and _equal_numbers(left, right)


def _equal_numbers(left: torch.Tensor, right: torch.Tensor) -> bool:
    return bool(((left == right) | left.isnan()).all())


def example(wrong: torch.Tensor, value: torch.Tensor, eager: torch.Tensor) -> str:
    """How many are wrong, and the first of them."""
    place = tuple(wrong.nonzero()[0].tolist())
    share = f"{int(wrong.sum())} of {wrong.numel()}"
    return f"{share} differ; at {list(place)} {value[place].item():.9g} instead of {eager[place].item():.9g}"
