from typing import Any

from tvm.relax.block_builder import BlockBuilder as BlockBuilder

def __getattr__(name: str) -> Any: ...
