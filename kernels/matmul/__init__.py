"""Matrix product with a fused epilogue."""
