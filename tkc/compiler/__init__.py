"""From a model and options to an executable or a report: the stages of `tkc/pipeline.py`, kernels beside them."""
