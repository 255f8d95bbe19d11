"""What gradcheck and anomaly mode say."""
