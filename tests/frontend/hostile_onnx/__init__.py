"""ONNX files that somebody made to do harm, by what is wrong with them: each file here adds some to ``FILES``."""

from tests.frontend.hostile_onnx import depth, external, functions, graph, noise, sizes, tensors
from tests.frontend.hostile_onnx.files import FILES

__all__ = ["FILES", "depth", "external", "functions", "graph", "noise", "sizes", "tensors"]
