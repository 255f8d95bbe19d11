"""The proof against PyTorch's own databases: every operator, every module, and the peers."""
