"""How a model is called, in words: what an executable prints of itself."""

from __future__ import annotations

from collections.abc import Sequence

from tkc.runtime.input_checks import described
from tkc.runtime.report import Report
from tkc.runtime.signature import Constant, Signature, TensorSpec


def listed(leaves: Sequence[TensorSpec | Constant]) -> str:
    """Inputs or outputs in words: each one's name, with its dtype and shape, or its value."""
    return ", ".join(
        f"{leaf.name} ({described(leaf) if isinstance(leaf, TensorSpec) else repr(leaf.value)})" for leaf in leaves
    )


def call_summary(signature: Signature, report: Report) -> dict[str, str]:
    """How a model is called and what a call runs, in words by what each is about."""
    rows = {
        "inputs": listed(signature.leaves),
        "outputs": ", ".join([listed(signature.outputs), *(text for _, text in signature.size_outputs)]),
        "sizes": ", ".join(
            f"{name} {bounds.minimum} to {'any' if bounds.maximum is None else bounds.maximum}"
            for name, bounds in signature.sizes.items()
        ),
        "updated": ", ".join(signature.updated_inputs),
        "kernels": ", ".join(f"{use.kernel} ({use.calls} calls)" for use in report.uses) or "none",
        "operators": ", ".join(f"{use.operator} ({use.calls} calls)" for use in report.operators),
    }
    return {name: text for name, text in rows.items() if text}
