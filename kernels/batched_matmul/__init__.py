"""Batched matrix product."""
