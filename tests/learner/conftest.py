"""A small agent and its data, and a metadata server, for the tests that use these fixtures."""

from tests.testing.learner import make_agent, make_dataset_fn  # noqa: F401
from tests.testing.metadata import metadata  # noqa: F401
