"""Where figures come from: each benchmark checks its output and times ours beside the reference in one run."""
