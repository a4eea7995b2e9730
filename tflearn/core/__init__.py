"""What every package speaks of: types, errors, experience, strategies. It imports no TensorFlow itself."""
