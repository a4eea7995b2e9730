"""A small agent and its data, and a metadata server, for the tests that use these fixtures; graphs as traced."""

import pytest
import tensorflow as tf

from tests.testing import lanes
from tests.testing.learner import make_agent, make_dataset_fn  # noqa: F401
from tests.testing.metadata import metadata  # noqa: F401


@pytest.fixture(autouse=True, scope='module')
def _unoptimized_graphs():
    """TensorFlow 2.15's optimizer of graphs would take a fifth of the time. Whole runs and programs have it."""
    tf.config.optimizer.set_experimental_options({'disable_meta_optimizer': not lanes.IS_CURRENT})
    yield
    tf.config.optimizer.set_experimental_options({'disable_meta_optimizer': False})
