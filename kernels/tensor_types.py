"""The TileLang types of a kernel's tensors, as its spec lists them."""

from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

import tilelang.language as T

from tkc.kernels.spec import KernelSpec


def tensor_types(
    spec: KernelSpec[Any, Any], parameters: Any, optional: Iterable[str] = (), storage: Callable[[str], str] = str
) -> SimpleNamespace:
    """The types of the inputs and outputs by name, each dtype as ``storage`` has it.

    Those of ``optional`` that the particular kernel lacks are ``None``, which makes TileLang leave the argument out.
    """
    sizes: dict[int | str, Any] = {name: T.dynamic(name, "int32") for name in spec.sizes(parameters)}
    tensors = (*spec.inputs(parameters), *spec.outputs(parameters))
    types = {t.name: T.Tensor(tuple(sizes.get(d, d) for d in t.shape), storage(t.dtype)) for t in tensors}
    return SimpleNamespace(**{**dict.fromkeys(optional), **types})
