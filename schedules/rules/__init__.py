"""Schedules by rule: one kind of function a file."""
