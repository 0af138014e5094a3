"""Every model type of transformers as a source: its base class, and its generating class at prefill and decode."""

from __future__ import annotations

import time
from functools import cache
from typing import Any

import torch
from torch import nn

from .arguments import BATCH
from .inputs import first_that_runs, found
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

MOST_SECONDS = 60
"""Arguments of a model are looked for so long at most."""

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
        if model_class.forward is nn.Module.forward:
            raise NotConstructibleError(f"{class_name} has no forward: its parts are called one by one")
        try:
            default = transformers.CONFIG_MAPPING[name]()
        except Exception as error:
            raise NotConstructibleError(f"no default configuration: {_line(error)}") from error
        first: BaseException | None = None
        candidates = _all(default)
        until = time.monotonic() + MOST_SECONDS
        for effort in range(3):
            for config in list(candidates) if not effort or time.monotonic() < until else ():
                own = _own(model_class, config)
                if variant != "base" and getattr(own, "is_decoder", None) is False and not own.is_encoder_decoder:
                    own.is_decoder = True  # encoders that also generate
                try:
                    model = _model(model_class, own)
                except Exception as error:  # the next configuration is tried; the first error is the most telling
                    first = first or error
                    candidates.remove(config)
                    continue
                try:
                    return Example(model, (), _call(model, variant, effort, until), exported)
                except _NoStepError as error:  # told of the first configuration that runs a prompt
                    if effort:
                        raise NotConstructibleError(f"no step after the prompt: {_line(error.__cause__)}") from error
                    first = first or error.__cause__
                except Exception as error:
                    first = first or error
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


def _own(model_class: Any, config: Any) -> Any:
    """The part of ``config`` that is of this class, where a generating class is of a part of the model."""
    wanted = model_class.config_class
    if wanted is None or isinstance(config, wanted):
        return config
    parts = [part for part in vars(config).values() if isinstance(part, wanted)]
    return parts[0] if parts else config


def _all(default: Any) -> list[Any]:
    try:
        candidates = list(configurations(default))
        described = [repr(config.to_dict()) for config in candidates]
        return [config for index, config in enumerate(candidates) if described[index] not in described[:index]]
    except Exception as error:
        raise NotConstructibleError(f"no small configuration: {_line(error)}") from error


def _line(error: BaseException | None) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {' '.join(lines[:2])[:240]}"


def _model(model_class: Any, config: Any) -> Any:
    count = 0
    try:
        with torch.device("meta"):
            count = sum(weight.numel() for weight in model_class(config).parameters())
    except Exception as error:  # not every model can be made without memory
        if "meta" not in str(error):
            raise
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
            if (
                weight.dim() > 1
                and weight.numel()
                and (not weight.isfinite().all() or weight.abs().max() > 1e3 or not weight.any())
            ):
                weight.copy_(torch.randn(weight.shape, generator=generator) * 0.05)
    from transformers.exporters.exporter_dynamo import register_cache_pytrees_for_model

    register_cache_pytrees_for_model(model)
    return model


class _TooLargeError(Exception):
    pass


class _NoStepError(Exception):
    """A prompt is computed, but not a word after it."""


def _call(model: Any, variant: str, effort: int, until: float) -> dict[str, Any]:
    """Arguments that the model computes something of."""
    if variant == "base":
        return found(model, effort, until)[0]
    kwargs, out = found(model, effort, until, use_cache=True)
    if variant == "prefill":
        return kwargs
    try:
        return _step(model, kwargs, out)
    except Exception as error:
        raise _NoStepError from error


def _step(model: Any, kwargs: dict[str, Any], out: Any) -> dict[str, Any]:
    """The call that goes on after ``kwargs``, which returned ``out``."""
    name, past = next(((n, v) for n in _CACHES if (v := getattr(out, n, None)) is not None), (None, None))
    if name is None:
        raise NotConstructibleError("the model returns no cache")
    decoder = "decoder_input_ids" if "decoder_input_ids" in kwargs else "input_ids"
    one = kwargs[decoder][:, :1] if decoder in kwargs else torch.zeros(BATCH, 1)
    step: dict[str, Any] = {decoder: torch.randint(1, 90, one.shape), name: past, "use_cache": True}
    candidates = [step]
    if (hidden := getattr(out, "encoder_last_hidden_state", None)) is not None:
        from transformers.modeling_outputs import BaseModelOutput

        candidates.insert(0, {**step, "encoder_outputs": BaseModelOutput(last_hidden_state=hidden)})
    candidates += [{**kwargs, **step}, {key: value for key, value in step.items() if key != "use_cache"}]
    return first_that_runs(model, candidates)[0]
