from collections.abc import Callable
from typing import Any

def prim_func(
    *, private: bool = False, check_well_formed: bool = True, s_tir: bool = False
) -> Callable[[Callable[..., None]], Any]: ...
def __getattr__(name: str) -> Any: ...
