"""Shipped tuning records, one folder a target."""
