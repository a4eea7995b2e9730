"""Schedules by environment steps, in the jobs train and collect."""

import pytest
import tensorflow as tf

from tflearn.agents import dqn
from tflearn.core.waiting import wait_until
from tflearn.files.run_dir import read_json
from tflearn.jobs.collect import collect
from tflearn.jobs.train import train
from tflearn.networks.networks import NetworkOptions
from tflearn.optimization import schedules


@pytest.mark.slow
def test_learner_and_collectors_follow_the_runs_environment_steps(small_run):
    """Each job makes an agent with a schedule of its own."""
    schedule = schedules.linear(1.0, 0.0, 10_000)
    made = []

    def make_agent(specs, train_step, experience):
        made.append(schedules.by_env_steps(schedule))
        return dqn.make_agent(
            specs, train_step, experience, network=NetworkOptions(fc_layer_params=(8,)), epsilon=made[-1]
        )

    def values():
        return [round((1.0 - float(each(tf.constant(0, tf.int64)))) * 10_000) for each in made]

    given = {'make_agent': make_agent}
    small_run.start_replay(**given)
    small_run.start(collect, num_environments=2, **given)
    job = small_run.start(train, num_train_steps=10**6, publish_interval_steps=20, export_interval_steps=10**6, **given)
    wait_until(lambda: job.ended or min(values()[-2:]) > 100, 'both to know some environment steps', 60)
    job.stop.set()
    job.join()
    assert read_json(small_run.dir.status('train'))['env_steps'] >= max(values())
