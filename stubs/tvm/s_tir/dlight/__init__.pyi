from typing import Any

from tvm.s_tir.dlight import gpu as gpu

def __getattr__(name: str) -> Any: ...
