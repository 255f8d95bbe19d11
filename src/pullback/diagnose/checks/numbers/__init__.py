"""Numbers that are no longer finite, or no longer there."""
