"""Environments as `specs.BatchedEnvironment`: some copies of a task, stepped together."""
