"""Silent faults of training loops: when gradients are made, cleared, scaled and used."""
