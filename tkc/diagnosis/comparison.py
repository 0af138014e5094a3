"""What :func:`tkc.debug` returns: how far a compiled model is from its source, node by node."""

from __future__ import annotations

import io
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.text import Text


@dataclass(frozen=True)
class NodeError:
    """One value of the model: the largest deviation from the source relative to the source's largest value."""

    node: str
    error: float
    bound: float

    @property
    def differs(self) -> bool:
        """Whether the deviation is more than rounding explains. A NaN or another shape always is."""
        return not self.error <= self.bound


@dataclass(frozen=True)
class Comparison:
    """What was compared, in the model's order; ``outputs`` are those of the model compiled as it is.

    Where an output differs and no node does when each is computed by itself, the fault lies in what the compiler does
    to several nodes together: ``together`` is the first node with which the model up to there differs.
    """

    nodes: tuple[NodeError, ...]
    outputs: tuple[NodeError, ...]
    together: NodeError | None = None

    @property
    def first(self) -> NodeError | None:
        """The first node that differs, ``None`` if all agree."""
        return next((node for node in self.nodes if node.differs), self.together)

    @property
    def agrees(self) -> bool:
        """Whether neither a node nor an output differs."""
        return self.first is None and not any(output.differs for output in self.outputs)

    def to_json(self) -> dict[str, Any]:
        """The comparison as JSON-ready values."""
        first = None if self.first is None else asdict(self.first)
        return {
            "agrees": self.agrees,
            "first": first,
            "nodes": [asdict(node) for node in self.nodes],
            "outputs": [asdict(node) for node in self.outputs],
        }

    def __str__(self) -> str:
        text = io.StringIO()
        Console(file=text, width=140).print(self)
        return text.getvalue()

    def __rich__(self) -> RenderableType:
        outputs = [
            f"output {row.node}: error {row.error:.2e}, bound {row.bound:.2e}{' DIFFERS' if row.differs else ''}"
            for row in self.outputs
        ]
        if self.first is None:
            lines = [f"compared {len(self.nodes)} nodes: " + ("all agree" if self.agrees else "each agrees by itself")]
        else:
            how = "of the model up to it" if self.first is self.together else "computed from the source's values"
            lines = [
                f"first node that differs, {how}:",
                f"  {self.first.node}",
                f"  error {self.first.error:.3e}, bound {self.first.bound:.3e} (relative to its largest value)",
            ]
        return Group(*map(Text, [*lines, *outputs]))
