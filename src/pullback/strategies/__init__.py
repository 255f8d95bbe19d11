"""What to send: each strategy bids for a Jacobian, makes its seeds, and recovers J from the answers.

One file is one strategy; the registry finds it.
"""
