"""Matrix product of FP8 operands with a scale for every group of 128 channels."""
