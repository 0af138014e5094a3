"""Every model type of transformers as a source: its base class, and its generating class at prefill and decode."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from .shrink import configurations
from .sources import Example, NotConstructibleError

GENERATING = (
    "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES",
    "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES",
    "MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES",
    "MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES",
    "MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES",
)
"""Where a model type's generating class is looked for."""

MOST_WEIGHTS = 48_000_000
"""A model that shrinking leaves larger than this is not made."""

BATCH, LENGTH, SAMPLES = 2, 8, 4096
_CACHES = ("past_key_values", "cache_params", "state", "mems")


@cache
def _classes() -> dict[str, tuple[str | None, str | None]]:
    """The base class and the generating class of each model type."""
    from transformers.models.auto import modeling_auto

    found: dict[str, tuple[str | None, str | None]] = {
        name: (each if isinstance(each, str) else each[0], None)
        for name, each in modeling_auto.MODEL_MAPPING_NAMES.items()
    }
    for mapping in GENERATING:
        for name, each in getattr(modeling_auto, mapping).items():
            base, generating = found.get(name, (None, None))
            found[name] = base, generating or (each if isinstance(each, str) else each[0])
    return found


class Transformers:
    """All model types that have a base class or a generating one."""

    def names(self) -> list[str]:
        """The model types."""
        return sorted(_classes())

    def variants(self, name: str) -> tuple[str, ...]:
        """``base``, if there is such a class; ``prefill`` and ``decode``, if there is a generating one."""
        base, generating = _classes()[name]
        return (("base",) if base else ()) + (("prefill", "decode") if generating else ())

    def make(self, name: str, variant: str) -> Example:
        """A small model of random weights, and a call of it."""
        base, generating = _classes()[name]
        class_name = base if variant == "base" else generating
        assert class_name is not None
        import transformers

        if (model_class := getattr(transformers, class_name, None)) is None:
            raise NotConstructibleError(f"transformers has no {class_name}")
        try:
            default = transformers.CONFIG_MAPPING[name]()
        except Exception as error:
            raise NotConstructibleError(f"no default configuration: {_line(error)}") from error
        first: Exception | None = None
        for config in _all(default):
            if variant != "base" and getattr(config, "is_decoder", None) is False and not config.is_encoder_decoder:
                config.is_decoder = True  # encoders that also generate
            try:
                model = _model(model_class, config)
                kwargs = _call(model, variant)
            except Exception as error:  # the next configuration is tried; the first error is the most telling
                first = first or error
                continue
            return Example(model, (), kwargs, exported)
        raise NotConstructibleError(_line(first) if first else "no configuration could be made")


