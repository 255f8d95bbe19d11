"""Errors in hooks: of tensors, of modules, and of saved tensors."""
