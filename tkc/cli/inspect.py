"""What an artifact holds, as tables."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.filesize import decimal
from rich.table import Table

from tkc.runtime.artifact import Artifact
from tkc.runtime.signature import Constant, TensorSpec


def artifact_table(artifact: Artifact) -> RenderableType:
    """Versions, target, signature, kernels and files of a checked artifact."""
    manifest = artifact.manifest
    head = Table(title=str(artifact.folder), title_justify="left", show_header=False)
    head.add_row("target", manifest.target)
    head.add_row("size", decimal(artifact.size))
    head.add_row("made with", ", ".join(f"{name} {version}" for name, version in manifest.versions.items()))
    head.add_row(
        "weights",
        f"{len(manifest.parameters)} tensors, {decimal((artifact.folder / 'params.safetensors').stat().st_size)}",
    )

    call = Table(title="Signature", title_justify="left")
    for column in ("", "name", "dtype", "shape"):
        call.add_column(column)
    for leaf in manifest.signature.leaves:
        if isinstance(leaf, Constant):
            call.add_row("fixed", leaf.name, "", repr(leaf.value))
        else:
            updated = leaf.name in manifest.signature.updated_inputs
            call.add_row("updated input" if updated else "input", leaf.name, leaf.dtype, _shape(leaf))
    for output in manifest.signature.outputs:
        call.add_row("output", output.name, output.dtype, _shape(output))
    for _, formula in manifest.signature.size_outputs:
        call.add_row("output", formula, "number", "")
    for spec in manifest.signature.state:
        call.add_row("state", spec.name, spec.dtype, _shape(spec))
    for name, bounds in manifest.signature.sizes.items():
        call.add_row("size", name, "", f"{bounds.minimum} to {'any' if bounds.maximum is None else bounds.maximum}")

    kernels = Table(title="Kernel libraries", title_justify="left")
    kernels.add_column("kernel")
    kernels.add_column("file")
    for entry in manifest.kernels:
        kernels.add_row(str(entry.request["kernel"]), entry.file)
    return Group(head, call, kernels)


def _shape(spec: TensorSpec) -> str:
    return "[" + ", ".join(map(str, spec.shape)) + "]"
