"""Layer and root-mean-square normalization, and the residual addition before it, to the ``normalization`` kernel.

``F.layer_norm(x + residual, (channels,), weight, bias)`` or ``F.rms_norm``, as one operator or written out, where
residual, weight and bias may each be missing. If something else reads ``x + residual``, the kernel returns it too.
"""

from __future__ import annotations

from tkc.passes.graph.found import Found, KernelCall, Refusal
from tkc.passes.graph.layout import kernel_call
from tkc.passes.recognizers.normalization import NORMALIZATION_ROOTS, normalization, normalization_inputs
from tkc.passes.rules.rule import Rule, Site


def _recognize(site: Site) -> Found | Refusal | None:
    return normalization(site.graph, site.var)


def _call(found: Found) -> KernelCall:
    return kernel_call(found, normalization_inputs(found))


NORMALIZATION = Rule(
    name="normalization",
    kernel="normalization",
    roots=NORMALIZATION_ROOTS,
    recognize=_recognize,
    call=_call,
)
