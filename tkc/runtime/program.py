"""Several compiled entries over one set of weights and one state: a language model's prefill and decode step, say."""

from __future__ import annotations

import keyword
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import torch
from rich.filesize import decimal
from torch.utils import _pytree as pytree

from tkc.errors import InputError, UsageError
from tkc.runtime.artifact import reading
from tkc.runtime.artifact.consistency import ENTRY_NAME
from tkc.runtime.artifact.contents import MAIN, Contents, named_weights
from tkc.runtime.artifact.reading import what_cannot_be
from tkc.runtime.bound_inputs import BoundInputs
from tkc.runtime.exchange import Exchanging
from tkc.runtime.executable import Executable, executable_of
from tkc.runtime.generate import LogitsProcessor, StoppingCriterion, generated
from tkc.runtime.local_gpu import device_for
from tkc.runtime.memory import Memory
from tkc.runtime.report import ProgramReport
from tkc.runtime.requirements import all_requirements

if TYPE_CHECKING:
    from tkc.runtime.profiling.profile import Profile


class Program(Executable):
    """Several models compiled for one target that share weights and state. Call its entries by their names.

    ``exe.prefill(...)`` calls the entry ``prefill``, and so does ``exe.entries["prefill"](...)``. Each entry is an
    :class:`Executable`: it has a signature and a report of its own. Weights that entries have in common are in memory
    and in the artifact once. What one entry writes into its :attr:`state`, a key/value cache, is what the others find.

    **If any entry has state or updates its inputs, calls run one at a time, whatever entries they are of**; otherwise
    each entry runs up to :attr:`max_concurrency` calls at once.

    A program is saved, loaded (:func:`tkc.load`), pickled and copied as an executable is. It has no signature or code
    of its own, and cannot be called itself.
    """

    # What an executable has and a program only has by its entries, is not set: see __getattr__.
    def __init__(self, entries: Mapping[str, Executable], memory: Memory) -> None:
        """``entries`` all have their state in ``memory``. Raises :class:`tkc.UsageError` for names they cannot have."""
        check_entry_names(entries)
        self.entries: Mapping[str, Executable] = MappingProxyType(dict(entries))
        """The entries by their names."""
        self.report: ProgramReport = ProgramReport.of({name: entry.report for name, entry in entries.items()})
        first = next(iter(entries.values()))
        self.is_entry = False
        for entry in entries.values():
            entry.is_entry = True
        self.target = first.target
        self.requires = all_requirements(entry.requires for entry in entries.values())
        self._device = first.device
        self._memory = memory
        self._max_concurrency = first._max_concurrency

    def __getattr__(self, name: str) -> Any:
        entries: Mapping[str, Executable] = self.__dict__.get("entries", {})
        if name in entries:
            return entries[name]
        if name in ("signature", "code", "libraries"):
            raise AttributeError(f"each entry has a {name} of its own: exe.entries[{next(iter(entries), '')!r}].{name}")
        raise AttributeError(f"this program has no entry {name!r}; it has {', '.join(entries)}")

    def __dir__(self) -> Iterable[str]:
        return [*super().__dir__(), *self.entries]

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Raise :class:`tkc.InputError`: a program is called by its entries."""
        raise InputError(f"this program has several entries; call one of them: {self._calls()}")

    def run_flat(self, inputs: Sequence[Any], bound: BoundInputs | None = None) -> list[torch.Tensor]:
        """Raise :class:`tkc.InputError`: a program is called by its entries."""
        return self(*inputs)  # type: ignore[no-any-return]  # it raises

    def bind(self, values: Sequence[Any], positions: Collection[int]) -> BoundInputs:
        """Raise :class:`tkc.InputError`: a program is called by its entries."""
        return self(*values)  # type: ignore[no-any-return]  # it raises

    def profile(self, /, *args: Any, repeat: int = 20, **kwargs: Any) -> Profile:
        """Raise :class:`tkc.InputError`: each entry has a profile of its own, ``exe.decode.profile(...)``."""
        raise InputError(
            "this program has several entries; profile one of them: "
            + ", ".join(f"exe.{name}.profile(...)" for name in self.entries)
        )

    def activation_bytes(self, **sizes: int) -> int:
        """Raise :class:`tkc.InputError`: each entry has a plan of its own, ``exe.decode.activation_bytes(...)``."""
        names = ", ".join(f"exe.{name}.activation_bytes(...)" for name in self.entries)
        raise InputError(f"this program has several entries; ask one of them: {names}")

    def limit_memory(self, limit: int | None) -> None:
        """:meth:`Executable.limit_memory` of every entry."""
        for entry in self.entries.values():
            entry.limit_memory(limit)

    def generate(
        self,
        ids: torch.Tensor,
        max_new_tokens: int,
        *,
        attention_mask: torch.Tensor | None = None,
        stream: Callable[[torch.Tensor], None] | None = None,
        logits_processor: Sequence[LogitsProcessor] = (),
        stopping_criteria: Sequence[StoppingCriterion] = (),
        eos_token_id: int | Sequence[int] | None = None,
        pad_token_id: int | None = None,
        do_sample: bool = False,
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        generator: torch.Generator | None = None,
        seed: int | None = None,
    ) -> torch.Tensor:
        """The prompts ``ids``, each with up to ``max_new_tokens`` tokens behind it, by ``prefill`` and ``decode``.

        Both entries take ``input_ids``, int64 ``[batch, tokens]``, and return logits ``[batch, any, vocabulary]``
        (alone, or first), of which the last are those of the next token. They may take, too, by these names:
        ``attention_mask`` ``[batch, length]``, of the cache's whole length or of the tokens so far; ``position_ids``
        ``[batch, tokens]``, which count each sequence's own tokens; ``cache_position`` ``[tokens]``, which count all.
        The cache is state, which is reset first, so that one generation runs at a time.

        Args:
            ids: The prompts, int64 ``[batch, tokens]``, padded on the left where their lengths differ.
            max_new_tokens: How many tokens to generate, unless all sequences end earlier.
            attention_mask: 0 where ``ids`` are padding, ``[batch, tokens]``. The entries must take one then.
            stream: Is called with each step's tokens ``[batch]``, on the CPU.
            logits_processor: Called one after the other with the tokens so far and the next one's logits
                ``[batch, vocabulary]`` in float32; each returns new logits. Those of transformers are such.
            stopping_criteria: Called with the tokens so far and the logits that the last was chosen by. Each returns
                which sequences end, ``bool [batch]``, or one ``bool`` for all. Those of transformers are such.
            eos_token_id: A sequence ends behind this token, or behind any of these.
            pad_token_id: Follows the end of a sequence; the first ``eos_token_id`` if it is left out.
            do_sample: Draw from the distribution of the logits, and do not take the largest.
            temperature: Divides the logits. This, ``top_k`` and ``top_p`` are transformers' own, and go with
                ``do_sample``.
            top_k: Draw from so many of the likeliest tokens.
            top_p: Draw from the likeliest tokens whose probabilities add up to this.
            generator: What draws. ``seed`` makes one.
            seed: Of a new generator; PyTorch's own draws if both are left out.

        Returns int64 ``[batch, tokens + at most max_new_tokens]``, prompts first. Raises :class:`tkc.UsageError` for a
        program without these entries and for options that mean nothing, :class:`tkc.InputError` for prompts that do not
        fit, or whose tokens and new ones the cache has no room for.
        """
        options = {name: value for name, value in locals().items() if name not in ("self", "ids", "max_new_tokens")}
        return generated(self.entries, self._memory.in_turn, self.reset, ids, max_new_tokens, **options)

    @property
    def parameters(self) -> Mapping[str, torch.Tensor]:
        """The weights of all entries, and the initial values of the state, each once."""
        weights, _ = named_weights(self._contents().entries)
        return weights

    @property
    def cuda_graphs(self) -> bool:
        """Whether calls are recorded as CUDA graphs; setting it sets it for every entry."""
        return all(entry.cuda_graphs for entry in self.entries.values())

    @cuda_graphs.setter
    def cuda_graphs(self, value: bool) -> None:
        for entry in self.entries.values():
            entry.cuda_graphs = value

    @property
    def ranges(self) -> bool | None:
        """:attr:`Executable.ranges` of the entries; setting it sets it for every entry."""
        return next(iter(self.entries.values())).ranges

    @ranges.setter
    def ranges(self, value: bool | None) -> None:
        for entry in self.entries.values():
            entry.ranges = value

    @property
    def max_concurrency(self) -> int:
        """How many calls of each entry run at once; 1 for a program with state."""
        return next(iter(self.entries.values())).max_concurrency

    @max_concurrency.setter
    def max_concurrency(self, value: int) -> None:
        for entry in self.entries.values():
            entry.max_concurrency = value
        self._max_concurrency = value

    def check(self) -> None:
        """:meth:`Executable.check` of every entry."""
        for entry in self.entries.values():
            entry.check()

    def _contents(self) -> Contents:
        return Contents(self.target, {name: entry.entry_contents() for name, entry in self.entries.items()}, None)

    def _exchanging(self) -> Mapping[str, Exchanging]:
        return {name: entry._running for name, entry in self.entries.items()}

    def _calls(self) -> str:
        return ", ".join(f"exe.{name}(...)" for name in self.entries)

    def __repr__(self) -> str:
        weights = [weight for name, weight in self.parameters.items() if name not in self._memory.initial]
        state = ", ".join(
            f"{name} ({str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)})"
            for name, tensor in self._memory.initial.items()
        )
        lines = [f"<tkc.Program for {self.target}"]
        for name, entry in self.entries.items():
            lines.append(f"  {name}")
            lines += [f"    {row:9} {text}" for row, text in entry.rows().items() if row not in ("weights", "state")]
        lines.append(f"  weights   {len(weights)} tensors, {decimal(sum(weight.nbytes for weight in weights))}")
        lines.append(f"  state     {state or 'none'}")
        return "\n".join(lines) + ">"

    @property
    def _unpickle(self) -> Callable[..., Executable]:
        return unpickled_program

    def __copy__(self) -> Program:
        return self.copied(self._memory.copied())

    def copied(self, memory: Memory) -> Program:
        """A copy that shares code and weights, and has its state in ``memory``."""
        return Program({name: entry.copied(memory) for name, entry in self.entries.items()}, memory)


def program_of(
    contents: Contents,
    max_concurrency: int | None,
    out_specs: Mapping[str, pytree.TreeSpec | None] | None = None,
) -> Program:
    """The program that ``contents`` are of, which have equal weights once and each state by one name.

    ``out_specs`` are the structures of the entries' results, where they need not be read from their signatures.
    """
    check_entry_names(contents.entries)
    initial: dict[str, torch.Tensor] = {}
    for entry in contents.entries.values():
        for spec in entry.signature.state:
            if spec.name not in initial:
                initial[spec.name] = entry.parameters[spec.name].detach().to("cpu", copy=True)
    in_turn = any(entry.signature.state or entry.signature.updated_inputs for entry in contents.entries.values())
    memory = Memory(initial, device_for(contents.target), in_turn=in_turn)
    specs = out_specs or {}
    entries = {
        name: executable_of(contents, name, max_concurrency, memory=memory, out_spec=specs.get(name))
        for name in contents.entries
    }
    return Program(entries, memory)


def unpickled_program(
    packed: bytes, state: Mapping[str, torch.Tensor], max_concurrency: int | None, cuda_graphs: bool
) -> Program:
    """What ``pickle`` packed of a program. Checks and errors are those of :func:`tkc.load`."""
    contents = reading.from_bytes(packed)
    with what_cannot_be("a pickled program"):
        program = program_of(contents, max_concurrency)
    return program.with_settings(state, cuda_graphs=cuda_graphs)


def check_entry_names(names: Iterable[str]) -> None:
    """Raise :class:`tkc.UsageError` for names that entries cannot have, and where there are none."""
    found = list(names)
    if not found:
        raise UsageError(
            'entries={} names no entry; give one for each function, such as {"prefill": ..., "decode": ...}'
        )
    for name in found:
        if not isinstance(name, str) or not ENTRY_NAME.fullmatch(name) or keyword.iskeyword(name):
            raise UsageError(f"an entry cannot have the name {name!r}: give a plain identifier, such as 'decode'")
        if name == MAIN or name in _TAKEN or hasattr(Program, name):
            raise UsageError(f"an entry cannot have the name {name!r}, which executables have for something else")


_TAKEN = frozenset({"entries", "report", "target", "requires", "signature", "code", "libraries"})
"""What executables have that their class has not."""
