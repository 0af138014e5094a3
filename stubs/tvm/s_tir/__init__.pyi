from typing import Any

from tvm.s_tir import dlight as dlight

def __getattr__(name: str) -> Any: ...
