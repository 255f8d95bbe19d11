"""Errors where autograd meets checkpointing, distributed training, mixed precision and torch.compile."""
