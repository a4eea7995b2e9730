"""What only reads runs: checks of a run's metrics for signs of bad learning."""
