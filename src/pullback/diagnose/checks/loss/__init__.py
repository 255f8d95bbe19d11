"""Losses: what is minimised is not what was meant."""
