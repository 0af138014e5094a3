"""Experts that are computed for all tokens, or with weights fetched for each, become rows that are sorted by expert."""
