"""Each file's converters are in the table of all, and none takes the place of another file's."""

from __future__ import annotations

import pkgutil
from importlib import import_module
from types import ModuleType

import pytest

from tkc.frontend.onnx import converters as onnx_converters
from tkc.frontend.torch import converters as torch_converters


def named_in(package: ModuleType) -> list[tuple[str, str, object]]:
    """The file, the operator's name and the converter, of all that the package's files list."""
    modules = [import_module(f"{package.__name__}.{found.name}") for found in pkgutil.iter_modules(package.__path__)]
    return [
        (module.__name__.rpartition(".")[2], name, converter)
        for module in modules
        for table, converters in vars(module).items()
        if table.endswith("CONVERTERS") and isinstance(converters, dict)
        for name, converter in converters.items()
    ]


@pytest.mark.parametrize("package", [torch_converters, onnx_converters], ids=["PyTorch", "ONNX"])
def test_every_file_is_in_the_table(package: ModuleType) -> None:
    """A file that ``__init__.py`` does not name, or a name in two files, would go unnoticed."""
    listed = {(str(key if isinstance(key, str) else key[1]), value) for key, value in package.CONVERTERS.items()}
    named = named_in(package)
    assert len(named) > 100
    assert [(file, name) for file, name, converter in named if (name, converter) not in listed] == []