def exported(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.export.ExportedProgram:
    """The program by transformers' own exporter, which registers caches and replaces code that cannot be traced.

    What it computes in advance from the inputs is added to ``kwargs``.
    """
    from transformers.exporters.configs import DynamoConfig
    from transformers.exporters.exporter_dynamo import DynamoExporter

    program: torch.export.ExportedProgram
    program, _ = DynamoExporter().export_program(model, kwargs, DynamoConfig())  # type: ignore[arg-type]
    return program


def _all(default: Any) -> list[Any]:
    try:
        return list(configurations(default))
    except Exception as error:
        raise NotConstructibleError(f"no small configuration: {_line(error)}") from error


def _line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {' '.join(lines[:2])[:240]}"


def _model(model_class: Any, config: Any) -> Any:
    count = 0
    with torch.device("meta"), suppress(Exception):  # not every model can be made without memory
        count = sum(weight.numel() for weight in model_class(config).parameters())
    if count > MOST_WEIGHTS:
        raise _TooLargeError(f"{count / 1e6:.0f} million weights after shrinking")
    torch.manual_seed(0)
    model = model_class(config).eval()
    if (count := sum(weight.numel() for weight in model.parameters())) > MOST_WEIGHTS:
        raise _TooLargeError(f"{count / 1e6:.0f} million weights after shrinking")
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in model.parameters():
            # Zeros would hide what is computed with them, and memory that nobody filled is not the same twice.
            if weight.dim() > 1 and (not weight.isfinite().all() or weight.abs().max() > 1e3 or not weight.any()):
                weight.copy_(torch.randn(weight.shape, generator=generator) * 0.05)
    from transformers.exporters.exporter_dynamo import register_cache_pytrees_for_model

    register_cache_pytrees_for_model(model)
    return model


class _TooLargeError(Exception):
    pass


def _call(model: Any, variant: str) -> dict[str, Any]:
    """Arguments that the model computes something of."""
    if variant == "base":
        return _first_that_runs(model, list(_candidates(model)))[0]
    kwargs, out = _first_that_runs(model, [{**each, "use_cache": True} for each in _candidates(model)])
    if variant == "prefill":
        return kwargs
    name, past = next(((n, v) for n in _CACHES if (v := getattr(out, n, None)) is not None), (None, None))
    if name is None:
        raise NotConstructibleError("the model returns no cache")
    decoder = "decoder_input_ids" if "decoder_input_ids" in kwargs else "input_ids"
    step: dict[str, Any] = {decoder: torch.randint(1, 90, (BATCH, 1)), name: past, "use_cache": True}
    candidates = [step]
    if (hidden := getattr(out, "encoder_last_hidden_state", None)) is not None:
        from transformers.modeling_outputs import BaseModelOutput

        candidates.insert(0, {**step, "encoder_outputs": BaseModelOutput(last_hidden_state=hidden)})
    candidates += [{**kwargs, **step}, {key: value for key, value in step.items() if key != "use_cache"}]
    return _first_that_runs(model, candidates)[0]


def _first_that_runs(model: Any, candidates: list[dict[str, Any]]) -> tuple[dict[str, Any], Any]:
    first: Exception | None = None
    for kwargs in candidates:
        try:
            with torch.no_grad():
                torch.manual_seed(0)
                out = model(**copy.deepcopy(kwargs))  # caches are written into
        except Exception as error:
            first = first or error
            continue
        if any(isinstance(leaf, torch.Tensor) for leaf in pytree.tree_leaves(out)):
            return kwargs, out
    raise first or NotConstructibleError("the model returns no tensor")


def _candidates(model: Any) -> Iterator[dict[str, Any]]:
    """Sets of arguments by the names in the model's signature, the fewest first."""
    parameters = inspect.signature(model.forward).parameters
    names = [n for n, p in parameters.items() if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    required = [n for n in names if parameters[n].default is inspect.Parameter.empty]
    main: list[str] = [model.main_input_name] if model.main_input_name in names else []
    least: list[str] = [*dict.fromkeys(required + main)] or names[:1]
    decoder: list[str] = [n for n in ("decoder_input_ids",) if n in names]
    modal: list[str] = [n for n in ("input_ids", "pixel_values", "input_features", "input_values") if n in names]
    sets = [least, least + decoder, least + modal, least + modal + decoder, modal[:1], modal[:1] + decoder]
    sets += [least + [n for n in names if n in _MAKERS and n != "inputs_embeds"]]
    if getattr(model.config, "is_encoder_decoder", False) and decoder:
        sets.insert(0, sets.pop(1))
    seen = []
    for chosen in sets:
        if (key := set(chosen)) in seen:
            continue
        seen.append(key)
        torch.manual_seed(2)
        made = {name: _MAKERS[name](model.config) for name in dict.fromkeys(chosen) if name in _MAKERS}
        if made:
            yield made


def _found(config: Any, *names: str, default: Any) -> Any:
    """The first of these fields that the configuration or one of its parts has."""
    parts = [config, *(v for v in vars(config).values() if hasattr(v, "to_dict"))]
    for name in names:
        for part in parts:
            if (value := getattr(part, name, None)) is not None:
                return value
    return default


def _ids(config: Any) -> torch.Tensor:
    return torch.randint(1, 90, (BATCH, LENGTH))


def _pixels(config: Any) -> torch.Tensor:
    size = _found(config, "image_size", "img_size", "input_size", "crop_size", default=64)
    channels = _found(config, "num_channels", "in_channels", "in_chans", default=3)
    if isinstance(size, dict):
        size = [size.get("height", 64), size.get("width", 64)]
    height, width = size if isinstance(size, list | tuple) else (size, size)
    frames = _found(config, "num_frames", default=None)
    shape = (channels, height, width)
    return torch.randn((BATCH, frames, *shape) if isinstance(frames, int) else (BATCH, *shape))


def _features(config: Any) -> torch.Tensor:
    bins = _found(config, "input_dim", "num_mel_bins", "feature_size", "input_feat_per_channel", default=80)
    length = 2 * _found(config, "max_source_positions", default=64)
    rows_last = getattr(config, "model_type", "") in ("whisper", "voxtral", "qwen2_audio", "moonshine")
    return torch.randn((BATCH, bins, length) if rows_last else (BATCH, length, bins))


def _hidden(config: Any) -> torch.Tensor:
    steps, patch = (_found(config, name, default=None) for name in ("temporal_patch_size", "patch_size"))
    if isinstance(steps, int) and isinstance(patch, int):
        channels = _found(config, "in_channels", "in_chans", "num_channels", default=3)
        return torch.randn(16, channels * steps * patch**2)  # flattened patches
    return torch.randn(BATCH, LENGTH, _found(config, "hidden_size", "d_model", default=64))


_MAKERS: dict[str, Callable[[Any], Any]] = {
    "input_ids": _ids,
    "decoder_input_ids": _ids,
    "attention_mask": lambda config: torch.ones(BATCH, LENGTH, dtype=torch.int64),
    "token_type_ids": lambda config: torch.zeros(BATCH, LENGTH, dtype=torch.int64),
    "bbox": lambda config: torch.randint(0, 30, (BATCH, LENGTH, 2)).repeat(1, 1, 2).sort(-1).values,
    "pixel_values": _pixels,
    "pixel_values_videos": lambda config: torch.randn(BATCH, 16, 3, 32, 32),
    "pixel_mask": lambda config: torch.ones(BATCH, *_pixels(config).shape[-2:], dtype=torch.int64),
    "input_features": _features,
    "input_values": lambda config: torch.randn(BATCH, SAMPLES),
    "input_points": lambda config: torch.rand(BATCH, 1, 2, 2) * 16,
    "inputs": lambda config: torch.randint(1, 90, (BATCH, 16)),
    "hidden_states": _hidden,
    "encoder_hidden_states": _hidden,
    "grid_thw": lambda config: torch.tensor([[1, 4, 4]]),
    "query_embeds": _hidden,
    "inputs_embeds": _hidden,
    "past_values": lambda config: torch.randn(
        BATCH, _found(config, "context_length", default=32), _found(config, "num_input_channels", default=1)
    ),
}
