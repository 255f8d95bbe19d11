"""Where a backward pass in low precision overflows, underflows or rounds away, and which loss scale loses least."""
