"""Measuring on a device: cases prepared and checked, times taken, results recorded."""
