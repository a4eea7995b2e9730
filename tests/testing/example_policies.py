"""TF-Agents policies of every kind that is exported."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tf_agents.agents.ppo import ppo_policy
from tf_agents.networks import actor_distribution_network, q_network, q_rnn_network, sequential, value_network
from tf_agents.policies import actor_policy, epsilon_greedy_policy, greedy_policy, q_policy, random_tf_policy
from tf_agents.specs import tensor_spec
from tf_agents.trajectories import time_step as ts
from tf_agents.utils import tensor_normalizer

OBSERVATION = tf.TensorSpec((4,), tf.float32, 'observation')
NESTED_OBSERVATION = {
    'position': tensor_spec.BoundedTensorSpec((2,), tf.float32, -1, 1, 'p'),
    'speeds': (tf.TensorSpec((2,), tf.float32), tf.TensorSpec((1,), tf.float32)),
}
DISCRETE = tensor_spec.BoundedTensorSpec((), tf.int64, 0, 3, 'action')
DISCRETE_PAIR = tensor_spec.BoundedTensorSpec((), tf.int64, 0, 1, 'action')
CONTINUOUS = tensor_spec.BoundedTensorSpec((2,), tf.float32, -1, 1, 'action')


def q_learning(dtype: tf.DType = tf.int64) -> Any:
    """A Q policy on a 100-50 network; its actions are of `dtype`."""
    action = tensor_spec.BoundedTensorSpec((), dtype, 0, 3, 'action')
    network = q_network.QNetwork(OBSERVATION, action, fc_layer_params=(100, 50))
    return q_policy.QPolicy(ts.time_step_spec(OBSERVATION), action, _built(network))


def greedy(dtype: tf.DType = tf.int64) -> Any:
    return greedy_policy.GreedyPolicy(q_learning(dtype))


def epsilon_greedy() -> Any:
    """Epsilon is a function of a variable that is not in the policy's `variables()`."""
    step = tf.Variable(1.0, name='epsilon_step')
    return epsilon_greedy_policy.EpsilonGreedyPolicy(q_learning(), epsilon=lambda: 0.5 * step)


def recurrent() -> Any:
    network = q_rnn_network.QRnnNetwork(
        OBSERVATION, DISCRETE, input_fc_layer_params=(8,), lstm_size=(8,), output_fc_layer_params=(8,)
    )
    return greedy_policy.GreedyPolicy(q_policy.QPolicy(ts.time_step_spec(OBSERVATION), DISCRETE, _built(network)))


def stochastic_actor() -> Any:
    """A stochastic policy of continuous actions."""
    time_step = ts.time_step_spec(OBSERVATION)
    return actor_policy.ActorPolicy(time_step, CONTINUOUS, actor_network=_actor_network())


def with_info() -> Any:
    """Its info has the parameters of its distribution, which PPO needs for training."""
    value = _built(value_network.ValueNetwork(OBSERVATION, fc_layer_params=(16,)))
    time_step = ts.time_step_spec(OBSERVATION)
    return ppo_policy.PPOPolicy(time_step, CONTINUOUS, _actor_network(), value, collect=True)


def _actor_network() -> Any:
    return _built(actor_distribution_network.ActorDistributionNetwork(OBSERVATION, CONTINUOUS, fc_layer_params=(16,)))


def greedy_actor() -> Any:
    return greedy_policy.GreedyPolicy(stochastic_actor())


def normalized() -> Any:
    """Normalizes observations by earlier ones: means of 1, 2, 3 and 4."""
    time_step = ts.time_step_spec(OBSERVATION)
    normalizer = tensor_normalizer.StreamingTensorNormalizer(OBSERVATION)
    normalizer.update(tf.random.stateless_normal([1000, 4], [0, 0]) * 3.0 + [1.0, 2.0, 3.0, 4.0])
    value = _built(value_network.ValueNetwork(OBSERVATION, fc_layer_params=(16,)))
    policy = ppo_policy.PPOPolicy(
        time_step, CONTINUOUS, _actor_network(), value, observation_normalizer=normalizer, collect=False
    )
    return greedy_policy.GreedyPolicy(policy)


def nested() -> Any:
    """A dict of observations, one of them a tuple."""
    preprocessing = {
        'position': tf.keras.layers.Dense(4),
        'speeds': (tf.keras.layers.Dense(4), tf.keras.layers.Dense(4)),
    }
    network = q_network.QNetwork(
        NESTED_OBSERVATION,
        DISCRETE,
        preprocessing_layers=preprocessing,
        preprocessing_combiner=tf.keras.layers.Concatenate(),
        fc_layer_params=(8,),
    )
    time_step = ts.time_step_spec(NESTED_OBSERVATION)
    return greedy_policy.GreedyPolicy(q_policy.QPolicy(time_step, DISCRETE, _built(network)))


def of_bytes() -> Any:
    """Observes three bytes."""
    observation = tensor_spec.BoundedTensorSpec((3,), tf.uint8, [0], [255], 'observation')
    network = sequential.Sequential(
        [tf.keras.layers.Lambda(lambda values: tf.cast(values, tf.float32)), tf.keras.layers.Dense(4)],
        input_spec=observation,
    )
    return greedy_policy.GreedyPolicy(q_policy.QPolicy(ts.time_step_spec(observation), DISCRETE, _built(network)))


def random() -> Any:
    """Has no variables."""
    return random_tf_policy.RandomTFPolicy(ts.time_step_spec(OBSERVATION), DISCRETE)


def _built(network: Any) -> Any:
    network.create_variables()
    return network


class Linear:
    """The greedy policy of a linear Q function of two actions, with given weights.

    Attributes:
      policy: acts 1 where weights * observation + bias > 0, else 0.
    """

    def __init__(self, observation_spec: Any, action_spec: Any):
        layers = [tf.keras.layers.Dense(2)]
        if isinstance(observation_spec, dict):
            layers.insert(0, tf.keras.layers.Lambda(lambda parts: tf.nest.flatten(parts)[0]))
        network = sequential.Sequential(layers, input_spec=observation_spec)
        self._kernel, self._bias = _built(network).variables
        self.policy = greedy_policy.GreedyPolicy(
            q_policy.QPolicy(ts.time_step_spec(observation_spec), action_spec, network)
        )

    def set(self, weights: Sequence[float], bias: float = 0.0) -> None:
        self._kernel.assign(np.outer(weights, (0, 1)))
        self._bias.assign((0, bias))


def time_step(policy: Any, batch_size: int, seed: int = 0) -> ts.TimeStep:
    """Draws a numpy time step [B] of MIDs."""
    rng = np.random.default_rng(seed)
    observation = tf.nest.map_structure(
        lambda spec: rng.normal(size=(batch_size, *spec.shape)).astype(spec.dtype.as_numpy_dtype),
        policy.time_step_spec.observation,
    )
    ones = np.ones(batch_size, np.float32)
    return ts.TimeStep(np.ones(batch_size, np.int32), 0 * ones, ones, observation)


def reweigh(policy: Any, seed: int = 0) -> None:
    """Changes the policy's weights, as training would."""
    rng = np.random.default_rng(seed)
    for variable in policy.variables():
        if variable.trainable:  # not a normalizer's statistics
            variable.assign(rng.normal(size=variable.shape, scale=0.3))
