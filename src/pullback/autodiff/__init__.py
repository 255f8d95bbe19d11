"""The only floor that asks torch for derivatives: one point of a function, and the passes through it."""
