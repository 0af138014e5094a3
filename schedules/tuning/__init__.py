"""Tuning jobs: a model's functions measured under many schedules, within a budget, every result recorded."""
