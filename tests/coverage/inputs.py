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
import time
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils import _pytree as pytree

from .arguments import BATCH, LENGTH, MAKERS, PATCHES, USUAL, Arguments, field, maker, placeholder, size_of
from .sources import NotConstructibleError

MOST_CALLS, MOST_SHAPES, MOST_MASKS, MOST_MENDS = 120, 60, 5, 3
"""Calls tried of a model, and of one set of names; shapes of a mask; sizes that errors ask for in turn."""


def first_that_runs(model: Any, candidates: list[Arguments]) -> tuple[Arguments, Any]:
    """The first arguments of which the model computes a tensor, and what it returns; raises the first error."""
    first: Exception | None = None
    for kwargs in candidates:
        try:
            return kwargs, _computed(model, kwargs)
        except Exception as error:
            first = first or error
    raise first or NotConstructibleError("the model has no arguments that are known here")


def found(model: Any, effort: int = 0, until: float = math.inf, **fixed: Any) -> tuple[Arguments, Any]:
    """Arguments that the model computes a tensor of, ``fixed`` among them, and what it returns.

    ``effort`` 0 tries those that most models take, 1 also what failed calls ask for, 2 also other shapes. Raises the
    error of the first call, at the latest when :func:`time.monotonic` is ``until``.
    """
    sets = [{**each, **fixed} for each in _plain(model)]
    try:
        return first_that_runs(model, sets)
    except Exception as error:
        first = error
    waiting = [tuple(dict.fromkeys((*_required(model), *each))) for each in sets or [fixed]]
    for most in (1, MOST_SHAPES)[:effort]:
        calls, seen, complete = itertools.count(), set[frozenset[str]](), list[tuple[str, ...]]()
        while waiting:
            names = waiting.pop(0)
            if frozenset(names) in seen:
                continue
            seen.add(frozenset(names))
            asked: list[str] = []
            wanted = [name for name in names if name not in fixed]
            for made in itertools.islice(_shapes(model, wanted), most):
                if next(calls) >= MOST_CALLS or time.monotonic() > until:
                    break
                kwargs = made | fixed
                try:
                    return kwargs, _computed(model, kwargs)
                except Exception as error:
                    again = error
                try:
                    if "input_ids" not in fixed and (ids := _placeholders(model.config, again)) is not None:
                        longer = {name: value for name, value in kwargs.items() if not _follows_words(name)}
                        return found(model, effort, until, **{**longer, "input_ids": ids})
                except Exception as error:
                    again = error
                for _ in range(MOST_MENDS):
                    if (mended := _as_wide_as_asked(kwargs, again) or _with_channels_asked(kwargs, again)) is None:
                        break
                    kwargs = mended
                    try:
                        return kwargs, _computed(model, kwargs)
                    except Exception as error:
                        again = error
                asked += _asked_for(model, again, names)
            complete += [] if asked else [names]
            for name in sorted(dict.fromkeys(asked), key=lambda name: "embeds" not in name):
                waiting.insert(0, (*names, name))
        waiting = complete  # other shapes of those of which no call asked for more
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
    return [name for name in _without_default(model.forward) if name in _names(model)]


def _without_default(function: Any) -> list[str]:
    parameters = inspect.signature(function).parameters
    return [name for name, each in parameters.items() if each.default is inspect.Parameter.empty]


def _plain(model: Any) -> Iterator[Arguments]:
    """Sets of arguments by the names in the model's signature in their usual shapes, the fewest first."""
    names, required = _names(model), _required(model)
    if unknown := [name for name in required if not _is_known(model, name)]:
        raise NotConstructibleError(f"nothing is known here to pass as {', '.join(unknown)}")
    main: list[str] = [model.main_input_name] if model.main_input_name in names else []
    # Exporters ask a model of several kinds of tokens for the positions of them.
    of_positions = _without_default(model.get_rope_index) if hasattr(model, "get_rope_index") else []
    typed: list[str] = [n for n in of_positions if n in names and n not in USUAL and _is_known(model, n)]
    least: list[str] = [*dict.fromkeys(required + main)] or names[:1]
    least += [n for n in typed if n not in least]
    decoder: list[str] = [n for n in ("decoder_input_ids",) if n in names]
    modal: list[str] = [n for n in ("input_ids", "pixel_values", "input_features", "input_values") if n in names]
    sets = [least, least + decoder, least + modal, least + modal + decoder, modal[:1], modal[:1] + decoder]
    sets += [least + [n for n in names if n in USUAL and n != "inputs_embeds"]]
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
            if name in USUAL or name in typed:
                made[name] = next(iter(MAKERS[name](model.config, made)))
        if made:
            yield made


def _shapes(model: Any, names: list[str]) -> Iterator[Arguments]:
    """The arguments in all their shapes: the one of the most varies fastest, then masks, which follow the others.

    At most ``MOST_SHAPES``.
    """
    torch.manual_seed(2)
    known = [name for name in names if _is_known(model, name)]
    masks = [name for name in known if "mask" in name or "lengths" in name]
    made_in_turn = [name for name in known if name not in masks] + masks
    counts = {n: MOST_MASKS if n in masks else sum(1 for _ in _every(model, n, {})) for n in known}
    most = sorted((name for name in known if name not in masks), key=lambda name: -counts[name])
    varied = [*most[1:][::-1], *masks, *most[:1]]  # the last one fastest
    yielded = 0
    for places in itertools.product(*(range(counts[name]) for name in varied)):
        place = dict(zip(varied, places, strict=True))
        made: Arguments = {}
        for name in made_in_turn:
            if (value := next(itertools.islice(_every(model, name, made), place[name], None), None)) is None:
                break
            made[name] = value
        else:
            yield made
            yielded += 1
            if yielded == MOST_SHAPES:
                return


