"""Steps of a training loop, as an audit sees them."""
