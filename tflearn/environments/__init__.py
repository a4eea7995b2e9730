"""Environments as `types.BatchedEnvironment`: some copies of a task, stepped together;
external simulators.
"""
