"""Arguments of a model's call by the names in its signature.

A name has several shapes that models give it, tried in turn. What a failed call asks for is added: an argument that its
error names or that was ``None`` where it failed, a width that a matmul expected.
"""

from __future__ import annotations

import copy
import inspect
import itertools
import linecache
import math
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch.utils import _pytree as pytree

from .sources import NotConstructibleError

BATCH, LENGTH, SAMPLES, PATCHES, CODES = 2, 8, 4096, 16, 4
MOST_CALLS, MOST_SHAPES = 120, 60
"""Calls tried of a model, and of one set of names."""

Arguments = dict[str, Any]


def first_that_runs(model: Any, candidates: list[Arguments]) -> tuple[Arguments, Any]:
    """The first arguments of which the model computes a tensor, and what it returns; raises the first error."""
    first: Exception | None = None
    for kwargs in candidates:
        try:
            return kwargs, _computed(model, kwargs)
        except Exception as error:
            first = first or error
    raise first or NotConstructibleError("the model has no arguments that are known here")


def found(model: Any, **fixed: Any) -> tuple[Arguments, Any]:
    """Arguments that the model computes a tensor of, ``fixed`` among them, and what it returns.

    Raises the error of the first call.
    """
    sets = [{**each, **fixed} for each in _plain(model)]
    try:
        return first_that_runs(model, sets)
    except Exception as error:
        first = error
    starts = [tuple(dict.fromkeys((*_required(model), *each))) for each in sets or [fixed]]
    for most in (1, MOST_SHAPES):  # more arguments are tried before other shapes
        calls, waiting, seen = itertools.count(), list(starts), set[frozenset[str]]()
        while waiting:
            names = waiting.pop(0)
            if frozenset(names) in seen:
                continue
            seen.add(frozenset(names))
            asked: list[str] = []
            for kwargs in itertools.islice(_shapes(model, [name for name in names if name not in fixed]), most):
                if next(calls) >= MOST_CALLS:
                    break
                try:
                    return kwargs | fixed, _computed(model, kwargs | fixed)
                except Exception as error:
                    again = error
                try:
                    if "input_ids" not in fixed and (ids := _placeholders(model.config, again)) is not None:
                        longer = {name: value for name, value in kwargs.items() if not _follows_words(name)}
                        return found(model, **{**longer, **fixed, "input_ids": ids})
                    if (wider := _as_wide_as_asked(kwargs, again)) is not None:
                        return wider | fixed, _computed(model, wider | fixed)
                except Exception as error:
                    again = error
                asked += _asked_for(model, again, names)
            for name in sorted(dict.fromkeys(asked), key=lambda name: "embeds" not in name):
                waiting.insert(0, (*names, name))
    raise first


def _follows_words(name: str) -> bool:
    return name.endswith(("attention_mask", "token_type_ids"))


def _computed(model: Any, kwargs: Arguments) -> Any:
    with torch.no_grad():
        torch.manual_seed(0)
        out = model(**copy.deepcopy(kwargs))  # caches are written into
    if not any(isinstance(leaf, torch.Tensor) for leaf in pytree.tree_leaves(out)):
        raise NotConstructibleError("the model returns no tensor")
    return out


def _names(model: Any) -> list[str]:
    parameters = inspect.signature(model.forward).parameters
    return [n for n, p in parameters.items() if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]


def _required(model: Any) -> list[str]:
    parameters = inspect.signature(model.forward).parameters
    return [n for n in _names(model) if parameters[n].default is inspect.Parameter.empty]


def _plain(model: Any) -> Iterator[Arguments]:
    """Sets of arguments by the names in the model's signature in their usual shapes, the fewest first."""
    names, required = _names(model), _required(model)
    if unknown := [name for name in required if not _is_known(model, name)]:
        raise NotConstructibleError(f"nothing is known here to pass as {', '.join(unknown)}")
    main: list[str] = [model.main_input_name] if model.main_input_name in names else []
    least: list[str] = [*dict.fromkeys(required + main)] or names[:1]
    decoder: list[str] = [n for n in ("decoder_input_ids",) if n in names]
    modal: list[str] = [n for n in ("input_ids", "pixel_values", "input_features", "input_values") if n in names]
    sets = [least, least + decoder, least + modal, least + modal + decoder, modal[:1], modal[:1] + decoder]
    sets += [least + [n for n in names if n in _USUAL and n != "inputs_embeds"]]
    if getattr(model.config, "is_encoder_decoder", False) and decoder:
        sets.insert(0, sets.pop(1))
    seen = []
    for chosen in sets:
        if (key := set(chosen)) in seen:
            continue
        seen.append(key)
        torch.manual_seed(2)
        made: Arguments = {}
        for name in dict.fromkeys(chosen):
            if name in _USUAL:
                made[name] = next(iter(_MAKERS[name](model.config, made)))
        if made:
            yield made


