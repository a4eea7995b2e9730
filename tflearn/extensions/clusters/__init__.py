"""Runs by a scheduler: Slurm, Kubernetes, and queued resources of Google Cloud."""
