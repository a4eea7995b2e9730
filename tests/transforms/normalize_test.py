import functools

import numpy as np
import pytest
import tensorflow as tf
from tf_agents.specs import tensor_spec
from tf_agents.trajectories import time_step as ts
from tf_agents.trajectories import trajectory

from tests import fakes
from tflearn.agents import dqn
from tflearn.core.experience import Experience, Slicing
from tflearn.core.train_step import create_train_step
from tflearn.core.types import EnvironmentSpecs
from tflearn.networks.networks import NetworkOptions
from tflearn.transforms import normalize, rewards, stack, statistics, transformed
from tflearn.transforms.transformed import Pipeline

SPECS = [tf.TensorSpec((2,), tf.float32), tf.TensorSpec((), tf.float32)]


def batches(num_batches, size=6):
    """Returns batches (values [B, T, ...] of both specs, counts [B, T]); the first vector is far from 0."""
    random = np.random.default_rng(2)
    for _ in range(num_batches):
        values = [
            np.float32(random.normal((1e3, -3.0), (1.0, 5.0), (size, 3, 2))),
            np.float32(random.uniform(size=(size, 3))),
        ]
        counts = np.float32(random.random((size, 3)) < 0.7)
        counts[0, 0] = 1.0
        values[0][counts == 0] = np.inf
        values[1][0, 0] = np.nan  # it does not count either
        yield values, counts


def valid(batch):
    values, counts = batch
    counts = counts * np.isfinite(values[1])
    return [value[counts > 0].astype(np.float64) for value in values]


def of_all(batch_list):
    """Returns means and variances of the values of several batches."""
    values = [np.concatenate(parts) for parts in zip(*map(valid, batch_list), strict=True)]
    return [(value.mean(axis=0), value.var(axis=0)) for value in values]


def ema(batch_list):
    """By its definition: weighted first and second moments."""
    moments = None
    for batch in batch_list:
        new = [(value.mean(axis=0), (value**2).mean(axis=0)) for value in valid(batch)]
        moments = moments or new
        moments = [(0.75 * m + 0.25 * n, 0.75 * s + 0.25 * t) for (m, s), (n, t) in zip(moments, new, strict=True)]
    return [(mean, square - mean**2) for mean, square in moments]


CASES = {
    'running': (statistics.Running(), of_all),
    'window': (statistics.Window(3), lambda batch_list: of_all(batch_list[-3:])),
    'ema': (statistics.Ema(0.25), ema),
}


@pytest.mark.parametrize('replicas', [1, 2])
@pytest.mark.parametrize('case', CASES)
def test_mean_and_variance_are_those_of_the_definition(case, replicas):
    """On two replicas, each with half of a batch, too; batches without a valid value change nothing."""
    how, oracle = CASES[case]
    strategy = tf.distribute.MirroredStrategy([f'CPU:{i}' for i in range(replicas)])
    with strategy.scope():
        moments = how.make(SPECS, 'moments')
    np.testing.assert_array_equal(moments.variances[0], 1.0)
    nothing = ([np.full((6, 3, 2), np.inf, np.float32), np.zeros((6, 3), np.float32)], np.ones((6, 3), np.float32))
    given = list(batches(5))
    size = 6 // replicas

    step = tf.function(
        lambda *leaves: strategy.run(lambda *own: moments.update(own[:2], own[2]), leaves), autograph=False
    )

    def part(leaf):
        return strategy.experimental_distribute_values_from_function(
            lambda context: tf.constant(leaf[context.replica_id_in_sync_group * size :][:size])
        )

    for i, (values, counts) in enumerate([*given[:3], nothing, *given[3:]]):
        step(*(part(leaf) for leaf in (*values, counts)))
        if i < 3:
            continue
        expected = oracle(given[:i])
        for mean, variance, (wanted_mean, wanted_variance) in zip(
            moments.means, moments.variances, expected, strict=True
        ):
            np.testing.assert_allclose(mean, wanted_mean, rtol=1e-5)
            np.testing.assert_allclose(variance, wanted_variance, rtol=2e-3)


