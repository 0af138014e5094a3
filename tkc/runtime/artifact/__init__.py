"""A compiled model on disk: one folder, written whole or not at all, checked before anything in it runs.

``manifest.json`` says what the folder holds, and ``manifest.sha256`` that it is the manifest which was written;
``model.so`` is the generated code, or ``code/`` that of each entry of a program; ``kernels/`` the kernel libraries;
``params.safetensors`` the weights, and the initial values of the state, which entries share. There is no pickle in it,
but it is machine code all the same.

Reading one takes bounded memory, follows no path out of the folder, and imports nothing that the folder names.
"""
