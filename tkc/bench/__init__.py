"""Where figures come from: each benchmark checks its output, times ours beside the reference in one run, and writes JSON."""
