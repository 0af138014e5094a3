"""Tuning: schedules of a model's functions, and configurations of kernels."""
