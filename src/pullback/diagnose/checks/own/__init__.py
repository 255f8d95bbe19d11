"""Errors that Pullback raises itself."""
