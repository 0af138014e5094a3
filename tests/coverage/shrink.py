"""Small configurations of transformers' models, made from the default ones by the names of their fields."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from typing import Any

LAYERS, WIDTH, HEADS, KEY_VALUE_HEADS, HEAD_DIM, HIDDEN, VOCABULARY, EXPERTS = 2, 64, 4, 2, 16, 128, 128, 4
_NO_WIDTH = re.compile(
    r"(^|_)(vocab|token|id|ids|index|position|positions|length|len|image|img|crop|patch|window|kernel|stride|frames|rate"
    r"|theta|bins|buckets|layers?|heads?|experts|distance|chunk|context|classes|labels|factor|interval|scale)(_|$)"
)
"""Names of numbers that no other number's size depends on."""

PATCHES = 4
"""An image has so many patches a side."""

_LAYERS = re.compile(r"(num_.*layers|n_layers?|(encoder|decoder|hidden|text|vision|audio)_layers|depth|num_blocks)$")
_NO_LAYERS = re.compile(r"kv_shared_layers|dense_layers|feature_layers|adapter_layers|first_k|conv_layers|feat_extract")
_RULES: tuple[tuple[str, int], ...] = (
    (r"max_(source|target)_positions|n_(ctx|positions)|max_position_embeddings|max_sequence_length", 64),
    (r"(.*_)?vocab_size", VOCABULARY),
    (r"(num_|n_)?(local_|routed_|moe_)?(num_)?experts|moe_num_experts|n_routed_experts", EXPERTS),
    (r"num_experts_per_tok|moe_k|moe_top_?k|top_k_experts|num_selected_experts|moe_topk", 2),
    (r"n_groups|n_group|topk_group|num_expert_groups?", 1),
    (r"(q|kv|o)_lora_rank", 32),
    (r"qk_head_dim", 2 * HEAD_DIM),
    (r"qk_nope_head_dim|qk_rope_head_dim|v_head_dim|.*head_dim|d_kv|kv_channels|head_size", HEAD_DIM),
    (r"(num_|n_)(kv|key_value)_heads|num_kv_heads|.*num_key_value_heads|multi_query_group_num", KEY_VALUE_HEADS),
    (r"(.*_)?(num_|n_)(.*attention_)?heads?|(encoder|decoder)_attention_heads|num_attention_heads", HEADS),
    (r"(.*_)?(intermediate_size|ffn_dim|d_ff|n_inner|ffn_hidden_size|mlp_dim|intermediate_dim)", HIDDEN),
    (
        r"(.*_)?(hidden_size|d_model|n_embd|embed_dim|hidden_dim|embedding_size|projection_dim|output_dim|d_embed)"
        r"|dim|embedding_dim|width",
        WIDTH,
    ),
)
_NUMBERS = tuple((re.compile(f"({name})$"), limit) for name, limit in _RULES)
_TOKEN = re.compile(r"(.*_)?(token_id|token_index|token_ids|_id)$")


def configurations(default: Any) -> Iterator[Any]:
    """Candidates in the order in which they are tried: all sizes small; with heads as wide as by default; with all
    widths divided by the same number; with few layers and words alone. All but the first keep widths that depend on
    one another, which no rule knows.

    Raises what the configuration's class raises where it takes none of them.
    """
    fields = default.to_dict()
    errors: list[Exception] = []
    count = 0
    few_layers = shrunk(fields, widths=False)
    for small in (shrunk(fields), shrunk(_wide_heads(fields)), *(_divided(few_layers, n) for n in (16, 8, 4, 1))):
        for make in (_anew, _in_place):
            try:
                config = make(default, small)
            except Exception as error:
                errors.append(error)
                continue
            count += 1
            yield config
    if not count:
        raise errors[0]


def _wide_heads(fields: dict[str, Any]) -> dict[str, Any]:
    """``fields`` with the default width of a head under a name that no rule shrinks, and a width made of such heads."""
    parts: dict[str, Any] = {
        name: _wide_heads(value) if isinstance(value, dict) else value for name, value in fields.items()
    }
    heads, width = parts.get("num_attention_heads"), parts.get("hidden_size")
    if isinstance(heads, int) and isinstance(width, int) and heads > HEADS:
        head = parts.get("head_dim") or width // heads
        return {
            **parts,
            "hidden_size": _Kept(HEADS * head),
            **({"head_dim": _Kept(head)} if "head_dim" in parts else {}),
        }
    return parts


def _divided(fields: Any, divisor: int, name: str = "") -> Any:
    """``fields`` with all numbers that look like widths divided."""
    if isinstance(fields, dict):
        return {key: _divided(value, divisor, key) for key, value in fields.items()}
    if isinstance(fields, list | tuple):
        return type(fields)(_divided(value, divisor, name) for value in fields)
    is_width = isinstance(fields, int) and fields >= 4 * divisor and fields % divisor == 0
    return fields // divisor if is_width and not _NO_WIDTH.search(name) else fields