def experience(size=4, length=4):
    random = np.random.default_rng(5)
    return trajectory.Trajectory(
        step_type=tf.ones((size, length), tf.int32),
        observation=tf.constant(np.float32(random.normal(7.0, 2.0, (size, length, 2)))),
        action=tf.zeros((size, length), tf.int64),
        policy_info=(),
        next_step_type=tf.constant(np.int32([[1, 1, 0, 1]] * size)),
        reward=tf.constant(np.float32(random.normal(-3.0, 1.0, (size, length)))),
        discount=tf.ones((size, length)),
    )


def test_agent_updates_and_applies_the_statistics():
    """With the steps that it trains on; policies use the same variables, which are published and checkpointed."""
    specs = EnvironmentSpecs(tf.TensorSpec((2,), tf.float32, 'observation'), fakes.ACTION_SPEC)
    settings = Experience(Slicing(sequence_length=3, history_steps=1))
    agent = transformed.make_agent(
        specs,
        create_train_step(),
        settings,
        make_agent=functools.partial(dqn.make_agent, network=NetworkOptions(fc_layer_params=(4,))),
        transforms=[normalize.Observations(), stack.FrameStack(2), normalize.Rewards(clipping=1.5)],
    )
    agent.initialize()
    data = experience()
    assert agent._pipeline().transform_experience(data)[0].observation.shape == (4, 3, 4)
    for _ in range(2):
        agent.train(data)
    # The first row is the history, the third lies between two episodes, the last is only the next observation.
    trained = data.observation[:, 1].numpy().astype(np.float64)
    rewards = data.reward[:, 1].numpy().astype(np.float64)
    observations, of_rewards = agent._statistics
    np.testing.assert_allclose(observations.means[0], trained.mean(axis=0), rtol=1e-5)
    np.testing.assert_allclose(observations.variances[0], trained.var(axis=0), rtol=1e-4)
    np.testing.assert_allclose(of_rewards.means[0], rewards.mean(), rtol=1e-5)
    changed, _ = agent._pipeline().transform_experience(data)
    normal = (data.observation.numpy() - trained.mean(axis=0)) / trained.std(axis=0)
    np.testing.assert_allclose(changed.observation[..., 2:], np.clip(normal, -5, 5)[:, 1:], atol=1e-3)
    root_mean_square = np.sqrt((rewards**2).mean())
    expected = np.clip(data.reward.numpy()[:, 1:] / root_mean_square, -1.5, 1.5)
    expected[:, 1] = 0.0
    np.testing.assert_allclose(changed.reward, expected, rtol=1e-4)
    published = [variable.ref() for variable in agent.collect_policy.variables()]
    assert observations.means[0].ref() in published and observations.means[0].ref() in [
        variable.ref() for variable in agent.policy.variables()
    ]
    assert np.isfinite(agent.loss(data).loss)


def test_integers_are_not_normalized():
    specs = EnvironmentSpecs({'kind': tf.TensorSpec((), tf.int64), 'x': tf.TensorSpec((2,), tf.float32)}, ())
    pipeline = Pipeline([normalize.Observations()], specs, Slicing())
    assert pipeline.specs.observation['kind'] == specs.observation['kind']
    assert [variable.shape.as_list() for variable in pipeline.statistics[0].means] == [[2]]


def test_refuses_what_does_not_fit():
    specs = EnvironmentSpecs({'kind': tf.TensorSpec((), tf.int64)}, fakes.ACTION_SPEC)
    with pytest.raises(ValueError, match='for Observations; need floats in it'):
        Pipeline([normalize.Observations()], specs, Slicing())
    for make in (lambda: normalize.Rewards(0.0), lambda: statistics.Ema(0.0), lambda: statistics.Window(0)):
        with pytest.raises(ValueError, match='; need '):
            make()


def test_refuses_to_change_the_mask():
    observation = {'a': tf.TensorSpec((2,), tf.float32, 'a'), 'mask': tf.TensorSpec((2,), tf.float32, 'mask')}
    specs = EnvironmentSpecs(observation, fakes.ACTION_SPEC)
    make = functools.partial(dqn.make_agent, network=NetworkOptions(fc_layer_params=(4,)), action_mask='mask')
    made = functools.partial(transformed.make_agent, specs, create_train_step(), Experience(), make_agent=make)
    with pytest.raises(ValueError, match="got Observations of 'mask', the mask .* set Observations.paths"):
        made(transforms=[normalize.Observations()])
    made(transforms=[normalize.Observations(paths=['a'])])


