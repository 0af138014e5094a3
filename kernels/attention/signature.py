"""The arguments of a TileLang function, as a kernel spec declares them."""

from collections.abc import Callable, Iterable
from types import SimpleNamespace

import tilelang.language as T
from tvm.tirx import Var

from tkc.kernels.spec import TensorType


def annotations(
    tensors: Iterable[TensorType], storage: Callable[[str], str] = str, optional: Iterable[str] = ("mask", "sinks")
) -> SimpleNamespace:
    """What to annotate a ``T.prim_func``'s arguments with, by their names; ``None`` for ``optional`` ones not there.

    A named size is one int32 variable in all of them. ``storage`` says in which dtype the function sees a declared one.
    """
    sizes: dict[str, Var] = {}

    def size(dim: int | str) -> int | Var:
        return sizes.setdefault(dim, T.dynamic(dim)) if isinstance(dim, str) else dim

    found = {tensor.name: T.Tensor([size(d) for d in tensor.shape], storage(tensor.dtype)) for tensor in tensors}
    return SimpleNamespace(**dict.fromkeys(optional) | found)
