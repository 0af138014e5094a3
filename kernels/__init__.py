"""Kernel families: each a spec, a TileLang definition and a PyTorch reference.

``SPECS`` is the table of all kernels by name. Import of this package never imports TileLang or TVM.
"""

from tkc.kernels.registry import SPECS
from tkc.kernels.requests import KernelDispatch, KernelRequest
from tkc.kernels.spec import Choice, KernelSpec, TensorType, Work
from tkc.kernels.target import Target

__all__ = ["SPECS", "Choice", "KernelDispatch", "KernelRequest", "KernelSpec", "Target", "TensorType", "Work"]
