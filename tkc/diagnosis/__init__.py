"""Finding out what went wrong: where a compilation failed, and where a compiled model differs from its source."""
