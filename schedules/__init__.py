"""Schedules for whatever substitution leaves: the tuning database, rules, and a fallback."""
