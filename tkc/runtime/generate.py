"""Generation of tokens by a program's ``prefill`` and ``decode``: a loop for those who have no other."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from tkc.errors import InputError, UsageError
from tkc.runtime.signature import TensorSpec

if TYPE_CHECKING:
    from tkc.runtime.executable import Executable

LogitsProcessor = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
StoppingCriterion = Callable[[torch.Tensor, torch.Tensor], "torch.Tensor | bool"]

PREFILL, DECODE = "prefill", "decode"
IDS, MASK, POSITIONS, PLACES = "input_ids", "attention_mask", "position_ids", "cache_position"
_KNOWN = (IDS, MASK, POSITIONS, PLACES)


def generated(
    entries: Mapping[str, Executable],
    in_turn: threading.RLock | None,
    reset: Callable[[], None],
    ids: torch.Tensor,
    max_new_tokens: int,
    *,
    attention_mask: torch.Tensor | None,
    stream: Any,
    logits_processor: Sequence[LogitsProcessor],
    stopping_criteria: Sequence[StoppingCriterion],
    eos_token_id: int | Sequence[int] | None,
    pad_token_id: int | None,
    do_sample: bool,
    temperature: float | None,
    top_k: int | None,
    top_p: float | None,
    generator: torch.Generator | None,
    seed: int | None,
) -> torch.Tensor:
    """What :meth:`tkc.Program.generate` returns, whose options these are."""
    prefill, decode = _entries(entries)
    device = decode.device
    ids = _prompts(ids, max_new_tokens).to(device)
    mask = _mask(attention_mask, ids, (prefill, decode))
    choose = _Choice(logits_processor, do_sample, temperature, top_k, top_p, generator, seed, device)
    end = _End(stopping_criteria, eos_token_id, pad_token_id, len(ids), device)
    _check_room((prefill, decode), ids.shape[1], max_new_tokens)
    # A streamer of transformers is told the prompts, too, and that there is no more.
    put: Callable[[torch.Tensor], None] | None = getattr(stream, "put", stream)
    if put is not stream and put is not None:
        put(ids.cpu())
    with in_turn or contextlib.nullcontext():
        reset()
        tokens, fed = ids, 0
        for _ in range(max_new_tokens):
            feed = tokens[:, fed:]
            entry = prefill if fed == 0 and _takes(prefill, feed.shape[1]) else decode
            logits = _last_logits(entry.call_flat(_inputs(entry, feed, mask)), entry)
            fed = tokens.shape[1]
            following, scores = choose(tokens, logits)
            following = end.padded(following)
            tokens = torch.cat([tokens, following[:, None]], 1)
            mask = torch.cat([mask, mask.new_ones(len(mask), 1)], 1)
            if put is not None:
                put(following.cpu())
            if end.reached(tokens, scores):
                break
    if put is not stream and hasattr(stream, "end"):
        stream.end()
    return tokens


def _entries(entries: Mapping[str, Executable]) -> tuple[Executable, Executable]:
    """``prefill`` and ``decode``; :class:`UsageError` if one is missing, or takes what generation does not have."""
    if missing := [name for name in (PREFILL, DECODE) if name not in entries]:
        raise UsageError(
            f"generate needs the entries {PREFILL} and {DECODE}, and {' and '.join(missing)} is not there; this "
            f"program has {', '.join(entries)}. Give them to tkc.compile(model, entries={{...}})"
        )
    for name in (PREFILL, DECODE):
        inputs = [spec.name for spec in entries[name].signature.inputs]
        if IDS not in inputs or not set(inputs) <= set(_KNOWN):
            raise UsageError(
                f"generate calls entries by the inputs {IDS} and, if they have them, {', '.join(_KNOWN[1:])}; {name} "
                f"takes {', '.join(inputs)}. Call it in a loop of your own, or wrap the model before it is compiled"
            )
    return entries[PREFILL], entries[DECODE]


def _spec(entry: Executable, name: str) -> TensorSpec | None:
    return next((spec for spec in entry.signature.inputs if spec.name == name), None)


def _prompts(ids: Any, max_new_tokens: int) -> torch.Tensor:
    if not isinstance(max_new_tokens, int) or isinstance(max_new_tokens, bool) or max_new_tokens < 0:
        raise UsageError(f"max_new_tokens={max_new_tokens!r} is no number of tokens; give 0 or more")
    tokens = torch.as_tensor(ids)
    if tokens.ndim != 2 or tokens.dtype != torch.int64 or tokens.numel() == 0:
        raise InputError(
            f"ids is {tokens.dtype} {list(tokens.shape)}, expected int64 [batch, tokens] with a token at least; one "
            "prompt is a batch of one: ids[None]"
        )
    return tokens.detach()


def _mask(given: torch.Tensor | None, ids: torch.Tensor, entries: Sequence[Executable]) -> torch.Tensor:
    """Which tokens of ``ids`` are none of padding, bool of their shape."""
    if given is None:
        return torch.ones_like(ids, dtype=torch.bool)
    if given.shape != ids.shape:
        raise InputError(f"attention_mask is {list(given.shape)}, expected that of ids, {list(ids.shape)}")
    mask = given.to(ids.device) != 0
    if not bool(mask[:, -1].all()) or bool((mask[:, :-1] & ~mask[:, 1:]).any()):
        raise InputError(
            "attention_mask pads behind or between the tokens of a prompt; new tokens follow the last column, so pad "
            "on the left (tokenizer.padding_side = 'left')"
        )
    if not bool(mask.all()) and any(_spec(entry, MASK) is None for entry in entries):
        raise UsageError(
            f"prompts are padded, and the entries {PREFILL} and {DECODE} take no {MASK}: compile them with one, or "
            "give prompts of one length"
        )
    return mask


def _takes(prefill: Executable, count: int) -> bool:
    """Whether ``prefill`` takes so few tokens: one that was exported for several does not take one."""
    spec = _spec(prefill, IDS)
    assert spec is not None
    bounds = prefill.signature.sizes.get(str(spec.shape[1]))
    return count > 1 or (spec.shape[1] == 1 if bounds is None else bounds.minimum <= 1)


def _check_room(entries: Sequence[Executable], prompt: int, new: int) -> None:
    """Raise :class:`InputError` if the cache, or the mask, has no room for all tokens but the last."""
    needed = prompt + max(new - 1, 0)
    for name, entry in zip((PREFILL, DECODE), entries, strict=True):
        ids = _spec(entry, IDS)
        assert ids is not None
        bounds = entry.signature.sizes.get(str(ids.shape[1]))
        if name == PREFILL and bounds is not None and bounds.maximum is not None and prompt > bounds.maximum:
            raise InputError(f"the prompt has {prompt} tokens, and {PREFILL} was compiled for at most {bounds.maximum}")
        for what, room in _rooms(entry).items():
            if needed > room:
                raise InputError(
                    f"{what} has room for {room} tokens, and {prompt} of the prompt with {new} new ones need {needed}: "
                    f"give max_new_tokens={max(room - prompt + 1, 0)} or fewer, or compile for a longer cache"
                )


def _rooms(entry: Executable) -> dict[str, int]:
    """How many tokens what holds them has room for, where that is fixed."""
    signature = entry.signature
    rooms: dict[str, int] = {}
    mask = _spec(entry, MASK)
    if mask is not None:
        length = mask.shape[1]
        bounds = signature.sizes.get(str(length))
        if isinstance(length, int):
            rooms[f"the {MASK}"] = length
        elif bounds is not None and bounds.maximum is not None and length not in _spec(entry, IDS).shape:  # type: ignore[union-attr]  # _entries
            rooms[f"the {MASK}"] = bounds.maximum
    for bound in signature.index_bounds:
        if bound.input == PLACES and isinstance(bound.size, int):
            rooms["the cache"] = bound.size
    # Keys and values [batch, heads, length, size]; where some layers have a window alone, the others are longer.
    lengths = [spec.shape[2] for spec in signature.state if len(spec.shape) == 4 and "float" in spec.dtype]
    if not rooms and lengths:
        rooms["the cache"] = max(int(length) for length in lengths)
    return rooms


def _inputs(entry: Executable, ids: torch.Tensor, mask: torch.Tensor) -> list[torch.Tensor]:
    """What ``entry`` takes for ``ids [batch, tokens]``, the last of those that ``mask`` is of."""
    tokens, length = ids.shape[1], mask.shape[1]
    inputs = []
    for spec in entry.signature.inputs:
        if spec.name == IDS:
            value = ids
        elif spec.name == MASK:
            room = spec.shape[1]
            value = mask
            if isinstance(room, int) and room > length:
                value = torch.nn.functional.pad(mask, (0, room - length))
        elif spec.name == POSITIONS:
            value = (mask.long().cumsum(1) - 1).clamp(min=0)[:, -tokens:]
        else:
            value = torch.arange(length - tokens, length, device=ids.device)
        inputs.append(value.to(getattr(torch, spec.dtype)).contiguous())
    return inputs


def _last_logits(result: Any, entry: Executable) -> torch.Tensor:
    """The logits ``[batch, vocabulary]`` of the next token, in what an entry returns."""
    if isinstance(result, Mapping):
        result = result.get("logits", next(iter(result.values()), None))
    elif not isinstance(result, torch.Tensor):
        result = getattr(result, "logits", result[0] if isinstance(result, list | tuple) and result else None)
    if not isinstance(result, torch.Tensor) or result.ndim not in (2, 3) or not result.is_floating_point():
        raise UsageError(
            "generate needs entries that return logits [batch, tokens, vocabulary], alone or first; found "
            + ", ".join(f"{spec.name} {spec.dtype} {list(spec.shape)}" for spec in entry.signature.outputs)
        )
    return result[:, -1] if result.ndim == 3 else result


class _Choice:
    """How the next tokens follow from their logits."""

    def __init__(
        self,
        processors: Sequence[LogitsProcessor],
        sample: bool,
        temperature: float | None,
        top_k: int | None,
        top_p: float | None,
        generator: torch.Generator | None,
        seed: int | None,
        device: torch.device,
    ) -> None:
        given = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "generator": generator, "seed": seed}
        named = [name for name, value in given.items() if value is not None]
        if named and not sample:
            raise UsageError(f"{', '.join(named)} is for sampling: give do_sample=True, too")
        if generator is not None and seed is not None:
            raise UsageError("a generator and a seed contradict each other; give one of them")
        if seed is not None:
            generator = torch.Generator(device).manual_seed(seed)
        self._processors = [*processors, *_warpers(temperature, top_k, top_p)]
        self._sample = sample
        self._generator = generator

    def __call__(self, tokens: torch.Tensor, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The next tokens ``[batch]``, and the scores ``[batch, vocabulary]`` that they were chosen by."""
        scores = logits.to(torch.float32)
        for process in self._processors:
            scores = process(tokens, scores)
        if not self._sample:
            return scores.argmax(-1), scores
        return torch.multinomial(scores.softmax(-1), 1, generator=self._generator)[:, 0], scores


