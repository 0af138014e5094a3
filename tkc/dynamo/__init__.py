"""The backend of ``torch.compile(model, backend="tkc")``.

PyTorch finds it by the entry point ``torch_dynamo_backends``; nothing here is imported before it is asked for.
"""
