"""Schedules for the TensorIR functions that no prebuilt kernel replaces: rules per target, and the tuning database."""
