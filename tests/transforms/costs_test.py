"""Costs with limits: the multipliers' arithmetic, and a run that keeps a cost low."""

import functools
import types

import numpy as np
import pytest
import tensorflow as tf

import tflearn
from tests.testing import lanes, two_rewards, written_summaries
from tflearn.agents import dqn
from tflearn.core import agent_data
from tflearn.core.experience import BatchItems, Experience, Uniform
from tflearn.core.types import EnvironmentSpecs
from tflearn.environments import info_costs, vector_env
from tflearn.jobs.evaluate_settings import EvaluateOptions
from tflearn.networks.networks import NetworkOptions
from tflearn.transforms import costs, transformed


def _specs(num_rewards):
    observation, action = tf.TensorSpec((1,)), tf.TensorSpec((), tf.int64)
    return EnvironmentSpecs(observation, action, tf.TensorSpec((num_rewards,), tf.float32))


def _update(limited, costs_of_steps, versions=None):
    """Updates the multipliers with a sequence for each row of costs; the other rewards are 5 and 7."""
    cost = np.float32(costs_of_steps)
    reward = np.stack([np.full_like(cost, 5), cost, np.full_like(cost, 7)], axis=-1)
    with agent_data.demonstrated_by({} if versions is None else {'policy_version': tf.constant(versions)}):
        limited.update(types.SimpleNamespace(reward=tf.constant(reward)), tf.ones(cost.shape))


def test_a_multiplier_follows_how_far_the_mean_cost_is_from_its_limit():
    limited = costs.Limited((None, 0.5, None), rate=0.25, gain=2.0, window_steps=1.0)
    assert limited.transform_specs(_specs(3)).reward.shape == ()
    np.testing.assert_allclose(limited.transform_reward(tf.constant([5.0, 2.0, 7.0])), (12.0 - 2.0) / 2.0)
    large = np.full((10, 10), 0.6)  # 20% above
    _update(limited, large)
    np.testing.assert_allclose(limited.multipliers, [0.0, np.exp(0.25 * 0.2 + 2.0 * 0.2), 0.0], rtol=1e-4)
    large[0, 0] = np.nan  # does not count
    _update(limited, large)
    np.testing.assert_allclose(limited.multipliers, [0.0, np.exp(0.5 * 0.2 + 2.0 * 0.2), 0.0], rtol=1e-4)
    _update(limited, np.full((10, 10), 50.0))
    np.testing.assert_allclose(limited.multipliers[1], np.exp(0.1 + 0.25 + 2.0), rtol=1e-4)
    _update(limited, np.zeros((10, 10)))
    np.testing.assert_allclose(limited.multipliers[1], np.exp(0.1 - 2.0), rtol=1e-4)


def test_steps_of_old_weights_do_not_count():
    limited = costs.Limited((None, 0.5, None), gain=2.0, rate=1e-6, window_steps=10.0)
    limited.draws_per_step = 2.0  # so each batch of two stands for a new step
    limited.transform_specs(_specs(3))
    for version in range(1, 201):
        _update(limited, [[50.0], [0.6]], [[0], [version]])
    np.testing.assert_allclose(limited.multipliers[1], np.exp(2.0 * 0.2), rtol=0.02)
    _update(limited, [[50.0], [0.6]], [[1], [100]])  # a batch without newer ones
    np.testing.assert_allclose(limited.multipliers[1], np.exp(2.0 * 0.2), rtol=0.02)


def test_a_multiplier_moves_with_environment_steps_however_often_they_are_drawn():
    moved = []
    for draws in (1, 50):
        limited = costs.Limited((None, 0.5, None), rate=0.25, gain=0.0, window_steps=100.0)
        limited.draws_per_step = draws
        limited.transform_specs(_specs(3))
        for _ in range(draws):
            _update(limited, np.full((10, 10), 50.0))
        moved.append(np.log(limited.multipliers[1]))
    np.testing.assert_allclose(moved[0], 0.25 * (1 - np.exp(-1.0)), rtol=1e-3)
    np.testing.assert_allclose(moved[1], 0.25, rtol=0.02)


@pytest.mark.parametrize('limits', [(None, 0.5), (None, None, None), (1.0, 0.5, 0.1), (None, 0.5, 0.0), ()])
def test_rejects_limits_that_do_not_fit(limits):
    with pytest.raises(ValueError, match=r'got costs.Limited with limits=.*shape=\(3,\).*a limit above 0'):
        costs.Limited(limits).transform_specs(_specs(3))


class Paid(two_rewards.TwoRewards):
    """Four steps: the action is the reward, and what it costs."""

    def step(self, action):
        observation, _, *ended, _ = super().step(action)
        return observation, float(action), *ended, {'cost': 2.0 * float(action)}


@lanes.classic
def test_a_run_finds_the_policy_whose_cost_is_within_the_limit(tmp_path):
    make_agent = functools.partial(dqn.make_agent, network=NetworkOptions(fc_layer_params=(8,)), epsilon=0.5, gamma=0.5)
    run = tflearn.train(
        root_dir=tmp_path,
        make_environment=functools.partial(vector_env.in_process, functools.partial(info_costs.InfoCosts, Paid)),
        make_agent=functools.partial(
            transformed.make_agent, make_agent=make_agent, transforms=[costs.Limited((None, 0.01))]
        ),
        experience=Experience(replay=Uniform(max_size=500, min_size=20, samples_per_insert=32.0), batch=BatchItems(8)),
        num_train_steps=300,
        export_interval_steps=300,
        learner_options=tflearn.LearnerOptions(summaries=tflearn.SummaryOptions(100)),
        num_episodes=1,
        seed=1,
        evaluate_options=EvaluateOptions('each', limits={'return_1': 0.01}),
    )
    np.testing.assert_array_equal(run.policy(np.float32([[0.0], [1.0], [2.0], [3.0]])), 0)
    assert run.evaluations[-1]['metrics']['return_1'] == 0.0
    scalars = written_summaries.scalars(run.run_dir.summaries('train'))
    # The integral term has moved for about 75 environment steps, however often these were drawn.
    assert np.exp(1.0) < scalars['costs/1/multiplier'][300] < np.exp(1.0 + 0.5 * 90 / 5000)
    assert 0.2 < scalars['costs/1/mean'][300] < 1.5  # of the policy that explores


def test_an_info_without_the_cost_is_an_error():
    environment = info_costs.InfoCosts(Paid, ('cost', 'energy'))
    environment.reset()
    with pytest.raises(ValueError, match="got the info of a step with 'cost'; need 'energy'"):
        environment.step(1)
