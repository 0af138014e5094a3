"""At which sizes a function is tuned whose sizes are known only at run time."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

from tvm import tirx

from tkc.schedules.sizes.symbolic import size_variables

Range = tuple[int, int | None]
"""The inclusive bounds of a size; ``None`` where it has no upper one."""

# A size without an upper bound is tuned up to this, a usual batch of tokens.
_USUAL_MAXIMUM = 2048
_POINTS_OF_ONE_SIZE = 4


def representative_sizes(
    func: tirx.PrimFunc, ranges: Mapping[str, Range], given: Mapping[str, Sequence[int]] | None = None
) -> tuple[dict[str, int], ...]:
    """The sizes, by name, at which to tune ``func``; one empty mapping if all its sizes are known.

    ``given`` says which values to take of a size. Of others, the values are spread geometrically over the range in
    ``ranges`` (from 1 upwards where it has none), as powers of two where the range allows: four of one size; of two or
    more, the smallest and the largest of each, combined. Sizes come in lexicographic order.

    Raises :class:`ValueError` for a given value outside its range, and for a range that holds no size.
    """
    return representative_points(tuple(size_variables(func)), ranges, given)


def representative_points(
    variables: Sequence[str], ranges: Mapping[str, Range], given: Mapping[str, Sequence[int]] | None = None
) -> tuple[dict[str, int], ...]:
    """:func:`representative_sizes` of whatever has these sizes."""
    values: list[Sequence[int]] = []
    points = _POINTS_OF_ONE_SIZE if len(variables) == 1 else 2
    for name in variables:
        bounds = ranges.get(name, (1, None))
        chosen = (given or {}).get(name)
        values.append(_spread(name, bounds, points) if chosen is None else _checked(name, bounds, chosen))
    return tuple(dict(zip(variables, point, strict=True)) for point in itertools.product(*values))


def _checked(name: str, bounds: Range, chosen: Sequence[int]) -> list[int]:
    minimum, maximum = bounds
    outside = [value for value in chosen if value < max(minimum, 1) or (maximum is not None and value > maximum)]
    if outside or not chosen:
        found = ", ".join(map(str, outside)) or "no value"
        raise ValueError(f"size {name} cannot be {found}; its range is {minimum} to {maximum or 'any size'}")
    return sorted(set(chosen))


def _spread(name: str, bounds: Range, points: int) -> list[int]:
    minimum = max(bounds[0], 1)
    maximum = max(minimum, _USUAL_MAXIMUM) if bounds[1] is None else bounds[1]
    if maximum < minimum:
        raise ValueError(f"size {name} has no value: its range is {bounds[0]} to {bounds[1]}")
    ratio = (maximum / minimum) ** (1 / (points - 1))
    between = [_power_of_two_near(minimum * ratio**step) for step in range(1, points - 1)]
    return sorted({minimum, maximum, *(value for value in between if minimum <= value <= maximum)})


def _power_of_two_near(value: float) -> int:
    return 1 << max(round(value).bit_length() - 1, 0)
