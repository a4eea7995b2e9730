"""Weights from the learner to the actors."""
