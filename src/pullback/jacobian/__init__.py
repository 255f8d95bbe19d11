"""The operator object: what one can do with a Jacobian, whatever way its numbers come."""
