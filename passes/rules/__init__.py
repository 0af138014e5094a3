"""Rules: the subgraphs that become calls of kernels, a family a file, and their table."""
