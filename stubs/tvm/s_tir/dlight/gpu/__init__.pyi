from dataclasses import dataclass
from typing import Any

class Matmul:
    @dataclass
    class Config:
        block_size_x: int = 8
        block_size_y: int = 8
        vthread_x: int = 1
        vthread_y: int = 1
        micro_size_x: int = 4
        micro_size_y: int = 4
        micro_size_k: int = 8
        vector_size: int = 1
        unroll: int = 256
        use_shared: bool = True
        storage_align: bool = False
        inner_x: bool = False

    def get_configs(self, target: Any) -> Config: ...
    def apply(self, func: Any, target: Any, _: bool, /) -> Any: ...

def __getattr__(name: str) -> Any: ...
