"""Special functions of numbers, as PyTorch defines them (``aten/src/ATen/native/Math.h``), in float64.

Each is a program over :class:`tkc.frontend.loops.Loops`: it takes elements of float64 and returns one. What is narrower
is computed so, too, and rounded once.
"""
