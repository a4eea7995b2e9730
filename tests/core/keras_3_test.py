"""What is of Keras 3, as the package keras is in the current lane, is refused in one line where a user gives it."""

import keras
import pytest
import tensorflow as tf
from tf_agents.specs import tensor_spec

import tflearn
from tests.testing import foreign_agents, lanes
from tflearn.core.experience import Experience
from tflearn.core.train_step import create_train_step
from tflearn.core.types import EnvironmentSpecs, zeros
from tflearn.networks import encoder
from tflearn.optimization import optimizers

pytestmark = pytest.mark.skipif(not lanes.IS_CURRENT, reason='the package keras is Keras 2')
REFUSED = '^got {}, an? {} of the package keras, which is Keras 3; need Keras 2; take it from tf.keras$'


def test_refuses_a_layer():
    spec = {'arm': tf.TensorSpec((3,), tf.float32, 'arm')}
    with pytest.raises(TypeError, match=REFUSED.format("a layer for the observation 'arm'", 'Dense')):
        encoder.check_layers(spec, {'arm': keras.layers.Dense(4)})
    encoder.check_layers(spec, {'arm': tf.keras.layers.Dense(4)})


def test_refuses_an_optimizer_of_the_settings():
    with pytest.raises(TypeError, match=REFUSED.format('OptimizerOptions.kind', 'SGD')):
        optimizers.OptimizerOptions(kind=keras.optimizers.SGD)


def test_refuses_an_agent_with_an_optimizer(tmp_path, monkeypatch):
    monkeypatch.setattr(foreign_agents, '_adam', lambda: keras.optimizers.Adam(1e-3))
    action = tensor_spec.BoundedTensorSpec((), tf.int64, 0, 1, 'action')
    specs = EnvironmentSpecs(tf.TensorSpec((2,), tf.float32, 'observation'), action)
    agent = foreign_agents.behavioral_cloning(specs, create_train_step(), Experience())
    data = tf.data.Dataset.from_tensors(zeros(agent.collect_data_spec, (4, 1))).repeat()
    with pytest.raises(TypeError, match=REFUSED.format('an agent with optimizer', 'Adam')):
        tflearn.Learner(agent, lambda _: data, tflearn.RunDir(tmp_path))
