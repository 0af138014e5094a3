"""Which operators take strings, and what they do with them: all others would compute with codes, and are refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tkc.frontend.onnx.domains import MICROSOFT_DOMAIN, ML_DOMAIN

_ANY = 1 << 30


@dataclass(frozen=True)
class Moves:
    """An operator that moves elements, or compares them for equality, whatever they are.

    ``inputs`` are the positions of those elements, the last one standing for all further ones if ``rest``. ``outputs``
    are the positions of the results that have them.
    """

    inputs: tuple[int, ...] = (0,)
    outputs: tuple[int, ...] = (0,)
    rest: bool = False

    def takes(self, position: int) -> bool:
        """Whether the input there holds such elements."""
        return position in self.inputs or (self.rest and position > self.inputs[-1])

    def gives(self, position: int) -> bool:
        """Whether the output there does."""
        return position in self.outputs or (_ANY in self.outputs)


_EVERY_INPUT = Moves((0,), rest=True)
_EVERY_OUTPUT = Moves(outputs=(_ANY,))
_COUNTS = Moves(outputs=())

MOVES: Mapping[tuple[str, str], Moves] = {
    **{
        ("", name): Moves()
        for name in (
            "CenterCropPad", "Compress", "ConcatFromSequence", "DepthToSpace", "Expand", "Flatten", "Gather",
            "GatherElements", "GatherND", "Identity", "Optional", "OptionalGetElement", "Reshape", "ReverseSequence",
            "SequenceAt", "SequenceErase", "Slice", "SpaceToDepth", "SplitToSequence", "Squeeze", "Tile", "Transpose",
            "Unsqueeze",
        )
    },
    ("", "Concat"): _EVERY_INPUT,
    ("", "SequenceConstruct"): _EVERY_INPUT,
    ("", "SequenceInsert"): Moves((0, 1)),
    ("", "Split"): _EVERY_OUTPUT,
    ("", "Where"): Moves((1, 2)),
    ("", "Pad"): Moves((0, 2)),
    ("", "OneHot"): Moves((2,)),
    ("", "Scatter"): Moves((0, 2)),
    ("", "ScatterElements"): Moves((0, 2)),
    ("", "ScatterND"): Moves((0, 2)),
    ("", "TensorScatter"): Moves((0, 1)),
    ("", "Equal"): Moves((0, 1), ()),
    ("", "OptionalHasElement"): _COUNTS,
    ("", "SequenceLength"): _COUNTS,
    ("", "Shape"): _COUNTS,
    ("", "Size"): _COUNTS,
    (ML_DOMAIN, "ArrayFeatureExtractor"): Moves(),
}  # fmt: skip
"""By domain and name."""

FUNCTIONS: Mapping[tuple[str, str], Sequence[int]] = {
    ("", "RegexFullMatch"): (),
    ("", "StringConcat"): (0,),
    ("", "StringNormalizer"): (0,),
    ("", "StringSplit"): (0,),
    (MICROSOFT_DOMAIN, "Tokenizer"): (0,),
}
"""Operators of which all inputs are strings, which the runtime computes; and which of their outputs are."""

CLASSIFIERS: Mapping[tuple[str, str], str] = {
    (ML_DOMAIN, "LinearClassifier"): "classlabels_ints",
    (ML_DOMAIN, "SVMClassifier"): "classlabels_ints",
    (ML_DOMAIN, "TreeEnsembleClassifier"): "classlabels_int64s",
}
"""Operators whose first output are labels, and the attribute that has them where they are numbers."""

POOLS: Mapping[tuple[str, str], tuple[str, str]] = {
    (ML_DOMAIN, "OneHotEncoder"): ("cats_strings", "cats_int64s"),
    ("", "TfIdfVectorizer"): ("pool_strings", "pool_int64s"),
}
"""Operators that look for their input in an attribute: of strings, or of numbers."""
