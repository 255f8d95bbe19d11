"""Saved tensors that were written to: which, where, and by what."""
