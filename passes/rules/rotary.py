"""Rotary embedding, and the normalization of the heads before it, to the ``rotary`` kernel.

``x * cos + torch.cat((-x2, x1), -1) * sin`` for the halves ``x1`` and ``x2`` of each head of ``x``, which may be
``F.rms_norm`` of other heads, and a transposition of heads and sequence.
"""

from __future__ import annotations

from tkc.passes.graph.found import Refusal
from tkc.passes.recognizers.rotary import Embedding, embedding, embedding_call
from tkc.passes.rules.rule import Rule, Site, operators


def _recognize(site: Site) -> Embedding | Refusal | None:
    return embedding(site.graph, site.var)


ROTARY = Rule(
    name="rotary",
    kernel="rotary",
    roots=operators("add", "subtract", "concat", "reshape", "astype"),
    recognize=_recognize,
    call=embedding_call,
    before=("mla_decode", "attention_decode", "attention", "normalization"),
)
