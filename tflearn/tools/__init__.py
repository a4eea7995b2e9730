"""Programs that only read runs: what a run's metrics say about its learning."""
