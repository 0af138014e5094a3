"""What the calls of a compiled model compute: the model's nodes, and how much work they are. Written when compiling."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

DYNAMIC_CALL = "vm.builtin.call_tir_dyn"
"""By this, the virtual machine calls functions that take sizes behind their tensors."""


@dataclass(frozen=True)
class FunctionWork:
    """The least that one call of a function has to do.

    ``parameters`` are the function's: the shape of each tensor, in numbers and names of sizes (``""`` for what is
    computed from others), and the names of the sizes that follow them. ``flops`` and ``bytes`` are formulas over these
    names. A prebuilt kernel has a ``kernel`` instead, with its ``settings``, and its spec knows the work. What is not
    known is ``None``.
    """

    function: str
    parameters: tuple[tuple[int | str, ...] | str, ...] = ()
    flops: str | None = None
    bytes: str | None = None
    kernel: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class CallSite:
    """One place of a graph function that calls ``function``, as the virtual machine calls it by ``symbol``.

    ``nodes`` are positions in :attr:`CallTable.nodes`. ``following`` are the positions of the places that may come
    next, where it is not only the one behind it.
    """

    symbol: str
    function: str
    nodes: tuple[int, ...] = ()
    following: tuple[int, ...] | None = None


@dataclass(frozen=True)
class GraphCalls:
    """The calls of one graph function, in order; ``first`` are the positions of those that may be the first."""

    sites: tuple[CallSite, ...] = ()
    first: tuple[int, ...] = (0,)

    def __post_init__(self) -> None:
        """Raise :class:`ValueError` for positions that there are not."""
        following = [place for site in self.sites for place in site.following or ()]
        if not all(0 <= place < max(len(self.sites), 1) for place in (*self.first, *following)):
            raise ValueError("a call follows that there is not")


@dataclass(frozen=True)
class CallTable:
    """What a model calls: ``nodes`` of the model as messages name them, ``functions`` by what they have to do, and the
    calls of each graph function. All of it is empty for artifacts of an earlier release.
    """

    nodes: tuple[str, ...] = ()
    functions: tuple[FunctionWork, ...] = ()
    graphs: Mapping[str, GraphCalls] = field(default_factory=dict)

    @property
    def calls(self) -> int | None:
        """How many functions a call of the model calls, with all branches; ``None`` where that is not known."""
        return sum(len(graph.sites) for graph in self.graphs.values()) if self.graphs else None

    def __post_init__(self) -> None:
        """Raise :class:`ValueError` for nodes that there are not."""
        nodes = {node for graph in self.graphs.values() for site in graph.sites for node in site.nodes}
        if not all(0 <= node < len(self.nodes) for node in nodes):
            raise ValueError("a call computes a node that there is not")
