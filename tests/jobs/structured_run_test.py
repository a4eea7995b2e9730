"""Runs with nested observations, masks of legal actions and several discrete actions, through the jobs."""

import functools
import threading

import numpy as np
import pytest
import tensorflow as tf

from tests.testing import jobs, structured
from tflearn.agents import dqn, ppo
from tflearn.core.experience import BatchItems, Experience, Iteration, Queue, Slicing
from tflearn.files.run_dir import read_json
from tflearn.jobs.collect import collect
from tflearn.jobs.collect_settings import CollectOptions
from tflearn.jobs.evaluate import evaluate
from tflearn.jobs.evaluate_settings import EvaluateOptions
from tflearn.jobs.run import Run
from tflearn.jobs.synchronous import synchronous
from tflearn.jobs.train import train
from tflearn.networks.networks import NetworkOptions
from tflearn.policies.policy_function import load_policy

# TF-Agents' CategoricalProjectionNetwork makes an array of one element a number.
pytestmark = pytest.mark.filterwarnings('ignore:Conversion of an array with ndim > 0:DeprecationWarning')


@pytest.fixture
def made(monkeypatch):
    """The environments that a test makes, none of which may be given an illegal action."""
    environments = []

    def make_environment(task, num_environments, seed):
        environments.append(structured.make_environment(task, num_environments, seed))
        return environments[-1]

    yield make_environment
    assert environments and not sum(environment.num_rebuilt for environment in environments)


def test_synchronous_run_and_evaluation_with_a_mask(tmp_path, made):
    """With random first actions, and an evaluation with an epsilon."""
    run = jobs.SmallRun(tmp_path)
    make_environment = functools.partial(made, 'masked discrete')
    settings = {
        'run_dir': run.dir,
        'stop': threading.Event(),
        'experience': run.experience,
        'num_environments': 2,
        'make_environment': make_environment,
        'make_agent': functools.partial(
            dqn.make_agent, network=NetworkOptions(fc_layer_params=(8,)), epsilon=0.5, action_mask='mask'
        ),
        'collect_options': CollectOptions(initial_random_steps=30),
        'num_train_steps': 60,
        'export_interval_steps': 60,
    }
    synchronous(**jobs.job_arguments(synchronous, settings))
    given = {'run': Run(run.dir, connect_timeout_secs=10.0), 'num_episodes': 4}
    evaluate(make_environment=make_environment, options=EvaluateOptions(epsilon=0.5), **given)
    policy = load_policy(run.dir.root)
    mask = np.array([[0, 1, 0], [0, 0, 1]])
    assert policy({'a': np.zeros((2, 3), np.float32), 'mask': mask}).tolist() == [1, 2]


@pytest.mark.slow
def test_jobs_with_ppo_and_several_masked_actions(small_run, made):
    """The learner mixes the steps of sequences; policy and value are normalized but for the mask."""
    iteration = Iteration(num_epochs=2, minibatch_steps=12)
    factories = {
        'make_environment': functools.partial(made, 'masked multi-discrete'),
        'make_agent': functools.partial(
            ppo.make_agent, network=NetworkOptions(fc_layer_params=(8,)), action_mask='mask'
        ),
        'experience': Experience(
            slicing=Slicing(sequence_length=9, stride=8, cross_episodes=True),
            replay=Queue(max_size=8, training=iteration),
            batch=BatchItems(4),
        ),
    }
    small_run.factories = lambda: factories
    small_run.start_replay()
    collector = small_run.start(collect, num_environments=4)
    small_run.start(train, num_train_steps=18, publish_interval_steps=1).join()
    collector.join()
    assert read_json(small_run.dir.train_result)['train_step'] == 18
    signature = tf.saved_model.load(str(small_run.dir.greedy_policy / '18')).signatures['serving_default']
    named = {'observation_a': tf.zeros((1, 3)), 'observation_mask': tf.constant([[0, 1, 1, 0, 0]], tf.int64)}
    assert signature(**named)['action'].numpy().tolist() == [[1, 0]]
