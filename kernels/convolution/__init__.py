"""Convolution as a matrix product with a fused epilogue, whose windows are never written down."""
