"""The names in tkc/contracts.py are spelled out nowhere else, and are those that the C++ sources export."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from tkc import contracts

ROOT = Path(contracts.__file__).parents[1]
NAMES = {name: value for name, value in vars(contracts).items() if name.isupper()}
# Ordinary words, which other things are called, too.
WORDS = {
    contracts.MAIN,
    contracts.GROUPED_MATMUL_OPERATOR,
    contracts.HISTOGRAM_OPERATOR,
    contracts.BY_RULES,
    contracts.KERNEL_SYMBOL_PREFIX,
}


def sources() -> Iterator[Path]:
    """Every source file of the compiler, once."""
    for folder in ("tkc", "passes", "kernels", "schedules"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            if not any(part.is_symlink() for part in path.parents) and path.name != "contracts.py":
                yield path


def literals(path: Path) -> set[str]:
    """The string literals in a file that are not docstrings."""
    return {
        node.value
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }


def test_no_other_file_spells_a_name_out() -> None:
    """A renamed attribute is then renamed everywhere."""
    names = {value for value in NAMES.values() if isinstance(value, str)} - WORDS
    found = {str(path.relative_to(ROOT)): sorted(names & literals(path)) for path in sources()}
    assert len(found) > 200
    assert {path: spelled for path, spelled in found.items() if spelled} == {}


def test_every_name_is_documented_and_means_one_thing() -> None:
    """Each constant has a docstring; no two are the same string."""
    body = ast.parse(Path(contracts.__file__).read_text()).body
    documented = {
        node.target.id
        for node, after in itertools.pairwise(body)
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
        if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
    }
    assert documented == set(NAMES)
    texts = [value for value in NAMES.values() if isinstance(value, str)]
    assert len(texts) == len(set(texts))


def test_it_imports_nothing() -> None:
    """So that every part may import it, also in the processes of the builder."""
    tree = ast.parse(Path(contracts.__file__).read_text())
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    assert {getattr(node, "module", None) for node in imports} == {"__future__", "typing"}


@pytest.mark.parametrize(
    ("file", "symbols"),
    {
        "device_memory.cc": (contracts.USE_DEVICE, contracts.ALLOC_STORAGE, contracts.ALLOC_TENSOR),
        "parallel.cc": (contracts.SHARE_THREADS,),
        "products.cc": (contracts.PRODUCT, contracts.PACKED, contracts.USE_PACKED),
    }.items(),
)
def test_cpp_sources_export_the_symbols(file: str, symbols: tuple[str, ...]) -> None:
    """By TVM FFI's macro, or by the prefix that it stands for."""
    source = (ROOT / "tkc" / "builder" / file).read_text()
    for symbol in symbols:
        assert f"TVM_FFI_DLL_EXPORT_TYPED_FUNC({symbol}," in source or f"__tvm_ffi_{symbol}(" in source
