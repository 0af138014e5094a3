"""The members of a saved program's archive: its graph, its tensors and its pickles."""

from __future__ import annotations

import io
import math
import re
import zipfile
from collections.abc import Callable
from pathlib import Path

import torch

from tkc.errors import UsageError
from tkc.frontend.torch.untrusted.program import check_program, json_object
from tkc.frontend.torch.untrusted.refusals import LONGEST_TOLD, wrong

_MOST_ELEMENTS = 1 << 36
_MOST_EXPANDED = 1 << 30  # bytes that a tensor may have beyond those that are stored of it

_OLD_PROGRAM = "serialized_exported_program.json"
_OLD_PICKLES = re.compile(r"serialized_(state_dict|constants|example_inputs)\.(pt|json)")
_PICKLES = re.compile(r"data/(sample_inputs/.*|(weights|constants)/[^/]*\.pt)")
_CONFIG = re.compile(r"data/(weights|constants)/.*_config\.json")
_ZIP = b"PK\3\4"


def check_members(path: Path) -> None:
    """Raise a :class:`tkc.Error` for an archive with a member that PyTorch could not read without running code of it,
    or that says what cannot be. :class:`UsageError` is for objects that a user may say are safe.
    """
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
        try:
            for name in names:
                if name == _OLD_PROGRAM:
                    check_program(name, archive.read(name))
                elif _OLD_PICKLES.fullmatch(name):
                    _check_pickle(name, archive.read(name))
        except RuntimeError as error:
            raise wrong(f"its member {name[:LONGEST_TOLD]!r} cannot be read ({error})") from error
    if _OLD_PROGRAM not in names or any(name.endswith("archive_format") for name in names):
        _check_new_layout(path, names)


def _check_new_layout(path: Path, names: list[str]) -> None:
    """Members are read by PyTorch's own reader, as they will be."""
    try:
        reader = torch._C.PyTorchFileReader(str(path))
        records = reader.get_all_records()
    except RuntimeError as error:
        raise wrong(str(error).partition("\n")[0]) from error
    folders = {name.partition("/")[0] for name in names}
    if len(folders) != 1 or sorted(f"{folder}/{record}" for folder in folders for record in records) != sorted(names):
        raise wrong("it has several indices, or members outside of its folder")
    read: Callable[[str], bytes] = reader.get_record
    for record in records:
        if record.startswith("models/"):
            check_program(record, read(record))
        elif _CONFIG.fullmatch(record):
            _check_payloads(record, read, reader.get_record_size, records)
        elif _PICKLES.fullmatch(record):
            _check_pickle(record, read(record))


def _check_payloads(name: str, read: Callable[[str], bytes], size_of: Callable[[str], int], records: list[str]) -> None:
    """The tensors of a configuration: none is larger than what is stored of it, or a pickle of anything."""
    folder = name.rpartition("/")[0]
    config = json_object(name, read(name)).get("config")
    if not isinstance(config, dict):
        raise wrong(f"its member {name!r} lists no tensors")
    for key, entry in config.items():
        told = f"the tensor {key[:LONGEST_TOLD]!r} of its member {name!r}"
        try:
            path = entry["path_name"]
            if f"{folder}/{path}" not in records:
                raise wrong(f"{told} stands in {str(path)[:LONGEST_TOLD]!r}, which is not there")
            if not path.startswith(("weight_", "tensor_")):
                raise UsageError(
                    f"The archive holds {key[:LONGEST_TOLD]!r} as {path!r}, an object of a class of its own, which "
                    "only its own code can read. Export the model without it."
                )
            if entry["use_pickle"]:
                _check_pickle(f"{folder}/{path}", read(f"{folder}/{path}"))
                continue
            meta = entry["tensor_meta"]
            sizes = [size["as_int"] for size in meta["sizes"]]
            whole = [*sizes, *(step["as_int"] for step in meta["strides"]), meta["storage_offset"]["as_int"]]
        except (KeyError, TypeError, AttributeError) as error:
            raise wrong(f"{told} is not described as tensors are ({error!r})") from None
        if not all(isinstance(number, int) and 0 <= number < 1 << 62 for number in whole):
            raise wrong(f"{told} has a size, a stride or an offset that no tensor has")
        stored = size_of(f"{folder}/{path}")
        elements = math.prod(sizes)
        if elements > _MOST_ELEMENTS or (elements > stored + _MOST_EXPANDED) or (elements and not stored):
            raise wrong(f"{told} has the shape {sizes}, and {stored} bytes are stored of it")


def _check_pickle(name: str, content: bytes) -> None:
    """A pickle that PyTorch's restricted unpickler reads to its end names nothing that runs."""
    if not content:
        return
    try:
        if not content.startswith(_ZIP):
            raise ValueError("no archive of torch.save")
        torch.load(io.BytesIO(content), map_location="meta", weights_only=True)
    except Exception as error:
        reason = str(error)
        named = re.search(r"GLOBAL ([\w.]+)", reason)
        what = f"names {named[1]}" if named else f"holds more than tensors ({reason.strip().splitlines()[-1:]})"
        raise UsageError(
            f"The member {name!r} of the archive {what[:300]}, which may run code. If you trust it, say so with "
            "torch.serialization.add_safe_globals (on the command line: in a module that --import names); or export "
            "the model with example inputs and weights that are plain tensors."
        ) from error
