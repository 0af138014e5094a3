"""What an artifact holds, as tables."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.filesize import decimal

from tkc.runtime.artifact.contents import MAIN
from tkc.runtime.artifact.reading import Artifact
from tkc.runtime.report import Report
from tkc.runtime.signature import Constant, Signature, TensorSpec
from tkc.runtime.tables import PlainTable


def artifact_table(artifact: Artifact) -> RenderableType:
    """Versions, target, signature, kernels and files of a checked artifact."""
    manifest = artifact.manifest
    head = PlainTable(title=str(artifact.folder), show_header=False)
    head.add_row("target", manifest.target)
    head.add_row("size", decimal(artifact.size))
    head.add_row("made with", ", ".join(f"{name} {version}" for name, version in manifest.versions.items()))
    head.add_row(
        "weights",
        f"{len(manifest.parameters)} tensors, {decimal((artifact.folder / 'params.safetensors').stat().st_size)}",
    )

    requires = manifest.requires
    for what, names in (
        ("operators called in PyTorch", requires.operators),
        ("packages that register them", [f"{name} {version}" for name, version in requires.libraries.items()]),
        ("libraries that kernels call", requires.shared_libraries),
    ):
        head.add_row(what, ", ".join(names) or "none")

    titles = {name: "Signature" if name == MAIN else f"Entry {name}" for name in manifest.entries}
    calls = [_signature_table(titles[name], entry.signature) for name, entry in manifest.entries.items()]
    for name, entry in manifest.entries.items():
        plan = Report.from_json(manifest.report if entry.report is None else entry.report).activations
        head.add_row("activations" if name == MAIN else f"activations of {name}", plan.told())

    kernels = PlainTable(title="Kernel libraries")
    kernels.add_column("kernel")
    kernels.add_column("file")
    for library in manifest.kernels:
        kernels.add_row(str(library.request["kernel"]), library.file)
    return Group(head, *calls, kernels)


def _signature_table(title: str, signature: Signature) -> PlainTable:
    call = PlainTable(title=title)
    for column in ("", "name", "dtype", "shape"):
        call.add_column(column)
    for leaf in signature.leaves:
        if isinstance(leaf, Constant):
            call.add_row("fixed", leaf.name, "", repr(leaf.value))
        else:
            updated = leaf.name in signature.updated_inputs
            call.add_row("updated input" if updated else "input", leaf.name, leaf.dtype, _shape(leaf))
    for output in signature.outputs:
        call.add_row("output", output.name, output.dtype, _shape(output))
    for _, formula in signature.size_outputs:
        call.add_row("output", formula, "number", "")
    for spec in signature.state:
        call.add_row("state", spec.name, spec.dtype, _shape(spec))
    for name, bounds in signature.sizes.items():
        call.add_row("size", name, "", f"{bounds.minimum} to {'any' if bounds.maximum is None else bounds.maximum}")
    return call


def _shape(spec: TensorSpec) -> str:
    return "[" + ", ".join(map(str, spec.shape)) + "]"
