"""Generation by a whole language model: transformers' ``generate`` in PyTorch and under TKC, and TKC's own program.

The compiler is imported by who uses it, since the first call of a process is measured, too.
"""

from __future__ import annotations

import copy
import gc
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import torch

from tkc.bench.language_models import LANGUAGE_MODELS, generating_program, language_model
from tkc.errors import UsageError
from tkc.measure.record import Row, shortened

_WARM_UP = 3  # generations: a CUDA graph of the prefill is recorded in the second


class Generate(Protocol):
    """Called with prompts ``[batch, tokens]``, returns these with new tokens behind them, and tells ``stream`` each
    step's tokens, the prompts before them."""

    def __call__(self, ids: torch.Tensor, stream: Any = None) -> torch.Tensor:
        """Generate."""


@dataclass(frozen=True)
class Asked:
    """What is generated: ``new`` tokens behind ``tokens`` of each of ``batch`` prompts, by ``model``."""

    model: Any
    batch: int
    tokens: int
    new: int
    database: Path | None

    def transformers(self, model: Any, **options: Any) -> Generate:
        """transformers' ``generate`` of ``model``, greedy."""
        options = {"max_new_tokens": self.new, "do_sample": False, "disable_compile": True, **options}

        def generate(ids: torch.Tensor, stream: Any = None) -> torch.Tensor:
            tokens: torch.Tensor = model.generate(
                ids, attention_mask=torch.ones_like(ids), streamer=stream, pad_token_id=0, **options
            )
            return tokens

        return generate

    def of_its_own(self) -> Any:
        """The model with attributes of its own, of the same weights: transformers keeps what it compiled in one."""
        return copy.copy(self.model)

    def compiling(self, **config: Any) -> Generate:
        """transformers' ``generate``, which compiles the decoding step as a ``CompileConfig`` of ``config`` says."""
        from transformers import CompileConfig

        made: Any = CompileConfig(**config)
        made._compile_all_devices = True  # on a CPU it would compile nothing
        return self.transformers(
            self.of_its_own(), cache_implementation="static", disable_compile=False, compile_config=made
        )


def _by_tkc(asked: Asked) -> Generate:
    """Prefill and decoding step are compiled: the model's forward pass is."""
    from tkc.dynamo.backend import tkc

    model = asked.of_its_own()
    options: dict[str, Any] = {} if asked.database is None else {"database": asked.database}
    model.forward = torch.compile(model.forward, backend=tkc, options=options)
    return asked.transformers(model, cache_implementation="static")


def _step_by_tkc(asked: Asked) -> Generate:
    from tkc.dynamo.backend import tkc

    return asked.compiling(backend=tkc)


def _by_program(asked: Asked) -> Generate:
    model = asked.model
    target = "cuda" if model.device.type == "cuda" else "cpu"
    program = generating_program(model, asked.batch, asked.tokens + asked.new, target, asked.database)
    return lambda ids, stream=None: program.generate(ids, asked.new, stream=stream)


CONTENDERS: dict[str, Callable[[Asked], Generate]] = {
    "tkc": _by_tkc,
    "tkc-decode": _step_by_tkc,
    "program": _by_program,
    "eager": lambda asked: asked.transformers(asked.model, cache_implementation="static"),
    "eager-dynamic": lambda asked: asked.transformers(asked.model),
    "compile": lambda asked: asked.compiling(),
    "max-autotune": lambda asked: asked.compiling(mode="max-autotune"),
}
"""Who generates, ours first.

``tkc``: transformers' ``generate``, the forward pass compiled by ``torch.compile(backend="tkc")``, with a static cache.
``tkc-decode``: the same, but only the decoding step, through ``CompileConfig(backend="tkc")``. ``program``:
:meth:`tkc.Program.generate`. ``eager``: PyTorch with a static cache; ``eager-dynamic`` with a growing one. ``compile``:
the decoding step compiled by Inductor, as transformers does; ``max-autotune`` in that mode.
"""
_OURS = ("tkc", "tkc-decode", "program")


def bench_generation(
    name: str,
    contenders: Sequence[str],
    batches: Sequence[int],
    prompts: Sequence[int],
    new: int,
    layers: int | None,
    device: torch.device,
    dtype: torch.dtype,
    small: bool = False,
    turns: int = 5,
    database: Path | None = None,
) -> Iterator[Row]:
    """Two rows for each of ``batches`` (sequences) and of ``prompts`` (tokens each): a whole generation of ``new``
    tokens, and the time to the first of them.

    ``name`` is a key of :data:`LANGUAGE_MODELS`, ``contenders`` are keys of :data:`CONTENDERS`. Each generates a few
    times to warm up, the first of which is noted, then by turns with the others; medians count. Notes give tokens per
    second (of all sequences, with the prefill), the time of a decoding step, and whether the tokens are those of eager
    with a static cache, or where they first differ. In 16 bits they may: greedy decoding follows the larger of two
    logits that differ by a rounding. On a GPU the memory in use is noted, that of all contenders together and what
    PyTorch keeps: it means something where there is one. The ratio is the time of the fastest contender that is not
    ours over the first of ours. A contender that fails has a note that says why.

    Raises :class:`tkc.UsageError` for names that do not exist, before anything is measured.
    """
    if name not in LANGUAGE_MODELS:
        raise UsageError(f"there is no language model {name}; choose one of {', '.join(LANGUAGE_MODELS)}")
    if unknown := [each for each in contenders if each not in CONTENDERS]:
        raise UsageError(f"nobody generates as {', '.join(unknown)}; choose from {', '.join(CONTENDERS)}")
    chosen = [each for each in CONTENDERS if each in contenders]
    if new < 2:
        raise UsageError(f"{new} new tokens have no decoding step; generate 2 or more")
    model = language_model(name, layers, max(prompts) + new, small, device, dtype)
    told = f"{'small ' if small else ''}{name}, {model.config.num_hidden_layers} layers, {str(dtype)[6:]}"
    for batch in batches:
        for tokens in prompts:
            asked = Asked(model, batch, tokens, new, database)
            yield from _rows(f"{told}, {batch} × {tokens:,} tokens", asked, chosen, device, turns)


