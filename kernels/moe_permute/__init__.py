"""Ordering token copies by their expert."""
