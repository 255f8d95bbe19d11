"""What a single tensor refuses: dtypes, devices, leaves, inference tensors, NumPy, copies."""
