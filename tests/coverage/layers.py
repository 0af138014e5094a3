"""Which layers a small configuration keeps, and what the fields that are written layer by layer become."""

from __future__ import annotations

import math
import re
from typing import Any

LAYERS, MOST_LAYERS = 2, 8
"""So many layers at least, and at most where more kinds than that are told apart."""

_COUNTS = ("num_hidden_layers", "n_layer", "num_layers", "n_layers", "depth")
_INDICES = re.compile(r"(indices|indexes|idxs|_ids|_layers|no_rope_layers|out_index)$")
_TYPES = ("layer_types", "layers_block_type", "out", "shared")
_PATTERNS = ("block_types", "_block_types")
"""Kinds of layers that repeat."""

_FIRST_LAYERS = re.compile(r"first_k_|num_dense_layers|n_dense_layers|num_dense|max_window_layers")
"""Numbers of layers at the beginning that differ from the others."""


def count_of(fields: dict[str, Any]) -> tuple[str, int]:
    """The field that says how many layers there are, and its value; an empty name and 0 if there is none.

    Where ``depths`` lists the layers of stages, the layers are not counted.
    """
    for name in () if isinstance(fields.get("depths"), list | tuple) else _COUNTS:
        value = fields.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return name, value
    return "", 0


class Layers:
    """The layers to keep of ``fields``: ``copies`` of each kind, and at least two.

    With no copies, one of each layer type, whatever other fields say: layers may read what one before them computed.
    """

    def __init__(self, fields: dict[str, Any], copies: int = 1) -> None:
        self.name, self.count = count_of(fields)
        self._fields = fields
        self.kept = self._kept(copies)

    def _kept(self, copies: int) -> list[int]:
        kinds = [self._kinds(index) for index in range(self.count)]
        if not copies:
            kinds = [[kind for kind in of_layer if kind[0] in _TYPES] for of_layer in kinds]
        seen: dict[Any, int] = {}
        kept: list[int] = []
        for index, of_layer in enumerate(kinds):
            wanted = [kind for kind in of_layer if seen.get(kind, 0) < (1 if kind[0] == "out" else max(1, copies))]
            if wanted and (len(kept) < MOST_LAYERS or any(kind[0] == "out" for kind in wanted)):
                kept.append(index)
                for kind in of_layer:
                    seen[kind] = seen.get(kind, 0) + 1
        others = [index for index in range(self.count) if index not in kept]
        return sorted(kept + others[: max(0, LAYERS - len(kept))])

    def _kinds(self, index: int) -> list[tuple[Any, ...]]:
        """What tells this layer from others, a tuple for each field that does."""
        kinds: list[tuple[Any, ...]] = []
        for name, value in self._fields.items():
            if self.lists(value):
                if isinstance(value[index], str | bool) or len({repr(each) for each in value}) <= 4:
                    kinds.append((name, repr(value[index])))
            elif self.names_stages(name):
                if index + 1 in [each % (self.count + 1) for each in value]:
                    kinds.append(("out", index))  # every one of them is read
            elif self.indexes(name, value):
                kinds.append((name, index in value))
            elif name in _PATTERNS and isinstance(value, list | tuple) and value:
                kinds.append((name, index % len(value)))  # a layer is of the kind that its index gives
            elif self.keyed(value):
                kinds.append((name, index in map(int, value)))
            elif isinstance(value, int) and not isinstance(value, bool) and _FIRST_LAYERS.search(name):
                kinds.append((name, index < value))
        shared = self._fields.get("num_kv_shared_layers")
        if isinstance(shared, int) and 0 < shared < self.count:
            kinds = [("shared", index >= self.count - shared, *kind) for kind in kinds or [()]]
        return kinds

    def lists(self, value: Any) -> bool:
        """Whether ``value`` has an entry for each layer."""
        return isinstance(value, list | tuple) and self.count > 1 and len(value) == self.count

    def sources(self, name: str, value: Any) -> bool:
        """Whether ``value`` has for each layer the layer, itself or one before, whose keys it reads."""
        return name.endswith("_layers") and all(isinstance(v, int) and 0 <= v <= index for index, v in enumerate(value))

    def names_stages(self, name: str) -> bool:
        """Whether ``name`` are the indices of stages whose results are read, with a stage for each layer."""
        stages, value = self._fields.get("stage_names"), self._fields.get(name)
        return (
            name == "out_indices"
            and isinstance(value, list | tuple)
            and isinstance(stages, list)
            and len(stages) == self.count + 1
        )

    def indexes(self, name: str, value: Any) -> bool:
        """Whether ``value`` lists some of the layers."""
        return (
            isinstance(value, list | tuple)
            and bool(value)
            and _INDICES.search(name) is not None
            and "token" not in name
            and not self.lists(value)
            and all(isinstance(each, int) and not isinstance(each, bool) and 0 <= each < self.count for each in value)
        )

    def keyed(self, value: Any) -> bool:
        """Whether ``value`` maps some of the layers to something."""
        return (
            isinstance(value, dict)
            and bool(value)
            and all(str(key).isdigit() and int(key) < self.count for key in value)
            and all(isinstance(each, dict) for each in value.values())
        )

    def small(self, name: str) -> tuple[bool, Any]:
        """Whether the field is written layer by layer, and what it becomes."""
        value, count = self._fields[name], len(self.kept)
        if not self.count:
            return False, None
        if name == self.name:
            return True, count
        if self.lists(value) and self.sources(name, value):
            own = [value[index] if value[index] in self.kept else index for index in self.kept]
            return True, type(value)(self.kept.index(each) for each in own)
        if self.lists(value):
            return True, type(value)(value[index] for index in self.kept)
        if name == "stage_names" and self.names_stages("out_indices"):
            return True, ["stem", *(f"stage{index + 1}" for index in range(count))]
        if name == "out_features" and self.names_stages("out_indices"):
            return True, None  # follows from the indices
        if self.names_stages(name):
            places = [each % (self.count + 1) for each in value]
            return True, [self.kept.index(each - 1) + 1 if each else 0 for each in places]
        if self.indexes(name, value):
            return True, type(value)(self.kept.index(each) for each in value if each in self.kept)
        if self.keyed(value):
            return True, {self.kept.index(int(key)): each for key, each in value.items() if int(key) in self.kept}
        if isinstance(value, int) and not isinstance(value, bool):
            if name == "num_kv_shared_layers":
                return True, sum(index >= self.count - value for index in self.kept)
            if _FIRST_LAYERS.search(name):
                return True, sum(index < value for index in self.kept)
            if name.endswith("_period"):
                return True, min(value, 2)
            if name.endswith("_offset") and f"{name.removesuffix('_offset')}_period" in self._fields:
                return True, min(value, 1)
        return False, None


def sections(names: list[int], half: int) -> list[int]:
    """Parts of a rotary dimension in proportion to ``names``, which add up to ``half`` of it."""
    total = sum(names)
    scaled = [max(1, math.floor(part * half / total)) for part in names]
    scaled[0] += half - sum(scaled)
    return scaled
