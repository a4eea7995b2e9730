"""Every agent that learns from old items draws them by priority, in a run of `tflearn.train`."""

import functools

import pytest

import tflearn
from tests.testing import algorithms, written_summaries
from tflearn.environments import gymnasium_env
from tflearn.jobs.policy_exports import ExportOptions


# By default, cells of the conformance matrix draw by priority, and tests/jobs/demonstrations_test.py counts priorities.
@pytest.mark.slow
@pytest.mark.parametrize('name', algorithms.names('sac', data='prioritized'))
def test_errors_of_items_become_their_priorities(name, tmp_path):
    algorithm = algorithms.ALGORITHMS[name]
    environment = 'CartPole-v1' if 'discrete' in algorithm.example.actions else 'Pendulum-v1'
    replay = tflearn.Prioritized(max_size=200, min_size=20, samples_per_insert=8.0)
    run = tflearn.train(
        make_environment=functools.partial(gymnasium_env.make, environment),
        make_agent=functools.partial(algorithm.module.make_agent, **algorithm.arguments),
        experience=tflearn.Experience(algorithm.experience.slicing, replay, tflearn.BatchItems(4)),
        root_dir=tmp_path,
        num_train_steps=20,
        num_episodes=1,
        exports=ExportOptions(('greedy_policy',)),
        learner_options=tflearn.LearnerOptions(summaries=tflearn.SummaryOptions(5)),
    )
    assert run.train_step == 20
    scalars = written_summaries.scalars(run.run_dir.summaries('train'))
    assert max(scalars['train/priorities_updated'].values()) >= 15 * 4
    assert max(scalars['train/priorities_not_finite'].values()) == 0