@dataclass
class _Measured:
    """The seconds of one contender's generations, and to the first token of each."""

    generate: Generate
    tokens: torch.Tensor
    whole: list[float] = field(default_factory=list)
    first: list[float] = field(default_factory=list)


def _rows(name: str, asked: Asked, contenders: Sequence[str], device: torch.device, turns: int) -> Iterator[Row]:
    torch.manual_seed(0)
    ids = torch.randint(0, asked.model.config.vocab_size, (asked.batch, asked.tokens), device=device)
    torch.compiler.reset()  # what was compiled for another size would make this one dynamic
    notes: dict[str, float | str] = {}
    measured: dict[str, _Measured] = {}
    with torch.no_grad():
        expected = CONTENDERS["eager"](asked)(ids)
        for contender in contenders:
            try:
                start = time.perf_counter()
                generate = CONTENDERS[contender](asked)
                tokens = _timed(partial(generate, ids), device)[1]
                notes[f"{contender} first call s"] = time.perf_counter() - start
                for _ in range(_WARM_UP - 1):
                    tokens = generate(ids)
            except Exception as error:  # of whatever kind: the others are still to be measured
                _synchronize(device)  # raises where the device can do nothing more
                notes[f"{contender} failed"] = shortened(error)
                continue
            measured[contender] = _Measured(generate, tokens)
        for _ in range(turns):
            for each in measured.values():
                each.whole.append(_timed(partial(each.generate, ids), device)[0])
                each.first.append(_seconds_to_first(each.generate, ids, device))
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        notes["device GiB"] = (total - free) / 2**30
        notes["weights GiB"] = sum(parameter.nbytes for parameter in asked.model.parameters()) / 2**30
    yield from _two_rows(name, asked, measured, expected, notes)
    measured.clear()
    gc.collect()  # what torch.compile keeps of models is in cycles
    if device.type == "cuda":
        torch.cuda.empty_cache()


def _two_rows(
    name: str, asked: Asked, measured: Mapping[str, _Measured], expected: torch.Tensor, notes: dict[str, float | str]
) -> Iterator[Row]:
    whole = {contender: statistics.median(each.whole) for contender, each in measured.items()}
    first = {contender: statistics.median(each.first) for contender, each in measured.items()}
    for contender, each in measured.items():
        notes[f"{contender} tokens/s"] = asked.batch * asked.new / whole[contender]
        notes[f"{contender} step ms"] = (whole[contender] - first[contender]) / (asked.new - 1) * 1e3
        if contender != "eager":
            notes[f"{contender} tokens"] = _agreement(each.tokens, expected, asked.tokens)
    for what, seconds, told in ((f"{asked.new} new", whole, notes), ("first token", first, {})):
        ours = next((contender for contender in seconds if contender in _OURS), None)
        others = [time for contender, time in seconds.items() if contender not in _OURS]
        ratio = min(others) / seconds[ours] if others and ours else None
        milliseconds = {contender: time * 1e3 for contender, time in seconds.items()}
        yield Row(f"{name}, {what}", milliseconds, ratio, None, dict(told))


def _agreement(tokens: torch.Tensor, expected: torch.Tensor, prompt: int) -> str:
    """Whether they are the same behind the prompt, or the first place at which those of a sequence differ."""
    if tokens.shape != expected.shape:
        return f"{list(tokens.shape)} in place of {list(expected.shape)}"
    differ = (tokens != expected).any(0).nonzero()
    if not len(differ):
        return "as eager"
    sequences = int((tokens != expected).any(1).sum())
    return f"differ from number {int(differ[0]) - prompt + 1} on, sequences: {sequences} of {len(tokens)}"


def _timed(call: Callable[[], torch.Tensor], device: torch.device) -> tuple[float, torch.Tensor]:
    """The seconds until the tokens of ``call`` can be read, and these."""
    _synchronize(device)
    start = time.perf_counter()
    tokens = call()
    _synchronize(device)
    return time.perf_counter() - start, tokens


class _FirstToken:
    """A streamer, as transformers knows one: notes when the first new tokens came."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def put(self, _: torch.Tensor) -> None:
        """Called with the prompts, then with each step's tokens, which are on the CPU."""
        self.times.append(time.perf_counter())

    def end(self) -> None:
        """Called when there is no more."""


def _seconds_to_first(generate: Generate, ids: torch.Tensor, device: torch.device) -> float:
    stream = _FirstToken()
    _synchronize(device)
    start = time.perf_counter()
    generate(ids, stream=stream)
    return stream.times[1] - start


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