class _Kept(int):
    """A number that is not shrunk."""


def _anew(default: Any, small: dict[str, Any]) -> Any:
    """Built from the fields, so that what follows from them is computed again."""
    skipped = {"transformers_version", "_name_or_path", "model_type"}
    return type(default)(**{key: value for key, value in small.items() if key not in skipped})


def _in_place(default: Any, small: dict[str, Any]) -> Any:
    """The default with its fields changed: not every configuration takes what it writes."""
    config = copy.deepcopy(default)
    _assign(config, small)
    return config


def _assign(config: Any, small: dict[str, Any]) -> None:
    for name, value in small.items():
        old = getattr(config, name, None)
        if isinstance(value, dict) and hasattr(old, "to_dict"):
            _assign(old, value)
        elif old != value and name not in ("transformers_version", "model_type"):
            setattr(config, name, value)


def shrunk(fields: dict[str, Any], widths: bool = True) -> dict[str, Any]:
    """``fields`` of a configuration with small numbers; without ``widths``, few layers and words alone."""
    layers = next((fields[name] for name in ("num_hidden_layers", "n_layer", "num_layers") if _count(fields, name)), 0)
    kept = _kept_layers(fields, layers)
    tokens = iter(range(VOCABULARY - 1, 0, -1))
    small: dict[str, Any] = {}
    for name, value in fields.items():
        if isinstance(value, dict):
            small[name] = _rope(value, fields) if name.startswith("rope") and widths else shrunk(value, widths)
        elif isinstance(value, list) and layers and len(value) == layers and kept:
            small[name] = [value[index] for index in kept]
        elif isinstance(value, list) and name in ("depths", "num_blocks", "layers"):
            small[name] = [min(each, 1) if isinstance(each, int) else each for each in value]
        elif isinstance(value, int) and not isinstance(value, bool) and _TOKEN.match(name):
            small[name] = value if value < VOCABULARY - 24 else next(tokens)
        elif _count(fields, name):
            small[name] = _number(name, value, len(kept) or LAYERS, widths)
        else:
            small[name] = value
    if not widths:
        return small
    heads = [fields.get(name) for name in ("num_attention_heads", "num_key_value_heads")]
    if heads[0] is not None and heads[0] == heads[1]:  # no grouped queries
        small["num_key_value_heads"] = small["num_attention_heads"]
    if isinstance(fields.get("expand"), int) and _count(small, "num_heads") and _count(small, "head_dim"):
        small["head_dim"] = fields["expand"] * small["hidden_size"] // small["num_heads"]  # Mamba's inner width
    if "head_dim" in fields and fields["head_dim"] is None:
        small["head_dim"] = HEAD_DIM
    return _images(small)


def _count(fields: dict[str, Any], name: str) -> bool:
    value = fields.get(name)
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _number(name: str, value: int, layers: int, widths: bool) -> int:
    if _LAYERS.search(name) and not _NO_LAYERS.search(name):
        return min(value, layers)
    if isinstance(value, _Kept) or (not widths and not name.endswith("vocab_size")):
        return int(value)
    for pattern, limit in _NUMBERS:
        if pattern.match(name):
            return min(value, limit)
    return value


def _kept_layers(fields: dict[str, Any], layers: int) -> list[int]:
    """One layer of each kind, and at least two."""
    kinds = fields.get("layer_types") or fields.get("layers_block_type")
    if not isinstance(kinds, list) or len(kinds) != layers:
        return list(range(min(layers, LAYERS)))
    kept = sorted({kinds.index(kind) for kind in kinds})
    others = [index for index in range(layers) if index not in kept]
    return sorted(kept + others[: max(0, LAYERS - len(kept))])


def _rope(rope: dict[str, Any], fields: dict[str, Any]) -> dict[str, Any]:
    """Sections of the rotary dimension are to add up to half a head."""
    sections = rope.get("mrope_section")
    if not isinstance(sections, list) or isinstance(fields.get("hidden_size"), _Kept):
        return {key: _rope(v, fields) if isinstance(v, dict) else v for key, v in rope.items()}
    half, total = HEAD_DIM // 2, sum(sections)
    scaled = [max(1, part * half // total) for part in sections]
    scaled[0] += half - sum(scaled)
    return {**rope, "mrope_section": scaled}


def _images(small: dict[str, Any]) -> dict[str, Any]:
    patch, image = small.get("patch_size"), small.get("image_size")
    if isinstance(image, int) and image > 64:
        side = patch if isinstance(patch, int) and patch > 0 else 16
        small["image_size"] = max(side * PATCHES, 32)
    elif isinstance(image, list) and len(image) == 2 and isinstance(patch, int):
        small["image_size"] = [patch * PATCHES] * 2
    return small
