"""A small agent and its data for every test that asks for them."""

from tests.testing.learner import make_agent, make_dataset_fn  # noqa: F401
