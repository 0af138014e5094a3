"""What is looked at in a database before TVM sees it: its parsers follow whatever they are given, until the stack ends.

A database may come from anybody. Records only choose among schedules of a function that the model has anyway; what is
refused here is what could crash the process, take its memory, or bring code of its own.
"""

from __future__ import annotations

import base64
import binascii
import math
import struct
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic_core import from_json
from tvm import tirx

from tkc.contracts import DEFAULT_SCHEDULE

MOST_LINE = 16 << 20
"""Bytes of the longest line that is read; the longest that is known has 0.2 million."""

# TVM visits functions recursively: 10,000 levels end the process. The deepest function that is known has 29.
_MOST_DEPTH = 500
_MOST_RUNS = 10_000
_SHORT = 40  # characters, in which nothing is nested
_LIBRARIES = ("ir.", "tirx.", "relax.", "s_tir.", "ffi.")
_PLAIN = {"None", "bool", "int", "float"}
# Integers that are no references to other nodes.
_NUMBERS = {"data_alignment", "ndim", "kind", "iter_type", "buffer_type", "lanes", "bits"}


def _is_statement(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, tirx.Stmt)


# The fields of a function that may be absent; TVM follows any other without asking.
_OPTIONAL = frozenset(
    """
    attrs derive_func dom else_case global_infos init layout predicate shape span step struct_info_ thread_binding
    values vdevice
    """.split()  # noqa: SIM905
)
# The fields that hold a statement, whose kind TVM does not ask for either.
_STATEMENTS = frozenset(f"tirx.{name}" for name, kind in vars(tirx).items() if _is_statement(kind))
_HOLDERS = {
    ("tirx.SBlockRealize", "block"): frozenset({"tirx.SBlock"}),
    ("tirx.SBlock", "init"): _STATEMENTS | {"None"},
    ("tirx.IfThenElse", "then_case"): _STATEMENTS,
    ("tirx.IfThenElse", "else_case"): _STATEMENTS | {"None"},
}
# The primitives that MetaSchedule's search, and this project, schedule with. Those that may change what a function
# computes (UnsafeSetDType, AnnotateBufferAccess, UnsafeHideBufferAccess) are not among them.
_PRIMITIVES = frozenset(
    """
    AddUnitLoop Annotate Bind Blockize CacheIndex CacheInplace CacheRead CacheWrite ComputeAt ComputeInline
    DecomposePadding DecomposeReduction EnterPostproc Fuse FuseReductionEpilogue GetChildBlocks GetConsumers GetLoops
    GetOutputBlocks GetProducers GetSBlock LoopPartition Merge PadEinsum Parallel RFactor ReIndex ReadAt
    ReindexCacheRead ReindexCacheWrite Reorder ReorderBlockIterVar ReverseComputeAt ReverseComputeInline RollingBuffer
    SampleCategorical SampleComputeLocation SamplePartitionedTile SamplePerfectTile SetScope Split StorageAlign
    Tensorize TransformBlockLayout TransformLayout Unannotate Unroll Vectorize WriteAt
    """.split()  # noqa: SIM905
)
# Annotations that mean something to lowering; others (pragma_import_llvm, pragma_import_c) bring code into the program.
_ANNOTATIONS = (
    DEFAULT_SCHEDULE,
    "meta_schedule.",
    "software_pipeline_",
    "pragma_auto_unroll_max_step",
    "pragma_unroll_explicit",
    "tir.manifest_shared_memory_local_stage",
    "buffer_dim_align",
    "double_buffer_scope",
    "vector_bytes",
    "warp_execution",
)


def lines(path: Path, start: int = 0, end: int | None = None) -> Iterator[tuple[int, int, bytes | None]]:
    """Each whole line of the file, where it starts and where the next one does, from ``start`` on and before ``end``;
    ``None`` for one that is too long, which is passed over. Nothing of a link.
    """
    if path.is_symlink() or not path.is_file():
        return
    with path.open("rb") as file:
        file.seek(start)
        while end is None or start < end:
            line = piece = file.readline(MOST_LINE)
            length = len(line)
            while len(piece) == MOST_LINE and not piece.endswith(b"\n"):
                piece = file.readline(MOST_LINE)
                length += len(piece)
            if not piece.endswith(b"\n"):
                return  # still being written
            yield start, start + length, line[:-1] if length == len(line) else None
            start += length


def link_in(folder: Path) -> Path | None:
    """A link that ``folder``, the records of one target, is or holds: what is written there would go elsewhere."""
    if folder.is_symlink():
        return folder
    if not folder.is_dir():
        return None
    return next((path for path in sorted(folder.iterdir()) if path.is_symlink()), None)