def _shapes(model: Any, names: list[str]) -> Iterator[Arguments]:
    """The arguments in all their shapes, the usual ones first; later arguments follow the shapes of earlier ones."""

    def rest(made: Arguments, left: list[str]) -> Iterator[Arguments]:
        if not left:
            yield made
            return
        for value in itertools.chain((_maker(left[0]) or _nothing)(model.config, made), _described(model, left[0])):
            yield from rest({**made, left[0]: value}, left[1:])

    torch.manual_seed(2)
    ordered = sorted(names, key=lambda name: ("mask" in name or "lengths" in name, names.index(name)))
    yield from itertools.islice(rest({}, [name for name in ordered if _is_known(model, name)]), MOST_SHAPES)


def _nothing(config: Any, made: Arguments) -> Iterator[Any]:
    yield from ()


def _is_known(model: Any, name: str) -> bool:
    return _maker(name) is not None or next(_described(model, name), None) is not None


_SHAPE = r"\n\s*{}\s*\(`?([^\n]*?)`? of shape `\(([^`\n]*)\)`"
_SIZES = {"batch_size": BATCH, "sequence_length": LENGTH, "num_patches": PATCHES, "num_channels": 3, "num_images": 1}


def _described(model: Any, name: str) -> Iterator[torch.Tensor]:
    """The argument in the shape that the documentation of the model's call says, as far as its sizes are known."""
    text = re.search(_SHAPE.format(re.escape(name)), model.forward.__doc__ or "")
    if text is None:
        return
    shape = []
    for size in text[2].split(","):
        words = re.findall(r"[A-Za-z_][\w.]*", size)
        values = {word: _described_size(model.config, word.split(".")[-1]) for word in words}
        if not size.strip() or re.search(r"[^\w.+*/ ()-]", size) or not all(values.values()):
            return
        for word, value in values.items():
            size = re.sub(rf"(?<![\w.]){re.escape(word)}(?!\w)", str(value), size)
        shape.append(int(eval(size.replace("/", "//").replace("////", "//"), {"__builtins__": {}})))
    if 0 < math.prod(shape) < 1 << 22:
        yield torch.randint(0, 2, shape) if "Long" in text[1] or "Int" in text[1] else torch.randn(shape)


def _described_size(config: Any, word: str) -> int | None:
    value = field(config, word, default=None)
    value = value if isinstance(value, int) and not isinstance(value, bool) else _SIZES.get(word)
    if value is None and word in ("height", "width", "image_size"):
        return _size(config)[word == "width"]
    return PATCHES if value is None and re.match(r"num_.*(tokens|patches)$", word) else value


