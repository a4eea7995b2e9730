"""A small agent and its data, for the tests that use these fixtures."""

from tests.testing.learner import make_agent, make_dataset_fn  # noqa: F401
