"""Algorithms learn bandits: episodes of one step, whose reward depends on the action alone."""

import pytest
import tensorflow as tf
from tf_agents.specs import tensor_spec
from tf_agents.trajectories import time_step as ts

from tests.agents import example_data
from tests.testing import experiences, lanes
from tests.testing.algorithms import ALGORITHMS
from tflearn.agents import awac, iql, sac
from tflearn.agents.v_mpo import VMPOLoss
from tflearn.core.types import EnvironmentSpecs, zeros
from tflearn.networks.networks import NetworkOptions
from tflearn.optimization import ensemble
from tflearn.optimization.optimizers import OptimizerOptions

ONE, FLOATS = example_data.DISCRETE, example_data.CONTINUOUS
MANY = EnvironmentSpecs(FLOATS.observation, tensor_spec.BoundedTensorSpec((3,), tf.int64, 0, 1, 'action'))
RATES = {'optimizer': OptimizerOptions(1e-2)}
PLAIN = {'normalize_observations': False, 'normalize_rewards': False}
ON_POLICY = {
    'ppo': PLAIN,
    'v_mpo': {'loss': VMPOLoss(epsilon_alpha=0.1, epsilon_mean=0.1)},
    'impala': {},
    'uncorrected': {'off_policy_correction': False},
    'appo': {},
}
FAST = {('ppo', 'floats'), ('v_mpo', 'one'), ('impala', 'many'), 'sac', 'iql'}
IN_BOTH_LANES = {('ppo', 'floats'), 'sac'}
REPLAYED = {
    'sac': {'loss': sac.SACLoss(gamma=0.9)},
    'tqc': {'num_critics': 3, 'truncated': ensemble.Truncated(5, 2)},
    'droq': {'num_critics': 3, 'critic_dropout': 0.0},
    'ddpg': {},
    'iql': {'loss': iql.IQLLoss(inverse_temperature=4.0)},
    'awac': {'loss': awac.AWACLoss(temperature=0.25)},
}


def _marked(key, *values):
    marks = [] if key in IN_BOTH_LANES else [lanes.classic] if key in FAST else [pytest.mark.slow]
    return pytest.param(*values, marks=marks)


@pytest.mark.parametrize(
    ('name', 'kind'),
    [_marked((name, kind), name, kind) for name in ON_POLICY for kind in ('one', 'floats', 'many')],
)
def test_the_policy_prefers_what_is_rewarded(name, kind, size=64):
    """The reward is the action's first number."""
    tf.keras.utils.set_random_seed(1)
    specs, algorithm = {'one': ONE, 'floats': FLOATS, 'many': MANY}[kind], ALGORITHMS.get(name, ALGORITHMS['impala'])
    network = NetworkOptions(fc_layer_params=(16,))
    agent = algorithm.make(specs, algorithm.module.EXPERIENCE, network=network, **RATES, **ON_POLICY[name])
    train, act = tf.function(agent.train, autograph=False), tf.function(agent.collect_policy.action, autograph=False)
    pair = lambda value: tf.stack([value, value], axis=1)  # noqa: E731
    data = example_data.sequences(agent, size, 2)
    data = data._replace(
        discount=tf.zeros((size, 2)),
        next_step_type=tf.fill((size, 2), tf.constant(ts.StepType.LAST)),
        observation=tf.zeros_like(data.observation),
    )
    for _ in range(100):
        step = act(zeros(specs.time_step, (size,)))
        reward = tf.cast(tf.reshape(step.action, (size, -1))[:, 0], tf.float32)
        info = tf.nest.map_structure(pair, step.info)
        train(data._replace(action=pair(step.action), policy_info=info, reward=pair(reward)))
    assert float(tf.reduce_mean(reward)) > (0.25 if kind == 'floats' else 0.85)


@pytest.mark.parametrize(
    ('name', 'specs'),
    [
        *(_marked(name, name, FLOATS) for name in REPLAYED),
        *(_marked((name, 'one'), name, ONE) for name in ('iql', 'awac')),
    ],
)
def test_it_learns_the_best_of_the_recorded_actions(name, specs):
    """The reward is the nearness of random actions to the best. Cloning would choose the mean."""
    algorithm = ALGORITHMS[name]
    experience = experiences.changed(algorithm.module.EXPERIENCE, sequence_length=2)
    network = NetworkOptions(fc_layer_params=(16, 8), critic_fc_layer_params=(8, 16))
    settings = {'network': network, 'target_update_tau': 0.1, **RATES, **REPLAYED[name]}
    agent = algorithm.make(specs, experience, **settings)
    data = example_data.sequences(agent, 128, 2)
    nearness = -4 * tf.abs(2 * data.action[..., 0] - 1.0) if specs is FLOATS else tf.cast(data.action, tf.float32)
    zero = {'discount': tf.zeros_like(data.discount), 'observation': tf.zeros_like(data.observation)}
    data, step = data._replace(reward=nearness, **zero), tf.function(agent.train, autograph=False)
    for _ in range(400):
        step(data)
    chosen = agent.policy.action(zeros(specs.time_step, (1,))).action.numpy()
    assert chosen[0] == 1 if specs is ONE else chosen[0, 0] == pytest.approx(0.5, abs=0.175)
    assert int(agent.train_step_counter) == 400
