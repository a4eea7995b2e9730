"""Training: compiled loops, reduction across replicas, triggers, checkpoints, summaries."""
