"""What is looked at in a saved PyTorch program before PyTorch reads it, whose loader evaluates and unpickles.

A file may come from anybody. Sizes are text that sympy evaluates as Python, names become the source of a function,
calls are looked up by their names, and what is pickled may name any function. Here each is compared with what
``torch.export.save`` writes, and nothing of it runs.
"""