def _every(model: Any, name: str, made: Arguments) -> Iterator[Any]:
    yield from (maker(name) or _nothing)(model.config, made)
    yield from _described(model, name)


def _nothing(config: Any, made: Arguments) -> Iterator[Any]:
    yield from ()


_NEVER_PASSED = re.compile(r"(output|return|use)_.*|.*past_key_values|.*_cache|.*labels|encoder_outputs")


def _is_known(model: Any, name: str) -> bool:
    if _NEVER_PASSED.fullmatch(name):
        return False
    return maker(name) is not None or next(_described(model, name), None) is not None


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
        return size_of(config)[word == "width"]
    return PATCHES if value is None and re.match(r"num_.*(tokens|patches)$", word) else value


_WIDTHS = (
    r"cannot be multiplied \(\d+x(?P<had>\d+) and (?P<wanted>\d+)x\d+\)",
    r"normalized_shape=\[(?P<wanted>\d+)\].*size ?\[[\d, ]*?(?P<had>\d+)\]",
    r"mel input features to be of length (?P<wanted>\d+), but found (?P<had>\d+)",
    r"length (?P<had>\d+) is not a (?P<multiple>multiple) of (?P<wanted>\d+)",
)
"""How errors say which width was given, and which one was expected."""


def _as_wide_as_asked(kwargs: Arguments, error: Exception) -> Arguments | None:
    """The arguments with the width that a matmul or a normalization expected; ``None`` if it did not say."""
    text = str(error)
    given = next((found for pattern in _WIDTHS if (found := re.search(pattern, text))), None)
    if given is None:
        return None
    had, wanted = int(given["had"]), int(given["wanted"])
    wanted = -(-had // wanted) * wanted if "multiple" in given.groupdict() else wanted
    wide = {}
    floats = {n: v for n, v in kwargs.items() if isinstance(v, torch.Tensor) and v.is_floating_point() and v.dim() > 1}
    exact = {name: value for name, value in floats.items() if value.shape[-1] == had}
    for name, value in (exact or floats).items():
        if value.shape[-1] * wanted % had == 0 and value.shape[-1] * wanted // had <= 8192:
            wide[name] = torch.randn(*value.shape[:-1], value.shape[-1] * wanted // had)
    return {**kwargs, **wide} if wide else None


def _with_channels_asked(kwargs: Arguments, error: Exception) -> Arguments | None:
    """The arguments with one channel where a convolution took a batch for channels, or with channels first."""
    given = re.search(r"expected input\[(\d+), (\d+), (\d+)\] to have (\d+) channels", str(error))
    if given is None:
        return None
    batch, channels, length, wanted = (int(each) for each in given.groups())
    for name, value in kwargs.items():
        if isinstance(value, torch.Tensor) and value.is_floating_point():
            if (batch, wanted) == (1, 1) and value.shape == (channels, length):
                return {**kwargs, name: value[:, None]}
            if wanted == length and value.shape == (batch, channels, length):
                return {**kwargs, name: value.transpose(1, 2).contiguous()}
    return None


def _placeholders(config: Any, error: Exception) -> torch.Tensor | None:
    """Words with as many placeholders as the error says that there are features; ``None`` if it says nothing."""
    text = str(error)
    counts = re.search(r"do not match.*?tokens: (\d+).*?features:? (\d+)", text)
    if counts is None or not 0 < (features := int(counts[2])) <= 1024:
        return None
    token = placeholder(config, text.split()[0].lower())
    if token is None:
        return None
    ids = torch.randint(1, 90, (BATCH, LENGTH + -(-features // BATCH)))
    ids[ids == token] = 1
    for row, count in enumerate(part.numel() for part in torch.arange(features).tensor_split(BATCH)):
        ids[row, 2 : 2 + count] = token
    return ids


def _asked_for(model: Any, error: Exception, given: tuple[str, ...]) -> list[str]:
    """Arguments that the error names, or that were ``None`` in the line that failed."""
    lines = [str(error)]
    trace = error.__traceback__
    missing = set()
    while trace is not None:
        code, local = trace.tb_frame.f_code, trace.tb_frame.f_locals
        if "/torch/" not in code.co_filename and code.co_filename != __file__:
            missing |= {name for name, value in local.items() if value is None}
            places = list(code.co_positions())[trace.tb_lasti // 2]
            first, last = places[0] or trace.tb_lineno, places[1] or trace.tb_lineno
            lines.append(" ".join(linecache.getline(code.co_filename, line) for line in range(first, last + 1)))
        trace = trace.tb_next
    words = set(re.findall(r"\w+", lines[0]))
    for line in lines[1:]:
        words |= set(re.findall(r"\w+", line)) & missing
    return [name for name in _names(model) if name in words and name not in given and _is_known(model, name)]
