"""What a frontend returns: the Relax module of a model, its weights, and the signature a caller sees."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tkc.errors import UnsupportedModelError
from tkc.runtime.signature import Signature
from tkc.runtime.tensors import identity

if TYPE_CHECKING:
    import torch
    from torch.utils._pytree import TreeSpec
    from tvm import IRModule

    from tkc.frontend.held_weights import HeldWeight
    from tkc.passes.canonical.pack_weights import PackedWeights


@dataclass(frozen=True)
class OperatorCall:
    """An operator of PyTorch's that the model calls in place: its name, in how many places, which nodes of the model
    these are, and why TKC does not compile it; ``is_faster``: it could, and PyTorch's library is faster."""

    operator: str
    calls: int
    nodes: tuple[str, ...]
    why: str
    is_faster: bool = False


@dataclass
class ImportedModel:
    """A model as Relax: ``module["main"]`` takes the signature's inputs, then ``parameters`` in their order.

    It returns a tuple of the signature's outputs but those ``returned``, then the counts of bad indices, if any are
    checked, then the new values of its updated inputs and state, in their order. The function's attribute
    :data:`tkc.contracts.UPDATES` says which of what it takes they replace. Its symbolic shape variables
    carry the names in ``signature.sizes``. ``in_spec`` and ``out_spec`` are the live forms of the signature's, which
    may name classes that cannot be written down. ``sources`` says which node of the model a variable of the module was
    bound for, by the variable's name; ``values`` names the variable that holds each value of the source: of a node of
    the exported program by its name, of an ONNX graph by the value's. ``operators`` are those of PyTorch's that it
    calls.
    ``scalars`` are the buffers of one number that the module holds as constants. ``read_state`` names the parameters
    that this model only reads, and other entries of a program update. With ``shares_weights``, ``parameters`` are the
    tensors of a model in this process, whose owner may change them. ``held`` are the model's own weights by the names
    that it has for them, if these are known.
    """

    module: IRModule
    parameters: dict[str, torch.Tensor]
    signature: Signature
    out_spec: TreeSpec | None = None
    sources: Mapping[str, str] = field(default_factory=dict)
    values: Mapping[str, str] = field(default_factory=dict)
    operators: tuple[OperatorCall, ...] = ()
    scalars: Mapping[str, torch.Tensor] = field(default_factory=dict)
    read_state: frozenset[str] = frozenset()
    shares_weights: bool = True
    in_spec: TreeSpec | None = None
    held: dict[str, HeldWeight] | None = None

    def pack_weights(self, packed: Sequence[PackedWeights], known: dict[Hashable, torch.Tensor] | None = None) -> None:
        """Bring ``parameters`` in line with a module in which :func:`pack_weights` packed some of them.

        Weights go out of ``parameters`` one by one as they are packed. The others stay what they were, which may be
        the tensors of a model that is still in use. ``known`` are those that other entries of a program packed, to
        which new ones are added.
        """
        import torch

        known = {} if known is None else known
        names = list(self.parameters)
        for weights in packed:
            sources = [names[position] for position in weights.sources]
            if updated := self.read_state.intersection(sources):
                raise UnsupportedModelError(
                    f"an entry concatenates {', '.join(sorted(updated))} with weights, and another entry updates it"
                )
            parts = [self.parameters.pop(name).detach() for name in sources]
            key = weights.axis, weights.axes, tuple(map(identity, parts))
            if weights.axes is not None:
                (source,), (whole,) = sources, parts
                if key not in known:
                    known[key] = whole.permute(weights.axes).contiguous()
                self.parameters[self._note_axes(source, weights.axes)] = known[key]
                continue
            if key not in known:
                known[key] = torch.cat(parts, weights.axis)
            self.parameters["+".join(sources)] = known[key]
            self._note_parts(sources, parts, weights.axis)

    def rename_held(self, names: Mapping[str, str]) -> None:
        """Have :attr:`held` name parameters by their new ``names``."""
        for weight in (self.held or {}).values():
            if weight.parameter is not None:
                weight.parameter = names[weight.parameter]

    def _note_axes(self, source: str, axes: tuple[int, ...]) -> str:
        """The new name of the parameter ``source``, whose axes are in another order now."""
        name = f"{source}:{''.join(map(str, axes))}"
        for weight in (self.held or {}).values():
            if weight.parameter == source:
                weight.parameter, weight.axes = name, axes
        return name

    def _note_parts(self, sources: Sequence[str], parts: Sequence[torch.Tensor], axis: int) -> None:
        begin = 0
        for name, part in zip(sources, parts, strict=True):
            end = begin + part.shape[axis]
            for weight in (self.held or {}).values():
                if weight.parameter == name:
                    weight.parameter, weight.part = "+".join(sources), (axis, begin, end)
            begin = end
