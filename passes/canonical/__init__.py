"""Many forms into one, before kernels are substituted."""
