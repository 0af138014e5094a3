"""What a kernel is: its parameters, tensors, support, configurations, work and reference.

A spec is pure Python, so that every process can import it. How the kernel is written stands in the
family's ``definition.py``, which imports TileLang and is therefore loaded by the builder process alone.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, TypeVar

from tkc.kernels.target import Target

if TYPE_CHECKING:
    import torch

SERIAL_ON_CPU = "the graph compiler's own CPU schedule uses every core, and TileLang's C code one"
"""Why ``kernels="auto"`` leaves simple loops on the CPU to the graph compiler."""

ParametersT = TypeVar("ParametersT")
ConfigurationT = TypeVar("ConfigurationT")


@dataclass(frozen=True)
class TensorType:
    """Shape and dtype of one kernel argument; a ``str`` dimension is a size known only at run time.

    Tensors are contiguous and row-major. Equal names mean equal sizes; every name stands for itself
    (there are no expressions), so that a kernel can read it off the tensor it is called with.
    """

    name: str
    shape: tuple[int | str, ...]
    dtype: str

    def num_bytes(self, sizes: Mapping[str, int]) -> int:
        """The bytes the tensor holds at the given run-time sizes."""
        bits = re.search(r"\d+", self.dtype)
        count = math.prod(sizes[dim] if isinstance(dim, str) else dim for dim in self.shape)
        return count * (int(bits.group()) // 8 if bits else 1)  # only bool names no width


@dataclass(frozen=True)
class Choice(Generic[ConfigurationT]):
    """A configuration for the run-time sizes up to ``most``, of the spec's ``dispatch_size``; ``None``: for all."""

    configuration: ConfigurationT
    most: int | None = None


@dataclass(frozen=True)
class Work:
    """What a kernel must do at the least: floating-point operations, and bytes read and written."""

    flops: float
    bytes: float


class KernelSpec(ABC, Generic[ParametersT, ConfigurationT]):
    """One kernel family. Subclasses hold no state; ``parameters`` always carries the particular kernel."""

    name: ClassVar[str]
    parameters_type: ClassVar[type]
    configuration_type: ClassVar[type]
    dispatch_size: ClassVar[str | None] = None
    """The run-time size by which each call chooses among configurations; ``None`` where one serves all sizes."""
    minor_parameters: ClassVar[frozenset[str]] = frozenset()
    """Parameters that hardly change which configuration is the fastest."""
    settles_order: ClassVar[Literal["smallest", "largest"]] = "largest"
    """The size whose configuration settles, where all are to reduce in one order, which order that is: the one that
    would lose the most by another."""

    @abstractmethod
    def unsupported(self, parameters: ParametersT, target: Target) -> str | None:
        """Why no kernel exists for these parameters on this target, as a clause for users; ``None`` if one does."""

    @abstractmethod
    def inputs(self, parameters: ParametersT) -> tuple[TensorType, ...]:
        """The tensors the kernel reads, in order."""

    @abstractmethod
    def outputs(self, parameters: ParametersT) -> tuple[TensorType, ...]:
        """The tensors the kernel writes, in order; they follow the inputs."""

    def workspaces(self, parameters: ParametersT, configuration: ConfigurationT) -> tuple[TensorType, ...]:
        """Scratch tensors the kernel takes after its outputs; what they hold is nobody else's concern."""
        return ()

    @abstractmethod
    def configurations(self, parameters: ParametersT, target: Target) -> tuple[ConfigurationT, ...]:
        """Every configuration worth measuring; the first is the default."""

    @abstractmethod
    def reduction_order(
        self, parameters: ParametersT, configuration: ConfigurationT, target: Target
    ) -> Hashable | None:
        """In which order a row's numbers are reduced: configurations whose orders are equal give it the same bits.

        A row is what the kernel computes of one token, or of one query and head, from what belongs to it alone.
        ``None`` where its order depends on how many rows there are, or on what the others hold.
        """

    @abstractmethod
    def work(self, parameters: ParametersT, sizes: Mapping[str, int]) -> Work:
        """The work at given run-time sizes (by the names that :meth:`inputs` uses)."""

    @abstractmethod
    def reference(self, parameters: ParametersT, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The outputs by PyTorch, computed in float32 or wider, cast at the end."""

    def estimated_microseconds(
        self, parameters: ParametersT, configuration: ConfigurationT, target: Target, sizes: Mapping[str, int]
    ) -> float | None:
        """How long a call may take, for choices at sizes of which nothing was measured; ``None`` if nobody can tell.

        Either all configurations of a kernel have an estimate, or none has.
        """
        return None

    def beneficial(self, parameters: ParametersT, target: Target) -> str | None:
        """Why ``kernels="auto"`` leaves a supported kernel unused on this target; ``None`` where it pays."""
        return None

    def least_beneficial_size(self, parameters: ParametersT, target: Target) -> int:
        """The dispatch size from which on ``kernels="auto"`` uses a beneficial kernel.

        Calls that are known to have less are left to generated code.
        """
        return 0

    @property
    def definition_module(self) -> str:
        """The module with ``define(parameters, configuration, target) -> PrimFunc``, beside the spec's own."""
        return type(self).__module__.rpartition(".")[0] + ".definition"

    def sizes(self, parameters: ParametersT) -> tuple[str, ...]:
        """The names of the run-time sizes, in order of first appearance."""
        types = (*self.inputs(parameters), *self.outputs(parameters))
        return tuple(dict.fromkeys(dim for t in types for dim in t.shape if isinstance(dim, str)))


def without_elements(**sizes: int | None) -> str | None:
    """Why no kernel exists if one of these sizes is zero, as a clause for users; ``None`` if none is.

    Sizes that only calls know (``None``) may be zero there.
    """
    for name, size in sizes.items():
        if size is not None and size < 1:
            return f"{name} is {size}, and at least one is needed"
    return None


def as_json(value: Any) -> dict[str, Any]:
    """A dataclass as JSON reads it back: with lists for tuples."""
    read: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(value)))
    return read


def parameters_told(parameters: Any) -> tuple[str, ...]:
    """The names of a kernel's parameters that are not at their defaults."""
    defaults = {field.name: field.default for field in dataclasses.fields(parameters)}
    return tuple(name for name, value in as_json(parameters).items() if (value or None) != (defaults.get(name) or None))
