"""What algorithms for recorded data make of actions of three qualities, in a corridor of five steps to its middle."""

import functools

import numpy as np
import pytest
import tensorflow as tf
from tf_agents.specs import tensor_spec
from tf_agents.trajectories import time_step as ts
from tf_agents.trajectories import trajectory

from tests.testing.algorithms import ALGORITHMS
from tflearn.agents.td3 import TD3Loss
from tflearn.core.types import EnvironmentSpecs
from tflearn.networks.networks import NetworkOptions
from tflearn.optimization.conservative import Conservative
from tflearn.optimization.optimizers import OptimizerOptions

STEPS, EPISODES, BATCH, TRAIN_STEPS = 5, 400, 128, 400
OBSERVATION = tensor_spec.BoundedTensorSpec((1,), tf.float32, -1.0, 1.0, 'observation')
ACTIONS = {
    'discrete': tensor_spec.BoundedTensorSpec((), tf.int64, 0, 1, 'action'),
    'continuous': tensor_spec.BoundedTensorSpec((1,), tf.float32, -1.0, 1.0, 'action'),
}
# Random actions lead to the right more often than to the left.
SHARE_OF_RANDOM = {'random': 1.0, 'medium': 0.6, 'expert': 0.0}
SETTINGS = {
    'discrete_cql': {'conservative_weight': 0.1, 'target_update_period': 20},
    'rebrac': {'loss': TD3Loss(behavior_cloning_alpha=1.0, target_cloning_beta=0.1), 'target_update_tau': 0.05},
    'cal_ql': {'conservative': Conservative(1.0, num_actions=4, calibrated=True), 'target_update_tau': 0.05},
    'bc': {'normalize_observations': False},
}


def _move(place, action, kind):
    """Returns where an action leads to, and its reward: 1 in the middle, and 0 at both ends."""
    direction = 2.0 * action - 1.0 if kind == 'discrete' else action.reshape(-1)
    place = np.clip(place + 0.4 * direction, -1.0, 1.0)
    return place, 1.0 - np.abs(place)


@functools.cache
def _episodes(kind, quality):
    """Returns observations, actions and rewards [episodes, STEPS + 1]; the boundary row has no action."""
    random, rows = np.random.default_rng(3), []
    place = random.uniform(-1.0, 1.0, EPISODES)
    for _ in range(STEPS):
        if kind == 'discrete':
            best, other = (place < 0).astype(np.int64), (random.uniform(size=EPISODES) < 0.7).astype(np.int64)
        else:
            best = np.clip(-place / 0.4, -1.0, 1.0)[:, None]
            other = random.uniform(-1.0, 1.0, (2, EPISODES, 1)).max(axis=0)
        drawn = random.uniform(size=EPISODES) < SHARE_OF_RANDOM[quality]
        action = np.where(drawn.reshape(-1, *[1] * (best.ndim - 1)), other, best)
        following, reward = _move(place, action, kind)
        rows.append((place, action, reward))
        place = following
    rows.append((place, np.zeros_like(action), np.zeros(EPISODES)))
    return tuple(np.stack(column, axis=1) for column in zip(*rows, strict=True))


def _batch(random, kind, quality, length, spec):
    """Returns items [BATCH, length] that begin with any step, with copies of the boundary row at their ends."""
    observation, action, reward = _episodes(kind, quality)
    episode = random.integers(0, EPISODES, (BATCH, 1))
    row = random.integers(0, STEPS, (BATCH, 1)) + np.arange(length)
    step_type = np.select([row == 0, row < STEPS], [ts.StepType.FIRST, ts.StepType.MID], ts.StepType.LAST)
    following = np.select([row < STEPS - 1, row == STEPS - 1], [ts.StepType.MID, ts.StepType.LAST], ts.StepType.FIRST)
    row = np.minimum(row, STEPS)
    return trajectory.Trajectory(
        step_type.astype(np.int32),
        observation[episode, row][..., None].astype(np.float32),
        action[episode, row].astype(spec.dtype.as_numpy_dtype),
        (),
        following.astype(np.int32),
        reward[episode, row].astype(np.float32),
        np.where(row == STEPS - 1, 0.0, 1.0).astype(np.float32),
    )


@functools.cache
def _learned(name, kind, quality):
    """Returns the mean return of the greedy policy after training on recorded steps alone."""
    tf.keras.utils.set_random_seed(1)
    algorithm, spec = ALGORITHMS[name], ACTIONS[kind]
    network = NetworkOptions((32,), **({} if name == 'bc' else {'critic_fc_layer_params': (32, 32)}))
    network = NetworkOptions((32, 32)) if kind == 'discrete' else network
    more = {'network': network, 'optimizer': OptimizerOptions(3e-3), **SETTINGS.get(name, {})}
    agent = algorithm.make(EnvironmentSpecs(OBSERVATION, spec), **more)
    random, train = np.random.default_rng(4), tf.function(agent.train, autograph=False)
    for _ in range(TRAIN_STEPS):
        train(tf.nest.map_structure(tf.constant, _batch(random, kind, quality, algorithm.length, spec)))
    place, total = np.linspace(-1.0, 1.0, 41), 0.0
    act = tf.function(lambda step: agent.policy.action(step, ()).action, autograph=False)
    for _ in range(STEPS):
        action = act(ts.restart(tf.constant(place[:, None], tf.float32), len(place))).numpy()
        place, reward = _move(place, action, kind)
        total += reward.mean()
    return total


@pytest.mark.slow
@pytest.mark.parametrize(
    ('name', 'kind'), [('discrete_cql', 'discrete'), ('rebrac', 'continuous'), ('cal_ql', 'continuous')]
)
def test_more_is_learned_from_poor_data_than_cloning_has_of_them(name, kind):
    recorded = {quality: _episodes(kind, quality)[2].sum(axis=1).mean() for quality in SHARE_OF_RANDOM}
    found = {quality: _learned(name, kind, quality) for quality in SHARE_OF_RANDOM}
    cloned = _learned('bc', kind, 'random')
    spread = recorded['expert'] - recorded['random']
    assert found['random'] > max(cloned, recorded['random']) + 0.3 * spread
    assert found['medium'] > recorded['medium']
    assert found['expert'] > recorded['expert'] - 0.2 * spread
