"""Running compiled models: all that a deployed model needs, and nothing of the compiler."""
