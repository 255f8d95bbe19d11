"""Errors of torch.func, torch.vmap and torch.autograd.functional."""
