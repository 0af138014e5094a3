"""Which real architectures compile: model types of transformers and other sources, compared with PyTorch."""
