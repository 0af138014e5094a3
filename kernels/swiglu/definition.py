"""SwiGLU in TileLang: which of the forms a kernel takes."""

from tvm.tirx import PrimFunc

from tkc.kernels.swiglu import cpu, cuda
from tkc.kernels.swiglu.parameters import SwiGLUParameters
from tkc.kernels.swiglu.spec import SwiGLUConfiguration
from tkc.kernels.target import Target


def define(parameters: SwiGLUParameters, configuration: SwiGLUConfiguration, target: Target) -> PrimFunc:
    """The kernel over ``gate`` and ``up`` or ``gate_up``, ``out``, ``scales`` and the workspace if there are such."""
    if not target.is_cuda:
        return cpu.channels(parameters) if parameters.scale == "channel" else cpu.tiles(parameters)
    match parameters.scale:
        case "channel":
            return cuda.channels(parameters, configuration)
        case "token" | "block":
            return cuda.tiles(parameters, configuration)
        case _:
            return cuda.groups(parameters, configuration)
