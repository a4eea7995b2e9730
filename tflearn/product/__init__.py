"""Policies in a product: which version answers, and the gate that a candidate has to pass."""
