"""The jobs of a run with PPO, each in a thread of this process: what the learner takes is new, and all of it."""

import functools

import numpy as np
import pytest
import reverb
import tensorflow as tf

from tflearn.agents import impala, ppo
from tflearn.agents.actor_value import NetworkOptions
from tflearn.environments import gymnasium_env
from tflearn.experience import Experience, Iteration
from tflearn.jobs.collect import collect
from tflearn.jobs.collect_settings import CollectOptions
from tflearn.jobs.train import train
from tflearn.replay.storage import REPLAY
from tflearn.run_dir import read_json

# TF-Agents' CategoricalProjectionNetwork makes an array of one element a number.
pytestmark = pytest.mark.filterwarnings('ignore:Conversion of an array with ndim > 0:DeprecationWarning')
EXPERIENCE = Experience(
    sequence_length=9,
    stride=8,
    cross_episodes=True,
    order='queue',
    max_size=8,
    min_size=1,
    per_replica_batch_size=4,
    max_policy_lag=2,
    iteration=Iteration(num_epochs=2, minibatch_steps=12),  # 32 steps: 3 minibatches of 11, twice
)


@pytest.fixture
def on_policy_run(small_run):
    factories = {
        'make_environment': functools.partial(gymnasium_env.make, 'CartPole-v1'),
        'make_agent': functools.partial(ppo.make_agent, network=NetworkOptions(fc_layer_params=(8,))),
        'experience': EXPERIENCE,
    }
    small_run.factories = lambda: factories
    small_run.start_replay()
    return small_run


def _normalizer_count(run):
    reader = tf.train.load_checkpoint(str(run.dir.checkpoints))
    (name,) = [
        name
        for name in reader.get_variable_to_shape_map()
        if '_observation_normalizer/count/' in name and 'agent' in name
    ]
    return float(reader.get_tensor(name))


def test_a_run_to_its_end_and_beyond(on_policy_run):
    run, seen = on_policy_run, []
    options = CollectOptions(max_sequences_per_version=4, versions_ahead=1)
    given = {'publish_interval_steps': 1, 'export_interval_steps': 30, 'summary_interval_steps': 13}
    counts = []
    for num_train_steps in (60, 120):
        collector = run.start(collect, num_environments=4, options=options, refresh_interval_secs=0.01)
        run.start(train, num_train_steps=num_train_steps, **given).join()
        collector.join()
        status = run.status('train')
        assert read_json(run.dir.train_result)['train_step'] == num_train_steps
        assert status['policy_version'] == num_train_steps // 6, 'after each iteration'
        # With what collectors have ahead one version, and one since this iteration; one row of each of the four
        # sequences is older by one, and the figure is that of a minibatch. What an end left in the queue comes on top.
        assert status['policy_lag'] <= (2 + 4 / 11 if num_train_steps == 60 else EXPERIENCE.max_policy_lag + 1)
        counts.append(_normalizer_count(run))
        seen.append(reverb.Client(run.address).server_info()[REPLAY])
    # Ten iterations of 32 rows each, less those between two episodes.
    assert 250 < counts[0] < 320
    assert 250 < counts[1] - counts[0] < 320
    samples = [info.rate_limiter_info.sample_stats.completed for info in seen]
    # What the learner had asked for when it ended, and what collectors had ahead.
    assert 40 <= samples[0] <= 40 + 2 * 4 + 4
    # What the end left in the queue made the rest too old; so much of it was dropped.
    assert int(np.diff(samples)[0]) <= 40 + 3 * 4 + EXPERIENCE.max_size


def test_an_agent_that_prepares_nothing(on_policy_run):
    with pytest.raises(ValueError, match='need an agent that prepares sequences for several epochs'):
        on_policy_run.start(train, num_train_steps=10, make_agent=impala.make_agent).join()
