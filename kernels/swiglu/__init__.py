"""SwiGLU, plain or quantized to FP8."""
