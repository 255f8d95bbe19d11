"""Contraction rules, one file for each family of operations."""
