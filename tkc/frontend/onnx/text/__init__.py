"""Strings in ONNX models: which operators take them, and the codes that stand for them."""
