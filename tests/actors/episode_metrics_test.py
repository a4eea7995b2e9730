import subprocess
import sys

import numpy as np
import pytest
from tf_agents.trajectories import trajectory

from tests import fakes
from tflearn.actors.actor import Actor
from tflearn.actors.episode_metrics import EpisodeMetrics


def _row(step_types, next_step_types, rewards, discounts=None):
    return trajectory.Trajectory(
        step_type=np.array(step_types, np.int32),
        observation=(),
        action=(),
        policy_info=(),
        next_step_type=np.array(next_step_types, np.int32),
        reward=np.array(rewards, np.float32),
        discount=np.array(discounts or [1.0] * len(rewards), np.float32),
    )


def _returns(metrics):
    return [(episode['return'], episode['length']) for episode in metrics.drain()]


def test_known_episodes():
    metrics = EpisodeMetrics(2, gamma=0.5)
    assert metrics.mean_return is None
    assert metrics.means() == {}
    metrics(_row([0, 0], [1, 1], [1, 10]))
    metrics(_row([1, 1], [2, 1], [2, 10], [0, 1]))  # terminated
    assert (metrics.episodes, metrics.env_steps) == (1, 4)
    first = {'return': 3, 'length': 2, 'start_return': 1 + 0.5 * 2, 'discounted_return': (2 + 2) / 2, 'reward': 1.5}
    assert metrics.means() == {f'mean_{name}': value for name, value in first.items()}
    metrics(_row([2, 1], [0, 2], [0, 10]))  # a boundary; truncated
    assert (metrics.episodes, metrics.env_steps) == (2, 5)
    second = {
        'return': 30,
        'length': 3,
        'start_return': 10 + 5 + 2.5,
        'discounted_return': (17.5 + 15 + 10) / 3,
        'reward': 10,
    }
    assert metrics.mean_return == 16.5
    assert metrics.means() == pytest.approx({f'mean_{name}': (first[name] + second[name]) / 2 for name in first})
    metrics(_row([0, 2], [2, 0], [7, 0], [0, 1]))  # an episode of one step
    assert _returns(metrics) == [(3, 2), (30, 3), (7, 1)]
    assert metrics.drain() == []
    assert metrics.episodes == 3
    assert metrics.dropped_episodes == 0


def test_interrupted_episode_is_dropped():
    metrics = EpisodeMetrics(2)
    metrics(_row([0, 0], [1, 1], [1, 1]))
    metrics(_row([1, 1], [0, 1], [0, 1]))  # rebuilt: FIRST after a step that is not LAST
    assert (metrics.env_steps, metrics.dropped_episodes) == (3, 1)
    metrics(_row([0, 1], [2, 2], [5, 1]))
    metrics(_row([2, 2], [0, 0], [0, 0]))
    metrics(_row([0, 0], [0, 0], [0, 0]))  # a first step can fail too
    assert _returns(metrics) == [(5, 1), (3, 3)]
    assert (metrics.episodes, metrics.dropped_episodes, metrics.env_steps) == (2, 3, 5)


def test_several_rewards_are_summed():
    metrics = EpisodeMetrics(2)
    metrics(_row([0, 0], [2, 2], [[1, 2], [3, 4]], [1, 1]))
    assert _returns(metrics) == [(3, 1), (7, 1)]