def workload_problem(content: Any) -> str | None:
    """Why a line of workloads, parsed as ``content``, is none; ``None`` if TVM may read it."""
    if not (isinstance(content, list) and len(content) == 2 and all(isinstance(each, str) for each in content)):
        return "no workload can be read from it"
    try:
        raw = base64.b64decode(content[1], validate=True)
        (length,) = struct.unpack("<Q", raw[:8])
    except (binascii.Error, ValueError, struct.error):
        return "no workload can be read from it"
    if length != len(raw) - 8:
        return "its length is not what it says"
    return _graph_problem(raw[8:])


def _graph_problem(text: bytes) -> str | None:
    try:
        graph = from_json(text)
        nodes = graph["nodes"]
        root = graph["root_index"]
    except (ValueError, TypeError, KeyError):
        return "no workload can be read from it"
    if not isinstance(nodes, list) or not isinstance(root, int) or not 0 <= root < len(nodes):
        return "no workload can be read from it"
    depths: list[int] = []
    for place, node in enumerate(nodes):
        kind = node.get("type") if isinstance(node, dict) else None
        if not isinstance(kind, str) or not (kind in _PLAIN or kind.startswith(_LIBRARIES)):
            return f"it holds a {str(kind)[:40]}, which no function is made of"
        depth = 0
        for name, value in _fields(kind, node.get("data")):
            if type(value) is not int or name in _NUMBERS:  # a truth value is none
                continue
            if not 0 <= value < place:
                return "a part of it refers to one that comes later, or to none"
            held = _STATEMENTS if name == "body" and kind.startswith("tirx.") else _HOLDERS.get((kind, name))
            if held is not None and nodes[value].get("type") not in held:
                return f"a {kind[:40]} in it holds what is no statement ({name})"
            if name not in _OPTIONAL and nodes[value].get("type") == "None":
                return f"a {kind[:40]} in it lacks what it is made of{name and f' ({name[:40]})'}"
            if depths[value] > depth:
                depth = depths[value]
        depths.append(depth + 1)
        if depth >= _MOST_DEPTH:
            return f"it is nested more than {_MOST_DEPTH} levels deep"
    return None


def _fields(kind: str, data: Any) -> Iterable[tuple[str, Any]]:
    if isinstance(data, dict):
        # The value of a number is no reference.
        return [field for field in data.items() if field[0] != "value"] if kind == "ir.IntImm" else data.items()
    return [("", value) for value in data] if isinstance(data, list) else ()


def record_problem(content: Any) -> str | None:
    """Why a line of records, parsed as ``content``, is none; ``None`` if TVM may read it."""
    try:
        workload, (trace, runs, target, arguments) = content
        instructions, _ = trace
    except (TypeError, ValueError):
        return "no record can be read from it"
    if not isinstance(workload, int) or isinstance(workload, bool) or not 0 <= workload < 1 << 31:
        return "it names no workload"
    if not isinstance(runs, list) or len(runs) > _MOST_RUNS or not all(map(_is_time, runs)):
        return "its times are no times"
    if not isinstance(target, Mapping) or not all(isinstance(target.get(key, ""), str) for key in ("kind", "mcpu")):
        return "its target is none"
    if not isinstance(arguments, list) or not arguments or not all(map(_is_argument, arguments)):
        return "its arguments are no tensors"
    return _trace_problem(instructions)


def _is_time(run: Any) -> bool:
    return isinstance(run, int | float) and not isinstance(run, bool) and math.isfinite(run) and run >= 0


def _is_argument(argument: Any) -> bool:
    try:
        kind, dtype, shape = argument
    except (TypeError, ValueError):
        return False
    named = kind == "TENSOR" and isinstance(dtype, str)
    return named and isinstance(shape, list) and all(isinstance(size, int) and -1 <= size < 1 << 62 for size in shape)


def _trace_problem(instructions: Any) -> str | None:
    if not isinstance(instructions, list):
        return "its schedule is none"
    for instruction in instructions:
        if not (isinstance(instruction, list) and len(instruction) == 4 and isinstance(instruction[2], list)):
            return "its schedule is none"
        kind, _, attributes, _ = instruction
        if not isinstance(kind, str) or kind not in _PRIMITIVES:
            return f"its schedule uses {str(kind)[:40]}, which no search does"
        if kind in ("Annotate", "Unannotate"):
            key = attributes[0] if attributes else None
            if not isinstance(key, str) or not key.startswith(_ANNOTATIONS):
                return f"its schedule annotates {str(key)[:40]}, which no search does"
        for attribute in attributes:
            if (
                isinstance(attribute, str)
                and len(attribute) > _SHORT
                and (problem := _text_problem(attribute)) is not None
            ):
                return f"its schedule is none: {problem}"
    return None


def _text_problem(text: Any) -> str | None:
    """TVM reads an index map out of a text, as it reads a workload."""
    if not isinstance(text, str) or len(text) < _SHORT:
        return None
    if text[:1] in ("{", "["):
        return _graph_problem(text.encode())
    try:
        raw = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return None
    return _graph_problem(raw[8:]) if raw[8:9] in (b"{", b"[") else None