REWARDED = EnvironmentSpecs(
    tf.TensorSpec((2,), tf.float32, 'observation'), tensor_spec.BoundedTensorSpec((), tf.int64, 0, 1, 'action')
)
# The fourth row lies between two episodes.
STEP_TYPE = np.int32([[0, 1, 1, 2, 0, 1]])
NEXT_STEP_TYPE = np.int32([[1, 1, 2, 0, 1, 1]])
REWARD = np.float32([[3.0, -0.5, -7.0, 0.0, 0.25, 1.0]])


def rewarded():
    observation = np.arange(12, dtype=np.float32).reshape(1, 6, 2)
    return trajectory.Trajectory(
        *(tf.constant(leaf) for leaf in (STEP_TYPE, observation, np.int64([[0, 1, 0, 1, 1, 0]]))),
        (),
        *(tf.constant(leaf) for leaf in (NEXT_STEP_TYPE, REWARD, np.ones((1, 6), np.float32))),
    )


def changed(transform):
    specs = transform.transform_specs(REWARDED)
    assert specs.reward.shape == () and specs.observation == REWARDED.observation
    return transform.transform_experience(rewarded()).reward.numpy()[0]


@pytest.mark.parametrize(
    'transform, expected',
    [
        (rewards.Clip(), [1.0, -0.5, -1.0, 0.0, 0.25, 1.0]),
        (rewards.Clip(0.5, 2.0), [2.0, 0.5, 0.5, 0.0, 0.5, 1.0]),
        (rewards.Scale(2.0), [6.0, -1.0, -14.0, 0.0, 0.5, 2.0]),
        (rewards.Shift(-1.0), [2.0, -1.5, -8.0, 0.0, -0.75, 0.0]),
    ],
)
def test_rewards_change_but_between_episodes(transform, expected):
    np.testing.assert_allclose(changed(transform), expected)
    steps = ts.TimeStep(tf.constant([0, 1, 2]), tf.constant([0.0, 3.0, -7.0]), tf.ones(3), tf.zeros((3, 2)))
    acting, state = transform.transform_time_step(steps, ())
    np.testing.assert_allclose(acting.reward, [0.0, *np.take(expected, [0, 2])])
    assert state == ()


def test_function_gets_observation_action_and_next_observation():
    function = lambda now, action, after: 100.0 * tf.cast(action, tf.float32) + after[..., 0] - now[..., 1]  # noqa: E731
    # Observations grow by 2 per row; a reward for the last row would need the next one.
    np.testing.assert_allclose(changed(rewards.Function(function)), [1.0, 101.0, 1.0, 0.0, 101.0, 0.0])


@pytest.mark.parametrize(
    'make, message',
    [
        (lambda: rewards.Clip(1.0, -1.0), 'need low < high'),
        (lambda: rewards.Scale(0.0), 'another number than 0'),
        (lambda: rewards.Function(lambda now, action, after: after), r'got rewards of shape \(2, 3, 2\), float32'),
        (lambda: rewards.Function(lambda now, action, after: action), r'got rewards of shape \(2, 3\), int64'),
    ],
)
def test_refuses_what_does_not_fit_of_rewards(make, message):
    with pytest.raises(ValueError, match=message):
        make().transform_specs(REWARDED)


def test_weighted_sum_of_several_rewards():
    """Its weights are variables that policies and checkpoints have; they can be assigned."""
    specs = EnvironmentSpecs(REWARDED.observation, REWARDED.action, tf.TensorSpec((2,), tf.float32, 'reward'))
    transform = rewards.Weighted([0.5, -1.0])
    assert transform.transform_specs(specs).reward.shape == ()
    several = tf.stack([tf.constant(REWARD), tf.ones_like(REWARD)], axis=-1)
    data = rewarded()._replace(reward=several)
    is_step = NEXT_STEP_TYPE[0] != 0
    np.testing.assert_allclose(transform.transform_experience(data).reward[0], (0.5 * REWARD[0] - 1.0) * is_step)
    transform.weights.assign([0.0, 2.0])
    np.testing.assert_allclose(transform.transform_experience(data).reward[0], 2.0 * is_step)
    assert transform.statistics.variables == (transform.weights,)
    with pytest.raises(ValueError, match='got rewards.Weighted of 2 weights for the reward .* a weight for each'):
        rewards.Weighted([0.5, -1.0]).transform_specs(REWARDED)
