"""The parameters of mixture-of-experts gating."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class MoeGateParameters:
    """How one router chooses.

    Scores are ``scoring(logits)``. Experts are ranked by score plus bias (if any); with groups, only
    experts of the ``top_groups`` groups with the largest sum of their ``group_ranks`` best ranks, one or two,
    stay eligible (the others rank as ``excluded_rank``). The ``top_k`` best are chosen, the smaller index on
    ties. Their weights are their scores without the bias, divided by their sum plus ``epsilon`` if
    ``normalize``, times ``scale``.

    With neither bias nor groups the ranking is that of the logits: the same order, and no ties where
    scores round to the same number. NaN ranks above every number, as in ``torch.topk``.
    """

    num_experts: int
    top_k: int
    scoring: Literal["softmax", "sigmoid", "sqrt_softplus"]
    logits_dtype: Literal["float32", "float16", "bfloat16"] = "float32"
    bias: bool = False
    num_groups: int = 1
    top_groups: int = 1
    excluded_rank: Literal["zero", "-inf"] = "-inf"
    normalize: bool = False
    epsilon: float = 0.0
    scale: float = 1.0
    weights_dtype: Literal["float32", "float16", "bfloat16"] = "float32"
    indices_dtype: Literal["int32", "int64"] = "int64"
    group_ranks: Literal[1, 2] = 2

    @property
    def limits_groups(self) -> bool:
        """Whether some groups are left out."""
        return self.top_groups < self.num_groups

    @property
    def ranks_logits(self) -> bool:
        """Whether the order of the logits is the ranking, since every scoring function is increasing."""
        return not self.bias and not self.limits_groups
