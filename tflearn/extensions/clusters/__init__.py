"""Runs by a scheduler: Slurm, Kubernetes, Ray, and queued resources of Google Cloud."""
