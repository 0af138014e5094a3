"""What the rest of a graph goes through on its way to TensorIR and to the virtual machine."""