def _as_wide_as_asked(kwargs: Arguments, error: Exception) -> Arguments | None:
    """The arguments with the width that a matmul or a normalization expected; ``None`` if it did not say."""
    text = str(error)
    if given := re.search(r"cannot be multiplied \(\d+x(\d+) and (\d+)x\d+\)", text):
        had, wanted = int(given[1]), int(given[2])
    elif given := re.search(r"normalized_shape=\[(\d+)\].*size ?\[[\d, ]*?(\d+)\]", text):
        had, wanted = int(given[2]), int(given[1])
    elif given := re.search(r"mel input features to be of length (\d+), but found (\d+)", text):
        had, wanted = int(given[2]), int(given[1])
    else:
        return None
    wide = {}
    for name, value in kwargs.items():
        is_float = isinstance(value, torch.Tensor) and value.is_floating_point() and value.dim() > 1
        if is_float and value.shape[-1] * wanted % had == 0 and value.shape[-1] * wanted // had <= 8192:
            wide[name] = torch.randn(*value.shape[:-1], value.shape[-1] * wanted // had)
    return {**kwargs, **wide} if wide else None


def _placeholders(config: Any, error: Exception) -> torch.Tensor | None:
    """Words with as many placeholders as the error says that there are features; ``None`` if it says nothing."""
    text = str(error)
    counts = re.search(r"do not match.*?tokens: (\d+).*?features:? (\d+)", text)
    if counts is None or not 0 < (features := int(counts[2])) <= 1024:
        return None
    token = _placeholder(config, text.split()[0].lower())
    if token is None:
        return None
    ids = torch.randint(1, 90, (BATCH, LENGTH + -(-features // BATCH)))
    ids[ids == token] = 1
    for row, count in enumerate(part.numel() for part in torch.arange(features).tensor_split(BATCH)):
        ids[row, 2 : 2 + count] = token
    return ids


def _placeholder(config: Any, kind: str) -> int | None:
    names = [f"{each}_token_{end}" for each in (kind, "image", "audio") for end in ("id", "index")]
    token = field(config, *names, default=None)
    return token if isinstance(token, int) else None


def _asked_for(model: Any, error: Exception, given: tuple[str, ...]) -> list[str]:
    """Arguments that the error names, or that were ``None`` in the line that failed."""
    lines = [str(error)]
    trace = error.__traceback__
    missing = set()
    while trace is not None:
        code, local = trace.tb_frame.f_code, trace.tb_frame.f_locals
        if "/transformers/" in code.co_filename:
            missing |= {name for name, value in local.items() if value is None}
            places = list(code.co_positions())[trace.tb_lasti // 2]
            first, last = places[0] or trace.tb_lineno, places[1] or trace.tb_lineno
            lines.append(" ".join(linecache.getline(code.co_filename, line) for line in range(first, last + 1)))
        trace = trace.tb_next
    words = set(re.findall(r"\w+", lines[0]))
    for line in lines[1:]:
        words |= set(re.findall(r"\w+", line)) & missing
    return [name for name in _names(model) if name in words and name not in given and _is_known(model, name)]


def field(config: Any, *names: str, default: Any) -> Any:
    """The first of these fields that the configuration or one of its parts has."""
    parts = [config, *(v for v in vars(config).values() if hasattr(v, "to_dict"))]
    for name in names:
        for part in parts:
            if (value := getattr(part, name, None)) is not None:
                return value
    return default


Maker = Callable[[Any, Arguments], Iterable[Any]]


def _ids(config: Any, made: Arguments) -> Iterator[Any]:
    words = getattr(config.get_text_config(), "vocab_size", None) or getattr(config, "vocab_size", None)
    most = min(90, words) if isinstance(words, int) and words > 2 else 90
    shapes: list[tuple[int, ...]] = [(BATCH, LENGTH)]
    codes = field(config, "num_codebooks", "num_quantizers", "num_vq", default=None)
    if isinstance(codes, int):
        shapes += [(BATCH, LENGTH, codes), (BATCH, LENGTH, codes + 1), (BATCH, codes, LENGTH), (BATCH * codes, LENGTH)]
    yield from (torch.randint(1, most, shape) for shape in shapes)


def _size(config: Any) -> tuple[int, int]:
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
    height, width = _size(config)
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
    shapes += [(BATCH, channels, 4 * height, 4 * width), (BATCH, channels, 128, 128), (BATCH, channels, 48, 320), (BATCH, 1, 2, *shape)]
    yield from (torch.randn(shape) for shape in shapes)


def _features(config: Any, made: Arguments) -> Iterator[Any]:
    bins = field(config, "input_dim", "num_mel_bins", "feature_size", "input_feat_per_channel", default=80)
    length = 2 * field(config, "max_source_positions", default=64)
    rows_last = getattr(config, "model_type", "") in ("whisper", "voxtral", "qwen2_audio", "moonshine")
    one, other = (BATCH, bins, length), (BATCH, length, bins)
    shapes: list[tuple[int, ...]] = [one, other] if rows_last else [other, one]
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
    yield from (torch.tensor(rows) for rows in ([[4, 4]] * BATCH, [[4, 4]], [list(_size(config))] * BATCH))


def _mask(config: Any, made: Arguments) -> Iterator[Any]:
    """Ones for what is masked: as long as an argument that is there."""
    shapes: list[tuple[int, ...]] = [(BATCH, LENGTH)]
    for name, value in made.items():
        if isinstance(value, torch.Tensor) and value.dim() > 1 and not name.endswith("_mask"):
            shapes += [(value.shape[0], value.shape[1]), (value.shape[0], value.shape[-1])]
            shapes += [(BATCH, LENGTH, value.shape[1])] if value.dim() == 5 else []  # which words see which images
    yield from (torch.ones(shape, dtype=torch.int64) for shape in dict.fromkeys(shapes))


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


_MAKERS: dict[str, Maker] = {
    "input_ids": _ids,
    "decoder_input_ids": _ids,
    "attention_mask": _mask,
    "token_type_ids": _one_of(lambda: torch.zeros(BATCH, LENGTH, dtype=torch.int64)),
    "bbox": _one_of(lambda: torch.randint(0, 30, (BATCH, LENGTH, 2)).repeat(1, 1, 2).sort(-1).values),
    "pixel_values": _pixels,
    "pixel_values_videos": lambda config, made: [
        torch.randn(BATCH, 16, 3, 32, 32),
        torch.randn(BATCH, 2, 3, *_size(config)),
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

_USUAL = frozenset(_MAKERS)

_MAKERS |= {
    "mm_token_type_ids": lambda config, made: [
        (made["input_ids"] == _placeholder(config, "image")).long()
        if "input_ids" in made
        else torch.zeros(BATCH, LENGTH, dtype=torch.int64)
    ],
    "flattened_patches": lambda config, made: [torch.randn(BATCH, PATCHES, 2 + _patch_widths(config)[0])],
    "merge_sizes": _one_of(lambda: torch.tensor([1]), lambda: torch.tensor([2])),
    "spatial_shapes": _sizes,
    "target_sizes": _sizes,
    "image_sizes": _sizes,
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
    ("token_type_ids", _MAKERS["token_type_ids"]),
    ("audio_codes", _one_of(lambda: torch.randint(0, 8, (BATCH, CODES, LENGTH)))),
    ("_embeds", _hidden),
    ("_hidden_states", _hidden),
    ("_values", _audio),
    ("_mel", _features),
    ("latents", _hidden),
    ("state", _series("max_state_dim", "state_dim")),
)
"""Makers by how a name ends, where the name itself has none."""


def _maker(name: str) -> Any:
    return _MAKERS.get(name) or next((maker for ending, maker in _ENDINGS if name.endswith(ending)), None)
