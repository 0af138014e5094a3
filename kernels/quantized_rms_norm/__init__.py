"""RMS normalization quantized to FP8."""
