"""Several losses on shared parameters: the rows of their Jacobian, weighed and combined into one gradient."""
