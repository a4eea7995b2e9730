"""Algorithms: one file each, as a TF-Agents agent."""
