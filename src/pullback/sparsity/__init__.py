"""Where a Jacobian can be non-zero: from a recorded program to a pattern, by one rule for each family of operations."""
