"""The policy lag of the data that the learner trains on, with a real collector and a real queue."""

import functools
import threading

import pytest

from tests.testing import written_summaries
from tests.testing.jobs import QUEUE
from tflearn.agents import impala
from tflearn.environments import gymnasium_env
from tflearn.jobs.collect import collect
from tflearn.jobs.train import train
from tflearn.learner.learner import LearnerOptions
from tflearn.networks.networks import NetworkOptions

NUM_STEPS = 40
# Slower than the collector, so that the queue blocks the collector.
SECS_PER_STEP = 0.05


@pytest.mark.slow
def test_policy_lag_is_bounded_and_has_a_histogram(small_run):
    given = {
        'make_environment': functools.partial(gymnasium_env.make, 'Pendulum-v1'),
        'make_agent': functools.partial(impala.make_agent, network=NetworkOptions(fc_layer_params=(8,))),
        'experience': QUEUE,
    }
    never = threading.Event()
    small_run.start_replay(**given)
    collector = small_run.start(collect, num_environments=8, **given)
    small_run.start(
        train,
        num_train_steps=NUM_STEPS,
        publish_interval_steps=1,
        summary_interval_steps=1,
        options=LearnerOptions(after_run=lambda result: never.wait(SECS_PER_STEP)),
        **given,
    ).join()
    collector.join()
    summaries = small_run.dir.summaries('train')
    lags = written_summaries.histograms(summaries)['data/policy_lag']
    assert set(lags) == set(range(1, NUM_STEPS + 1))
    assert all(0 <= least <= greatest <= 2 for least, greatest, _ in lags.values())
    assert any(greatest for _, greatest, _ in lags.values())
    metrics = written_summaries.scalars(summaries)
    assert max(metrics['train/greatest_policy_lag'].values()) <= 2
    # The short queue alone keeps the lag within the bound.
    assert max(metrics['train/stale_sequences'].values()) < NUM_STEPS * QUEUE.per_replica_batch_size
