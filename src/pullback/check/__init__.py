"""Gradients verified: reverse against forward mode, both against differences, and what is wrong said by its cause."""
