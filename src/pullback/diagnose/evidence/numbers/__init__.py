"""Numbers that are not finite, zero or lost, and the operation that made them so."""
