"""What PyTorch's own operator database says of TKC: every sample is right, or refused by name."""
