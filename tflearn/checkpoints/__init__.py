"""Checkpoints of a learner: atomic, written in the background, restored strictly."""
