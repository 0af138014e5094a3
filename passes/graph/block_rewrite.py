"""Rewrites one dataflow block: some variables get new values, and bindings move to where their operands are ready."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from tvm import relax, tirx


@dataclass(frozen=True)
class Replacement:
    """Bindings that compute ``replaced``, variables of the block, anew.

    ``reads`` are the variables, and ``sizes`` the symbolic sizes, that the bindings need from elsewhere.
    """

    replaced: Collection[relax.Var]
    bindings: Sequence[relax.Binding]
    reads: Collection[relax.Var]
    sizes: Collection[tirx.Var]


class BlockReads:
    """What each binding of ``block``, of a function with ``params``, reads of the block; many rewrites may share it."""

    def __init__(self, block: relax.DataflowBlock, params: Sequence[relax.Var]) -> None:
        self.bindings = {binding.var: binding for binding in block.bindings}
        self._size_sources = _size_sources(self.bindings, params)
        self.of = {var: self._read_by(var, binding.value) for var, binding in self.bindings.items()}
        self.computed = {var for var, binding in self.bindings.items() if _is_computed(binding)}

    def _read_by(self, var: relax.Var, value: relax.Expr) -> list[relax.Var]:
        sizes = _symbolic_sizes(var) if self._size_sources else ()
        return [read for read in self.in_block(relax.analysis.free_vars(value), sizes) if not read.same_as(var)]

    def in_block(self, variables: Collection[relax.Var], sizes: Collection[tirx.Var]) -> list[relax.Var]:
        """Those of ``variables``, and of the variables whose ``match_cast`` introduces ``sizes``, that it binds."""
        sources = (self._size_sources[size] for size in sizes if size in self._size_sources)
        return [var for var in dict.fromkeys((*variables, *sources)) if var in self.bindings]


class BlockRewrite:
    """Collects replacements for the block that ``reads`` is of, and knows meanwhile what is still needed."""

    def __init__(self, reads: BlockReads) -> None:
        self._block = reads
        self._old = list(reads.bindings)
        self._reads = dict(reads.of)
        self._computed = reads.computed
        self._replacements: dict[relax.Var, Replacement] = {}
        self._live: set[relax.Var] = set()

    def unsettled(self) -> Iterator[relax.Var]:
        """The variables that something live reads and nothing replaces, from the block's end to its beginning.

        Replacements may be added on the way; what only replaced variables read is not live.
        """
        for var in reversed(self._old):
            if var in self._replacements or (isinstance(var, relax.DataflowVar) and var not in self._live):
                continue
            if var in self._computed:
                yield var
            self._live.update(self._reads[var])

    def admits(self, replacement: Replacement) -> bool:
        """Whether an order of bindings exists with ``replacement`` in it.

        What it replaces must be computed in this block and not be replaced yet, and nothing that it needs may need it.
        """
        replaced = replacement.replaced
        if not self._computed.issuperset(replaced) or not self._replacements.keys().isdisjoint(replaced):
            return False
        return self._ancestors(self._block.in_block(replacement.reads, replacement.sizes)).isdisjoint(replaced)

    def add(self, replacement: Replacement) -> None:
        """Takes in a replacement that :meth:`admits` agrees to."""
        reads = self._block.in_block(replacement.reads, replacement.sizes)
        for var in replacement.replaced:
            self._replacements[var] = replacement
            self._reads[var] = reads
        self._live.update(reads)

    def block(self) -> relax.DataflowBlock:
        """The rewritten block: the old order, except that what a binding reads stands before it."""
        written: set[relax.Var] = set()
        bindings: list[relax.Binding] = []
        pending = self._old[::-1]
        while pending:
            var = pending[-1]
            missing = [read for read in self._reads[var] if read not in written]
            if var in written or not missing:
                pending.pop()
            if var in written:
                continue
            if missing:
                pending.extend(missing)
                continue
            replacement = self._replacements.get(var)
            bindings.extend([self._block.bindings[var]] if replacement is None else replacement.bindings)
            written.update([var] if replacement is None else replacement.replaced)
        return relax.DataflowBlock(bindings)

    def _ancestors(self, variables: Collection[relax.Var]) -> set[relax.Var]:
        """``variables`` of this block and everything in it that they need."""
        found: set[relax.Var] = set()
        pending = [var for var in variables if var in self._reads]
        while pending:
            var = pending.pop()
            if var not in found:
                found.add(var)
                pending.extend(self._reads[var])
        return found


def _size_sources(
    bindings: Mapping[relax.Var, relax.Binding], params: Sequence[relax.Var]
) -> dict[tirx.Var, relax.Var]:
    """The variable whose ``match_cast`` introduces each symbolic size that ``params`` do not show."""
    known = {size for param in params for size in _symbolic_sizes(param)}
    sources: dict[tirx.Var, relax.Var] = {}
    for var, binding in bindings.items():
        if isinstance(binding, relax.MatchCast):
            for size in _symbolic_sizes(var):
                if size not in known:
                    sources.setdefault(size, var)
    return sources


def _is_computed(binding: relax.Binding) -> bool:
    """Whether ``binding`` does more than to give a value one more name, or a ``match_cast`` its sizes."""
    return isinstance(binding, relax.VarBinding) and not isinstance(binding.value, relax.Var)


def _symbolic_sizes(expr: relax.Expr) -> list[tirx.Var]:
    return list(relax.analysis.tir_vars_in_struct_info(expr.struct_info))
