"""What all packages use: types, errors, experience, strategies."""
