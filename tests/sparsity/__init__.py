"""Tests of pullback.sparsity."""
