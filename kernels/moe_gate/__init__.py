"""Mixture-of-experts gating."""
