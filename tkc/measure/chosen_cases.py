"""Which cases of kernels are measured, by what a user names."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tkc.errors import UsageError
from tkc.kernels import SPECS
from tkc.kernels.cases import Case


def chosen_cases(cases: Iterable[Case], names: Sequence[str], dtype: str | None) -> list[Case]:
    """Those of ``cases`` that are of the kernels called ``names`` (all if empty), and of ``dtype`` (``None``: any).

    :class:`UsageError` where a name is no kernel's, or nothing is of that dtype.
    """
    if unknown := sorted(set(names) - set(SPECS)):
        raise UsageError(f"there is no kernel {', '.join(unknown)}; choose from {', '.join(SPECS)}")
    named = [case for case in cases if not names or case.kernel in names]
    dtypes = {case.parameters.dtype for case in named if hasattr(case.parameters, "dtype")}
    if dtype is not None and dtype not in dtypes:
        raise UsageError(f"no case is of {dtype}; there are some of {', '.join(sorted(dtypes)) or 'no dtype'}")
    return [case for case in named if dtype in (None, getattr(case.parameters, "dtype", None))]
