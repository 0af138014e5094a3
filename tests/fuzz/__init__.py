"""Differential fuzzing: random graphs through ``torch.export`` and TKC, compared with PyTorch in float64."""
