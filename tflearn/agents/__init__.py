"""Algorithms: one file each, as a TF-Agents agent."""

from tflearn.core import preflight

# Programs import this package first. It loads TensorFlow, but looks for no GPUs: a process may fork first.
preflight.import_quietly('tensorflow', 'gym', finds_gpus=False)
