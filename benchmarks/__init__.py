"""Benchmarks: what a seeded backward and an import cost, and dense and sparse Jacobians against the peers."""
