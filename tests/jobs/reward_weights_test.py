"""Several rewards through the jobs: their weights change while the run goes on, and metrics show each of them."""

import functools
import logging

import numpy as np
import pytest

from tests.testing import jobs, two_rewards, written_summaries
from tflearn.actors.evaluation_record import EvaluationRecord
from tflearn.agents import dqn
from tflearn.core.experience import BatchItems, Experience, Uniform
from tflearn.core.train_step import create_train_step
from tflearn.files.run_dir import RunDir, write_json
from tflearn.jobs.evaluate import evaluate
from tflearn.jobs.policy_exports import ExportOptions
from tflearn.jobs.run import Run
from tflearn.jobs.synchronous import synchronous
from tflearn.networks.networks import NetworkOptions
from tflearn.optimization.optimizers import OptimizerOptions
from tflearn.policies.policy_function import load_policy
from tflearn.transforms import rewards, transformed
from tflearn.transforms.rewards import RewardWeights


def make_agent(*given, weights=(1.0, 0.25)):
    make = functools.partial(
        dqn.make_agent,
        network=NetworkOptions(fc_layer_params=(8,)),
        optimizer=OptimizerOptions(0.01),
        epsilon=0.5,
        gamma=0.5,
    )
    return transformed.make_agent(*given, make_agent=make, transforms=[rewards.Weighted(weights)])


@pytest.mark.slow
def test_weights_change_while_a_run_goes_on(tmp_path):
    """The policy prefers the reward that weighs more. Returns stay those of the environment."""
    run = jobs.SmallRun(tmp_path)
    settings = {
        'run_dir': run.dir,
        'make_environment': two_rewards.make,
        'make_agent': make_agent,
        'experience': Experience(
            replay=Uniform(max_size=500, min_size=20, samples_per_insert=8.0), batch=BatchItems(8)
        ),
        'num_environments': 2,
        'export_interval_steps': 200,
        'publish_interval_steps': 50,
        'summary_interval_steps': 100,
        'exports': ExportOptions(('greedy_policy',)),
        'seed': 1,
    }
    observation = np.float32([[0.0], [1.0], [2.0], [3.0]])
    synchronous(**jobs.job_arguments(synchronous, {**settings, 'num_train_steps': 300}))
    np.testing.assert_array_equal(load_policy(run.dir.root)(observation), 0)
    evaluate(
        run=Run(run.dir, connect_timeout_secs=10.0),
        make_environment=two_rewards.make,
        num_episodes=2,
    )
    (evaluation,) = EvaluationRecord(run.dir.evaluations).evaluations[-1:]
    assert evaluation['mean_return'] == 4.0 and [evaluation['metrics'][f'return_{i}'] for i in (0, 1)] == [4.0, 0.0]
    scalars = written_summaries.scalars(run.dir.summaries('collect'))
    (first,) = [values for tag, values in scalars.items() if tag.endswith('mean_return_0')]
    (second,) = [values for tag, values in scalars.items() if tag.endswith('mean_return_1')]
    assert first and all(first[step] + second[step] == pytest.approx(4.0) for step in first)

    run.dir.done.unlink()
    write_json(run.dir.reward_weights, {'weights': [0.0, 2.0]})
    synchronous(**jobs.job_arguments(synchronous, {**settings, 'num_train_steps': 900}))
    newest = load_policy(
        run.dir.greedy_policy / '900'
    )  # that of the run is the best by evaluation, of the weights before
    np.testing.assert_array_equal(newest(observation), 1)


@pytest.mark.parametrize('content', [{}, {'weights': [1.0]}, {'weights': [1.0, 'a']}, {'weights': [1.0, float('nan')]}])
def test_a_file_that_cannot_be_used_changes_nothing(tmp_path, content, caplog):
    run_dir = RunDir(tmp_path)
    agent = make_agent(two_rewards.make(1, 0).specs, create_train_step(), Experience())
    read = RewardWeights(agent, run_dir)
    read(1)
    write_json(run_dir.reward_weights, content)
    with caplog.at_level(logging.ERROR, 'absl'):
        read(2)
        read(3)
    np.testing.assert_array_equal(agent.reward_weights, [1.0, 0.25])
    assert len([record for record in caplog.records if 'with 2 numbers' in record.message]) == 1
    run_dir.reward_weights.unlink()
    run_dir.reward_weights.symlink_to(run_dir.reward_weights.name)
    read(3)
    write_json(run_dir.reward_weights, {'weights': [3, 4.5]})
    read(4)
    np.testing.assert_array_equal(agent.reward_weights, [3.0, 4.5])
