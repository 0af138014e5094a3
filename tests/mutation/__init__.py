"""Mutation testing: faults that are planted in rules, kernels, passes and schedules, and the tests that find them."""