def test_info_metrics_of_environments():
    info = {}
    metrics = EpisodeMetrics(2, read_info=lambda: info)
    metrics(_row([0, 0], [1, 1], [0, 0]))  # nothing yet
    info = {'speed': np.array([1, 5]), 'success': np.array([np.nan, np.nan], np.float32), 'picture': np.zeros((2, 3))}
    metrics(_row([1, 1], [1, 1], [0, 0]))
    info = {**info, 'speed': np.array([3, 9]), 'success': np.array([1, np.nan], np.float32)}
    info |= {'executed_action': np.zeros(2), 'fell': np.array([True, False])}
    metrics(_row([1, 1], [2, 0], [0, 0]))  # one ends, one is interrupted
    (episode,) = metrics.drain()
    infos = {name: value for name, value in episode.items() if name.startswith('info')}
    assert infos == {
        'info/speed': 2,
        'info_end/speed': 3,
        'info/success': 1,
        'info_end/success': 1,
        'info/fell': 1,
        'info_end/fell': 1,
    }
    info = {name: np.zeros_like(value) for name, value in info.items()}
    metrics(_row([2, 0], [0, 2], [0, 0]))  # nothing is left of earlier values
    assert metrics.drain()[0]['info_end/speed'] == 0
    assert metrics.means()['mean_info_end/speed'] == 1.5


def test_episode_cut_off_by_a_reset_is_forgotten():
    metrics = EpisodeMetrics(1)
    metrics(_row([0], [1], [5]))
    metrics(_row([0], [2], [1]))
    assert _returns(metrics) == [(1, 1)]
    assert metrics.env_steps == 2


@pytest.mark.parametrize(('num_environments', 'newest'), [(1, [3, 4]), (3, [2, 3, 4])])
def test_means_are_over_the_newest_episodes(num_environments, newest):
    metrics = EpisodeMetrics(num_environments, buffer_size=2)
    for episode_return in (1, 2, 3, 4):
        rest = num_environments - 1
        metrics(_row([0] + [1] * rest, [2] + [1] * rest, [episode_return] + [0] * rest))
    assert metrics.mean_return == np.mean(newest)


def test_rate_is_over_the_last_seconds():
    now = 0.0
    metrics = EpisodeMetrics(2, clock=lambda: now)
    assert metrics.env_steps_per_sec == 0.0
    for _ in range(100):  # 20 environment steps per second
        now += 0.1
        metrics(_row([1, 1], [1, 1], [0, 0]))
    assert metrics.env_steps_per_sec == pytest.approx(20, rel=0.05)
    for _ in range(200):  # 4 per second
        now += 0.5
        metrics(_row([1, 1], [1, 1], [0, 0]))
    assert metrics.env_steps_per_sec == pytest.approx(4, rel=0.05)


def test_observes_an_actor():
    environment = fakes.CheckedEnvironment(lengths=(2, 3), truncated=(False, True))
    metrics = EpisodeMetrics(2)
    actor = Actor(environment, fakes.CountingPolicy(environment.specs), [metrics])
    actor.run(12)
    # Actions, and so rewards, are 0, 1, 0, ... : each episode earns 1. One takes 3 rows and the other 4.
    assert metrics.env_steps == actor.env_steps == 12 // 3 * 2 + 12 // 4 * 3
    assert sorted(_returns(metrics)) == [(1, 2)] * 4 + [(1, 3)] * 3


def test_needs_no_tensorflow():
    program = "import sys, tflearn.actors.episode_metrics; sys.exit('tensorflow' in sys.modules)"
    subprocess.run([sys.executable, '-c', program], check=True, timeout=60)


def test_several_rewards_have_a_return_each():
    metrics = EpisodeMetrics(2)
    for step in range(4):
        metrics(
            trajectory.Trajectory(
                step_type=np.int32([[0, 0], [1, 2], [2, 0], [0, 1]][step]),
                observation=(),
                action=(),
                policy_info=(),
                next_step_type=np.int32([[1, 2], [2, 0], [0, 1], [1, 1]][step]),
                reward=np.float32([[[1, 2], [3, 4]], [[5, 6], [0, 0]], [[0, 0], [7, 8]], [[1, 1], [1, 1]]][step]),
                discount=np.ones(2, np.float32),
            )
        )
    first, second = metrics.drain()
    assert (first['return'], first['return_0'], first['return_1']) == (7.0, 3.0, 4.0)
    assert (second['return'], second['return_0'], second['return_1']) == (14.0, 6.0, 8.0)
    assert metrics.means()['mean_return_0'] == 4.5
