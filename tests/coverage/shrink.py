"""Small configurations of transformers' models, made from the default ones by the names of their fields."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from typing import Any

from .layers import LAYERS, Layers, count_of
from .layers import sections as parts_of

WIDTH, HEADS, KEY_VALUE_HEADS, HEAD_DIM, HIDDEN, VOCABULARY, EXPERTS, LENGTH = 64, 4, 2, 16, 128, 128, 4, 8
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
    (r"(.*_)?vocab(_size)?(_per_layer_input)?", VOCABULARY),
    (r"base_channels", 32),
    (r"num_queries|(d|num)_latents", LENGTH),
    (r"(n|num)_shared_experts", 1),
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
        r"(.*_)?(hidden_size|hidden_size_global|d_model|n_embd|embed_dim|hidden_dim|embedding_size|projection_dim|output_dim|d_embed)"
        r"|dim|embedding_dim|width",
        WIDTH,
    ),
)
_MAMBA = (
    ("expand", "num_heads", "head_dim", "ssm_intermediate_size"),
    ("mamba_expand", "mamba_n_heads", "mamba_d_head", "mamba_d_ssm"),
)
"""How much wider Mamba's heads are together than the model, and their number, width and inner width."""

_EXCEPTIONS: dict[str, dict[str, Any]] = {
    # Its widths and depths are a table's, times these.
    "efficientnet": {"width_coefficient": 1.0, "depth_coefficient": 1.0, "hidden_dim": 1280},
    # Features of one scale, where the default has none.
    "lw_detr": {"projector_scale_factors": [1.0], "projector_in_channels": [WIDTH], "num_feature_levels": 1},
    # A name of timm, which the default does not have.
    "timm_backbone": {"backbone": "resnet18", "out_indices": [1, 2]},
    # Its attention reads a number that its configuration's class has no field for, and one without a default.
    "dbrx": {"attn_config": {"rope_theta": 10000.0, "clip_qkv": 8.0}},
    # Layers are run several times, and each time has a cache.
    "hrm_text": {"num_layers_per_stack": 1, "num_hidden_layers": 8},
    # Pairs of a layer of the vision tower and one of the language model, which the default does not have.
    "granite4_vision": {"deepstack_layer_map": [(-1, 0)], "spatial_target_layers": [1], "downsample_rate": "1/2"},
    # Patches are images of a part of the model, whose layers are read by index.
    "depth_pro": {"patch_size": 16 * PATCHES, "intermediate_hook_ids": [1, 0]},
    # The image's features are as wide as the prompt's, and as many as its patches: at 1,024 x 1,024 pixels a table of
    # scores alone takes 1.6 GB.
    **{
        f"{name}_{part}": fields
        for name in ("sam", "sam_hq")
        for part, fields in (
            ("vision_model", {"output_channels": WIDTH, "num_pos_feats": WIDTH // 2}),
            ("prompt_encoder", {"image_embedding_size": PATCHES}),
        )
    },
    # With weights as small as by default its features vanish, and all scores that it ranks are equal.
    "pp_doclayout_v3": {"initializer_range": 0.2},
    # Tokens of images by their names, which no rule knows.
    "chameleon": {"vocabulary_map": {"<image>": 100, "IMGIMGAZ": 101, "IMGIMGBZ": 102}, "image_token_id": 100},
    "emu3": {"vocabulary_map": {"<image>": 100, "<|extra_200|>": 101, "<|visual token 000000|>": 102}},
}
"""Fields of model types that need others than the rules give them."""

_WHERE_NONE = (
    (re.compile(r"pad_token_id$"), 1),
    *(
        (re.compile(f"{kind}_token_(id|index)$"), VOCABULARY - 1 - n)
        for n, kind in enumerate(("image", "video", "audio"))
    ),
    (re.compile(r"prediction_length$|.*_budget$"), LENGTH),
    (re.compile(r".*compress_ratio$"), 2),
    (re.compile(r".*kv_heads$"), 2),
)
"""What a field is given, beside the limits, that has no default."""

_LAYER_INDICES = re.compile(r"layer_(indices|ids|idxs)$")
_NUMBERS = tuple((re.compile(f"({name})$"), limit) for name, limit in _RULES)
_TOKEN = re.compile(r"(.*_)?(token_id|token_index|token_ids|_id)$")


def configurations(default: Any) -> Iterator[Any]:
    """Candidates in the order in which they are tried: all sizes small; with heads as wide as by default; with all
    widths divided by the same number; with few layers and words alone. All but the first keep widths that depend on
    one another, which no rule knows. Then the same with sizes where the default has none, and with two layers of each
    kind, and with one of each layer type alone.

    Raises what the configuration's class raises where it takes none of them.
    """
    fields = described(default)
    errors: list[Exception] = []
    count = 0
    for given, copies in ((fields, 1), (filled(described(default, sections=True)), 1), (fields, 2), (fields, 0)):
        if given == fields and copies == 1 and count:
            continue
        few_layers = shrunk(given, widths=False, copies=copies)
        for small in (
            shrunk(given, copies=copies),
            shrunk(_wide_heads(given), copies=copies),
            *(_divided(few_layers, n) for n in (16, 8, 4, 1)),
        ):
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


def described(default: Any, sections: bool = False) -> dict[str, Any]:
    """The fields of a configuration, with what its models read beside them.

    ``sections``: those of the rotary dimension too, where models have their own and the default does not.
    """
    fields: dict[str, Any] = default.to_dict()
    for name, part in vars(default).items():
        if isinstance(fields.get(name), dict) and hasattr(part, "to_dict"):
            fields[name] = described(part, sections)
    rope = fields.get("rope_parameters")
    if rope == {} and fields.get("layer_types"):
        kinds = set(fields["layer_types"])
        fields["rope_parameters"] = {kind: {"rope_type": "default", "rope_theta": 10000.0} for kind in sorted(kinds)}
    elif sections and "mrope_section" in getattr(default, "ignore_keys_at_rope_validation", ()) and rope:
        rope.setdefault("mrope_section", [2, 3, 3])
    return fields


def filled(fields: dict[str, Any]) -> dict[str, Any]:
    """``fields`` with sizes, layer types and indices of layers where the default has none."""
    _, layers = count_of(fields)
    full: dict[str, Any] = {}
    for name, value in fields.items():
        full[name] = value
        if isinstance(value, dict):
            full[name] = filled(value)
        elif name in ("layer_types", "layers_block_type") and value and set(value) <= {"mamba", "linear_attention"}:
            full[name] = [*value[:-1], "full_attention"]  # caches have a length by their layers of attention
        elif value is not None:
            continue
        elif name == "layer_types":
            full[name] = ["full_attention"] * layers
        elif name == "mlp_layer_types":
            full[name] = ["dense"] + ["sparse"] * (layers - 1)
        elif _LAYER_INDICES.search(name):
            full[name] = [1]
        else:
            full[name] = next((limit for pattern, limit in (*_NUMBERS, *_WHERE_NONE) if pattern.match(name)), None)
    if "num_attention_heads" in full:
        full.setdefault("num_key_value_heads", full["num_attention_heads"])
    if "vocab_size" in full and not layers:
        full.setdefault("num_hidden_layers", LAYERS)  # of the cache
    return full


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


def _divided(fields: Any, divisor: int, name: Any = "") -> Any:
    """``fields`` with all numbers that look like widths divided."""
    if isinstance(fields, dict):
        return {key: _divided(value, divisor, key) for key, value in fields.items()}
    if isinstance(fields, list | tuple):
        return type(fields)(_divided(value, divisor, name) for value in fields)
    is_width = isinstance(fields, int) and fields >= 4 * divisor and fields % divisor == 0
    return fields // divisor if is_width and not _NO_WIDTH.search(str(name)) else fields


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


def shrunk(fields: dict[str, Any], widths: bool = True, copies: int = 1) -> dict[str, Any]:
    """``fields`` of a configuration with small numbers; without ``widths``, few layers and words alone.

    ``copies`` layers of each kind stay.
    """
    layers = Layers(fields, copies)
    tokens = iter(range(VOCABULARY - 1, 0, -1))
    small: dict[str, Any] = {}
    for name, value in fields.items():
        by_layer, of_layers = layers.small(name)
        if by_layer:
            value = of_layers
            if isinstance(value, list) and value and _count({name: value[0]}, name):
                value = [_number(name, each, 0, widths) if isinstance(each, int) else each for each in value]
            small[name] = value
        elif isinstance(value, dict):
            is_rope = str(name).startswith("rope") and widths
            small[name] = _rope(value, fields) if is_rope else shrunk(value, widths, copies)
        elif isinstance(value, list) and name in ("depths", "num_blocks", "layers"):
            small[name] = [min(each, 1) if isinstance(each, int) else each for each in value]
        elif not isinstance(name, str):
            small[name] = value
        elif isinstance(value, int) and not isinstance(value, bool) and _TOKEN.match(name):
            small[name] = value if value < VOCABULARY - 24 else next(tokens)
        elif _count(fields, name):
            small[name] = _number(name, value, len(layers.kept) or LAYERS, widths)
        else:
            small[name] = value
    if isinstance(stages := fields.get("depths"), list | tuple):
        small |= {name: len(stages) for name in ("num_layers", "num_hidden_layers") if fields.get(name) == len(stages)}
    if widths:
        _widths_together(fields, small)
    for name in fields:
        if layers.keyed(fields[name]):
            small[name] = {index: _of_layer(each, fields, small) for index, each in small[name].items()}
    for name, value in _EXCEPTIONS.get(fields.get("model_type", ""), {}).items():
        small[name] = {**small[name], **value} if isinstance(small.get(name), dict) else value
    return _images(small) if widths else small


def _widths_together(fields: dict[str, Any], small: dict[str, Any]) -> None:
    """Change widths that others are computed from or equal to."""
    if _head_is_of_two_parts(fields):
        small["head_dim"] = small["qk_nope_head_dim"] + small["qk_rope_head_dim"]
    heads = [fields.get(name) for name in ("num_attention_heads", "num_key_value_heads")]
    if heads[0] is not None and heads[0] == heads[1]:  # no grouped queries
        small["num_key_value_heads"] = small["num_attention_heads"]
    for expand, heads_of, width_of, inner in _MAMBA:
        if _count(fields, expand) and all(_count(small, each) for each in (heads_of, width_of, "hidden_size")):
            if _count(fields, inner):
                small[inner] = fields[expand] * small["hidden_size"]
            small[width_of] = fields[expand] * small["hidden_size"] // small[heads_of]
    if "head_dim" in fields and fields["head_dim"] is None:
        small["head_dim"] = HEAD_DIM


def _of_layer(given: dict[str, Any], fields: dict[str, Any], small: dict[str, Any]) -> dict[str, Any]:
    """What a layer has instead of the others' sizes: as many times larger or smaller as by default."""
    own = {
        name: small[name] * value // fields[name] if _count(given, name) and _count(fields, name) else value
        for name, value in given.items()
    }
    if _head_is_of_two_parts({**fields, **given}):
        both = {**small, **own}
        own["head_dim"] = both["qk_nope_head_dim"] + both["qk_rope_head_dim"]
    return own


def _head_is_of_two_parts(fields: dict[str, Any]) -> bool:
    return fields.get("head_dim") == sum(fields.get(f"qk_{part}_head_dim") or 0 for part in ("nope", "rope")) != 0


def _count(fields: dict[str, Any], name: str) -> bool:
    value = fields.get(name)
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _number(name: str, value: int, layers: int, widths: bool) -> int:
    if _LAYERS.search(name) and not _NO_LAYERS.search(name):
        return min(value, layers)
    if isinstance(value, _Kept) or (not widths and "vocab" not in name):
        return int(value)
    for pattern, limit in _NUMBERS:
        if pattern.match(name):
            return min(value, limit)
    return value


def _rope(rope: dict[str, Any], fields: dict[str, Any]) -> dict[str, Any]:
    """Sections of the rotary dimension are to add up to half of what rotates."""
    sizes = rope.get("mrope_section")
    if not isinstance(sizes, list) or isinstance(fields.get("hidden_size"), _Kept):
        return {key: _rope(v, fields) if isinstance(v, dict) else v for key, v in rope.items()}
    half = int(HEAD_DIM * rope.get("partial_rotary_factor", 1.0)) // 2
    return {**rope, "mrope_section": parts_of(sizes, half if half >= len(sizes) else HEAD_DIM // 2)}


def _images(small: dict[str, Any]) -> dict[str, Any]:
    patch, image = small.get("patch_size"), small.get("image_size")
    if isinstance(image, int) and image > 64:
        side = patch if isinstance(patch, int) and patch > 0 else 16
        small["image_size"] = max(side * PATCHES, 32)
    elif isinstance(image, list) and len(image) == 2 and isinstance(patch, int):
        small["image_size"] = [patch * PATCHES] * 2
    return small
