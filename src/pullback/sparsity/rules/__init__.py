"""One file for each family of operations; the registry finds them."""
