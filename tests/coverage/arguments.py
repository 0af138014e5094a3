"""Arguments of transformers' models by their names, each in the shapes that models give it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

BATCH, LENGTH, SAMPLES, PATCHES, CODES = 2, 8, 4096, 16, 4

Arguments = dict[str, Any]


def field(config: Any, *names: str, default: Any) -> Any:
    """The first of these fields that the configuration or one of its parts has."""
    parts = [config, *(v for v in vars(config).values() if hasattr(v, "to_dict"))]
    for name in names:
        for part in parts:
            if (value := getattr(part, name, None)) is not None:
                return value
    return default


def placeholder(config: Any, kind: str) -> int | None:
    """The word that stands for features of this kind, or else of images or audio."""
    names = [f"{each}_token_{end}" for each in (kind, "image", "audio") for end in ("id", "index")]
    token = field(config, *names, default=None)
    return token if isinstance(token, int) else None


Maker = Callable[[Any, Arguments], Iterable[Any]]


def _ids(config: Any, made: Arguments) -> Iterator[Any]:
    words = getattr(config.get_text_config(), "vocab_size", None) or getattr(config, "vocab_size", None)
    most = min(90, words) if isinstance(words, int) and words > 2 else 90
    shapes: list[tuple[int, ...]] = [(BATCH, LENGTH)]
    codes = field(config, "num_codebooks", "num_quantizers", "num_vq", default=None)
    if isinstance(codes, int):
        shapes += [(BATCH, LENGTH, codes), (BATCH, LENGTH, codes + 1), (BATCH, codes, LENGTH), (BATCH * codes, LENGTH)]
    yield from (torch.randint(1, most, shape) for shape in shapes)


def size_of(config: Any) -> tuple[int, int]:
    """Height and width of an image."""
    size = field(config, "image_size", "img_size", "input_size", "crop_size", default=64)
    if isinstance(size, dict):
        size = [size.get("height", 64), size.get("width", 64)]
    height, width = size if isinstance(size, list | tuple) else (size, size)
    return height, width


def _patch_widths(config: Any) -> list[int]:
    """Numbers in a flattened patch of an image, and of a video."""
    channels = field(config, "in_channels", "in_chans", "num_channels", default=3)
    channels = channels if isinstance(channels, int) else 3
    side = field(config, "patch_size", "encoder_patch_size", default=16)
    side = side if isinstance(side, int) else 16
    steps = field(config, "temporal_patch_size", default=2)
    return [channels * side**2, channels * side**2 * (steps if isinstance(steps, int) else 2)]


def _pixels(config: Any, made: Arguments) -> Iterator[Any]:
    height, width = size_of(config)
    channels = field(config, "num_channels", "in_channels", "in_chans", default=3)
    frames = field(config, "num_frames", default=None)
    shape = (channels, height, width)
    yield torch.randn((BATCH, frames, *shape) if isinstance(frames, int) else (BATCH, *shape))
    shapes: list[tuple[int, ...]] = [(BATCH, 2, *shape), (BATCH, *shape), (1, *shape)]
    for wide in _patch_widths(config):
        shapes += [(PATCHES, wide), (BATCH, PATCHES, wide)]
    side = field(config, "patch_size", default=16)
    if isinstance(side, int):
        shapes += [(PATCHES, channels, side, side), (1, channels, side, PATCHES * side)]
    shapes += [
        (BATCH, channels, 4 * height, 4 * width),
        (BATCH, channels, 128, 128),
        (BATCH, channels, 48, 320),
        (BATCH, 1, 2, *shape),
    ]
    yield from (torch.randn(shape) for shape in shapes)


def _features(config: Any, made: Arguments) -> Iterator[Any]:
    bins = field(config, "input_dim", "num_mel_bins", "feature_size", "input_feat_per_channel", default=80)
    length = 2 * field(config, "max_source_positions", default=64)
    rows_last = getattr(config, "model_type", "") in ("whisper", "voxtral", "qwen2_audio", "moonshine")
    one, other = (BATCH, bins, length), (BATCH, length, bins)
    shapes: list[tuple[int, ...]] = [one, other] if rows_last else [other, one]
    window = field(config, "n_window", default=None)
    shapes += [(BATCH, bins, 4 * window)] if isinstance(window, int) else []
    shapes += [(bins, length), (BATCH, 1, 128, bins), (BATCH, 1, 1024, 64)]
    yield from (torch.randn(shape) for shape in shapes)


def _audio(config: Any, made: Arguments) -> Iterator[Any]:
    bins = field(config, "num_mel_bins", default=64)
    frames = field(config, "max_length", default=128)
    shapes = [(BATCH, SAMPLES), (BATCH, 1, SAMPLES), (BATCH, frames, bins), (BATCH, 48 * 96), (BATCH, 2, SAMPLES)]
    shapes += [(1, 1, 16000)]
    yield from (torch.randn(shape) for shape in shapes)


def _hidden(config: Any, made: Arguments) -> Iterator[Any]:
    steps, patch = (field(config, name, default=None) for name in ("temporal_patch_size", "patch_size"))
    wide = field(config, "hidden_size", "d_model", default=64)
    shapes: list[tuple[int, ...]] = [(BATCH, LENGTH, wide)]
    if isinstance(steps, int) and isinstance(patch, int):
        shapes.insert(0, (PATCHES, _patch_widths(config)[1]))
    shapes += [(BATCH, wide, LENGTH)]
    yield from (torch.randn(shape) for shape in shapes)


def _grid(config: Any, made: Arguments) -> Iterator[Any]:
    yield from (torch.tensor([[1, 4, 4]] * count) for count in (1, BATCH))


def _sizes(config: Any, made: Arguments) -> Iterator[Any]:
    yield from (torch.tensor(rows) for rows in ([[4, 4]] * BATCH, [[4, 4]], [list(size_of(config))] * BATCH))


def _mask(config: Any, made: Arguments) -> Iterator[Any]:
    """Ones for what is masked: as long as the words, or where there are none, as an argument that is there."""
    words: list[tuple[int, ...]] = [(BATCH, LENGTH)]
    shapes: list[tuple[int, ...]] = []
    for name, value in made.items():
        if isinstance(value, torch.Tensor) and value.dim() > 1 and not name.endswith(("_mask", "_ids")):
            shapes += [(value.shape[0], value.shape[1]), (value.shape[0], value.shape[-1])]
            shapes += [(BATCH, LENGTH, value.shape[1])] if value.dim() == 5 else []  # which words see which images
    yield from (
        torch.ones(shape, dtype=torch.int64)
        for shape in dict.fromkeys(words + shapes if "input_ids" in made else shapes + words)
    )


def _series(*names: str, last: int | None = None) -> Maker:
    """A number of features for each step, of which the configuration has the count."""

    def made_of(config: Any, made: Arguments) -> Iterator[Any]:
        past = made.get("past_values")
        length = past.shape[1] if isinstance(past, torch.Tensor) else LENGTH
        wide = field(config, *names, default=1) if last is None else last
        yield from (torch.randn(BATCH, steps, wide) for steps in dict.fromkeys((length, LENGTH)))

    return made_of


def _past(config: Any, made: Arguments) -> Iterator[Any]:
    context, channels = field(config, "context_length", default=32), field(config, "num_input_channels", default=1)
    # What comes before the context are the values that lags read.
    longer = context + max(getattr(config, "lags_sequence", None) or [0])
    shapes = [(BATCH, context, channels), (BATCH, longer), (BATCH, context)]
    yield from (torch.randn(shape) for shape in shapes)


def _one_of(*values: Callable[[], Any]) -> Maker:
    return lambda config, made: (value() for value in values)


def _like_past(config: Any, made: Arguments) -> Iterator[Any]:
    past = made.get("past_values", torch.zeros(BATCH, LENGTH))
    features = sum(field(config, name, default=0) for name in ("num_time_features",))
    yield torch.ones_like(past)
    yield torch.ones(*past.shape[:2], max(features, 1))


MAKERS: dict[str, Maker] = {
    "input_ids": _ids,
    "decoder_input_ids": _ids,
    "attention_mask": _mask,
    "token_type_ids": _one_of(lambda: torch.zeros(BATCH, LENGTH, dtype=torch.int64)),
    "bbox": _one_of(lambda: torch.randint(0, 30, (BATCH, LENGTH, 2)).repeat(1, 1, 2).sort(-1).values),
    "pixel_values": _pixels,
    "pixel_values_videos": lambda config, made: [
        torch.randn(BATCH, 16, 3, 32, 32),
        torch.randn(BATCH, 2, 3, *size_of(config)),
        *(torch.randn(PATCHES, wide) for wide in _patch_widths(config)),
    ],
    "pixel_mask": lambda config, made: [torch.ones(BATCH, *next(_pixels(config, {})).shape[-2:], dtype=torch.int64)],
    "input_features": _features,
    "input_values": _audio,
    "input_points": _one_of(lambda: torch.rand(BATCH, 1, 2, 2) * 16),
    "inputs": lambda config, made: [
        torch.randint(1, 90, (BATCH, 16)),
        torch.randn(BATCH, LENGTH, field(config, "d_model", "hidden_size", default=64)),
    ],
    "hidden_states": _hidden,
    "encoder_hidden_states": _hidden,
    "grid_thw": _grid,
    "query_embeds": _hidden,
    "inputs_embeds": _hidden,
    "past_values": _past,
}
"""Makers of the names that most models use. Each returns the shapes in the order in which they are tried."""

USUAL = frozenset(MAKERS)
"""The names that are passed where a model takes them."""

MAKERS |= {
    "mm_token_type_ids": lambda config, made: [
        (made["input_ids"] == placeholder(config, "image")).long()
        if "input_ids" in made
        else torch.zeros(BATCH, LENGTH, dtype=torch.int64)
    ],
    "flattened_patches": lambda config, made: [  # after the row and the column of each
        torch.cat([torch.arange(2.0 * PATCHES).reshape(1, -1, 2).repeat(BATCH, 1, 1), patches], -1)
        for wide in (field(config, "patch_embed_hidden_size", default=64), _patch_widths(config)[0])
        for patches in [torch.randn(BATCH, PATCHES, wide)]
    ],
    "merge_sizes": _one_of(lambda: torch.tensor([1]), lambda: torch.tensor([2])),
    "spatial_shapes": _sizes,
    "target_sizes": _sizes,
    "image_sizes": _sizes,
    "state": lambda config, made: [torch.randn(BATCH, field(config, "max_state_dim", "state_dim", default=32))],
    "states": _series("state_dim"),
    "actions": _series("act_dim", "action_dim"),
    "rewards": _series(last=1),
    "returns_to_go": _series(last=1),
    "timesteps": _one_of(lambda: torch.arange(LENGTH).expand(BATCH, LENGTH).contiguous()),
    "visual_feats": _series("visual_feat_dim"),
    "visual_pos": _series("visual_pos_dim"),
    "past_time_features": _series("num_time_features"),
    "past_observed_mask": _like_past,
    "past_values_padding": _like_past,
    "freq": _one_of(lambda: torch.zeros(BATCH, 1, dtype=torch.int64)),
    "lang_ids": _one_of(lambda: torch.zeros(BATCH, dtype=torch.int64)),
    "image_embeds_position_mask": lambda config, made: [
        (torch.arange(LENGTH) < count).long().expand(BATCH, LENGTH).contiguous()
        for count in (field(config, "latent_query_num", default=LENGTH), 4)
    ],
    "interpolate_pos_encoding": _one_of(lambda: True),
}
_ENDINGS: tuple[tuple[str, Maker], ...] = (
    ("grid_thw", _grid),
    ("_mask", _mask),
    ("_position_ids", _one_of(lambda: torch.arange(PATCHES).expand(BATCH, PATCHES).contiguous())),
    ("_input_ids", _ids),
    ("_pixel_values", _pixels),
    ("_masks", _pixels),
    ("token_type_ids", MAKERS["token_type_ids"]),
    ("audio_codes", _one_of(lambda: torch.randint(0, 8, (BATCH, CODES, LENGTH)))),
    ("_embeds", _hidden),
    ("_hidden_states", _hidden),
    ("_values", _audio),
    ("_mel", _features),
    ("latents", _hidden),
)
"""Makers by how a name ends, where the name itself has none."""


def maker(name: str) -> Maker | None:
    """What makes the argument of this name in all its shapes; ``None`` if that is not known."""
    return MAKERS.get(name) or next((maker for ending, maker in _ENDINGS if name.endswith(ending)), None)