def _warpers(temperature: float | None, top_k: int | None, top_p: float | None) -> list[LogitsProcessor]:
    """transformers' own, in its order; what changes nothing is left out, as there."""
    wanted = {
        "TemperatureLogitsWarper": None if temperature == 1.0 else temperature,
        "TopKLogitsWarper": None if top_k == 0 else top_k,
        "TopPLogitsWarper": None if top_p == 1.0 else top_p,
    }
    found = {name: value for name, value in wanted.items() if value is not None}
    if not found:
        return []
    try:
        import transformers
    except ImportError:
        raise UsageError(
            "temperature, top_k and top_p are transformers' own: pip install transformers, or give a logits_processor"
        ) from None
    try:
        return [getattr(transformers, name)(value) for name, value in found.items()]
    except ValueError as error:
        raise UsageError(f"sampling options mean nothing: {error}") from None


class _End:
    """Which sequences have ended, and what follows them."""

    def __init__(
        self,
        criteria: Sequence[StoppingCriterion],
        eos: int | Sequence[int] | None,
        pad: int | None,
        batch: int,
        device: torch.device,
    ) -> None:
        last = [] if eos is None else [eos] if isinstance(eos, int) else list(eos)
        self._criteria = list(criteria)
        self._last = torch.tensor(last, dtype=torch.int64, device=device)
        self._ends = bool(last or self._criteria)
        self._pad = last[0] if pad is None and last else pad
        if self._criteria and self._pad is None and batch > 1:
            raise UsageError(
                "of several sequences one may end before the others: give the pad_token_id that follows it"
            )
        self._ended = torch.zeros(batch, dtype=torch.bool, device=device)

    def padded(self, following: torch.Tensor) -> torch.Tensor:
        """``following``, with padding behind the sequences that have ended."""
        if not self._ends or self._pad is None:
            return following
        return following.masked_fill(self._ended, self._pad)

    def reached(self, tokens: torch.Tensor, scores: torch.Tensor) -> bool:
        """Whether all sequences have ended, after the last of ``tokens``."""
        if not self._ends:
            return False
        self._ended = self._ended | torch.isin(tokens[:, -1], self._last)
        for criterion in self._criteria:
            self._ended = self._ended | torch.as_tensor(criterion(tokens, scores), device=tokens.device)
        return bool(self._ended.all())
