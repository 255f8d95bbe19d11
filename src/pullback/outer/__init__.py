"""Outer products: a parameter's gradient as a sum of coefficients times cotangents, found in the program."""
