"""The gate in TileLang: which of the forms a kernel takes."""

from tvm.tirx import PrimFunc

from tkc.kernels.moe_gate import cpu, cuda
from tkc.kernels.moe_gate.parameters import MoeGateParameters
from tkc.kernels.moe_gate.spec import MoeGateConfiguration
from tkc.kernels.target import Target


def define(parameters: MoeGateParameters, configuration: MoeGateConfiguration, target: Target) -> PrimFunc:
    """The kernel over ``logits``, ``bias`` if there is one, ``weights`` and ``indices``."""
    return cuda.gate(parameters, configuration) if target.is_cuda else cpu.gate(parameters)
