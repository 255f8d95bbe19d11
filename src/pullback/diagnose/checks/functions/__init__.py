"""Errors in custom autograd Functions."""
