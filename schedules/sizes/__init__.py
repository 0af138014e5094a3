"""Functions whose sizes are known only at run time: tuned at representative sizes, dispatched on the size."""

from tkc.schedules.sizes.dispatch import Variant, dispatch
from tkc.schedules.sizes.known_tiles import with_known_tiles
from tkc.schedules.sizes.parameters import in_order_of, with_parameters_of
from tkc.schedules.sizes.representative import representative_points, representative_sizes
from tkc.schedules.sizes.retarget import is_bounded, retarget
from tkc.schedules.sizes.symbolic import dimensions, dimensions_at, size_variables, specialize

__all__ = [
    "Variant",
    "dimensions",
    "dimensions_at",
    "dispatch",
    "in_order_of",
    "is_bounded",
    "representative_points",
    "representative_sizes",
    "retarget",
    "size_variables",
    "specialize",
    "with_known_tiles",
    "with_parameters_of",
]
