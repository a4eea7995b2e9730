"""Transforms with statistics and frames through the jobs: collected, queued, trained, exported, continued."""

import functools

import numpy as np
import pytest
import tensorflow as tf

from tests.testing import jobs
from tests.testing.jobs import small_run  # noqa: F401 - a fixture
from tflearn.agents import dqn, ppo
from tflearn.core.experience import BatchItems, Experience, Iteration, Queue, Slicing, Uniform
from tflearn.environments import gymnasium_env
from tflearn.jobs.collect import collect
from tflearn.jobs.evaluate import evaluate
from tflearn.jobs.policy_exports import ExportOptions
from tflearn.jobs.run import Run
from tflearn.jobs.synchronous import synchronous
from tflearn.jobs.train import train
from tflearn.networks.networks import NetworkOptions
from tflearn.policies.policy_function import load_policy
from tflearn.transforms import normalize, stack, statistics, transformed

# TF-Agents' CategoricalProjectionNetwork makes an array of one element a number.
pytestmark = pytest.mark.filterwarnings('ignore:Conversion of an array with ndim > 0:DeprecationWarning')

TRANSFORMS = [
    normalize.Observations(statistics=statistics.Ema(0.1)),
    stack.FrameStack(2),
    normalize.Rewards(statistics=statistics.Window(8)),
]


def mean_of_observations(run):
    """Returns the mean of the newest checkpoint."""
    reader = tf.train.load_checkpoint(str(run.dir.checkpoints))
    (name,) = [
        name
        for name, shape in reader.get_variable_to_shape_map().items()
        if '_transforms_variables/0/.ATTRIBUTES' in name and shape == [4] and 'optimizer' not in name
    ]
    return reader.get_tensor(name)


def exported_means(run):
    """Returns the variables of the newest exported policy that have the mean's name."""
    newest = max((run.dir.policy('greedy_policy')).glob('[0-9]*'), key=lambda path: int(path.name))
    return [value.numpy() for value in tf.saved_model.load(str(newest)).model_variables if 'mean' in value.name]


@pytest.mark.slow
def test_on_policy_jobs_on_two_replicas(small_run):  # noqa: F811
    """Items have a history; the learner shuffles the steps of iterations; statistics travel with the weights."""
    factories = {
        'make_environment': functools.partial(gymnasium_env.make, 'CartPole-v1'),
        'make_agent': functools.partial(
            transformed.make_agent,
            make_agent=functools.partial(
                ppo.make_agent,
                network=NetworkOptions(fc_layer_params=(8,)),
                normalize_observations=False,
                normalize_rewards=False,
            ),
            transforms=TRANSFORMS,
        ),
        'experience': Experience(
            Slicing(sequence_length=9, stride=8, cross_episodes=True, history_steps=1),
            Queue(max_size=8, training=Iteration(num_epochs=2, minibatch_steps=12)),
            BatchItems(2),
        ),
    }
    small_run.factories = lambda: factories
    small_run.start_replay()
    small_run.start(collect, num_environments=4)
    few = {'checkpoint_interval_steps': 6, 'export_interval_steps': 6, 'publish_interval_steps': 1}
    small_run.start(train, num_train_steps=18, strategy='mirrored:2', **few).join()
    mean = mean_of_observations(small_run)
    assert np.abs(mean).max() > 0
    assert any(np.array_equal(value, mean) for value in exported_means(small_run))
    policy = load_policy(small_run.dir.root)
    assert policy(np.zeros((2, 4), np.float32)).shape == (2,)


def test_synchronous_job_continues_with_its_statistics(tmp_path):
    run = jobs.SmallRun(tmp_path)
    make_environment = functools.partial(gymnasium_env.make, 'CartPole-v1')
    settings = {
        'run_dir': run.dir,
        'make_environment': make_environment,
        'make_agent': functools.partial(
            transformed.make_agent,
            make_agent=functools.partial(dqn.make_agent, network=NetworkOptions(fc_layer_params=(8,))),
            transforms=TRANSFORMS,
        ),
        'experience': Experience(
            Slicing(sequence_length=3, history_steps=1), Uniform(max_size=500, min_size=20), BatchItems(4)
        ),
        'num_environments': 2,
        'export_interval_steps': 20,
        'exports': ExportOptions(('greedy_policy',)),
        'seed': 1,
    }
    arguments = jobs.job_arguments(synchronous, {**settings, 'num_train_steps': 20})
    synchronous(**arguments)
    before = mean_of_observations(run)
    arguments = jobs.job_arguments(synchronous, {**settings, 'num_train_steps': 21})
    synchronous(**arguments)
    after = mean_of_observations(run)
    assert np.abs(before).max() > 0 and (before != after).any()
    np.testing.assert_allclose(after, before, atol=0.2)  # one more step at the rate 0.1, not from 0 again
    evaluate(
        run=Run(run.dir, connect_timeout_secs=10.0),
        make_environment=make_environment,
        num_episodes=2,
    )
    assert run.dir.done_line()
