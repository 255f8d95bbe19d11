"""Benchmarks: what a seeded backward costs, what an import costs, and dense Jacobians against PyTorch's own."""
