"""Errors of forward mode."""
