"""Training: compiled loops, reduction across replicas, triggers, summaries, checkpoints."""
