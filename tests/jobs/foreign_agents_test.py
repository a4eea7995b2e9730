"""Agents that tflearn has no module for run in all jobs: TF-Agents' own, as a user makes them."""

import functools
import threading

import numpy as np
import pytest
import tensorflow as tf

from tests.testing import foreign_agents, jobs, written_summaries
from tflearn.core.experience import BatchItems, Experience, Iteration, Queue, Slicing, Uniform
from tflearn.environments import gymnasium_env
from tflearn.files.run_dir import read_json
from tflearn.jobs.collect import collect
from tflearn.jobs.evaluate import evaluate
from tflearn.jobs.export import export
from tflearn.jobs.policy_exports import ExportOptions
from tflearn.jobs.run import Run
from tflearn.jobs.synchronous import synchronous
from tflearn.jobs.train import train

UNIFORM = Experience(replay=Uniform(min_size=50, samples_per_insert=8.0, max_size=2000), batch=BatchItems(8))
SEQUENCES = Experience(
    slicing=Slicing(sequence_length=6, stride=5),
    replay=Uniform(min_size=20, samples_per_insert=8.0, max_size=2000),
    batch=BatchItems(8),
)


def queue(training=None):
    return Experience(
        slicing=Slicing(sequence_length=9, stride=8, cross_episodes=True),
        replay=Queue(max_size=8, training=training),
        batch=BatchItems(4),
    )


# 32 samples in each iteration: two epochs of three minibatches, the last ones filled up.
ITERATION = queue(Iteration(num_epochs=2, minibatch_steps=12))
POLICIES = ExportOptions()


def factories(make_agent, task, experience):
    return {
        'make_environment': functools.partial(gymnasium_env.make, task),
        'make_agent': make_agent,
        'experience': experience,
    }


def run_jobs(run, num_train_steps, **settings):
    """Runs collect and train to the end, with the replay server that runs."""
    collector = run.start(collect, num_environments=2)
    settings = {'publish_interval_steps': 6, 'export_interval_steps': 12, 'exports': POLICIES, **settings}
    run.start(train, num_train_steps=num_train_steps, **settings).join()
    collector.join()
    return read_json(run.dir.train_result)


def evaluated(run, make_environment):
    """Evaluates the newest policy; returns the mean return."""
    arguments = {'num_episodes': 2, 'num_environments': 2}
    evaluate(run=Run(run.dir, connect_timeout_secs=10.0), make_environment=make_environment, **arguments)
    return read_json(run.dir.done)['evaluation']['mean_return']


def exported(run, policy, train_step, output):
    """Returns the actions of a full model, which the export job writes, on two zero observations."""
    path = export(run_dir=run.dir, policy=policy, train_step=train_step, output=str(output), batch_size=2)
    signature = tf.saved_model.load(str(path)).signatures['serving_default']
    named = {name: tf.zeros(spec.shape, spec.dtype) for name, spec in signature.structured_input_signature[1].items()}
    return signature(**named)['action'].numpy()


@pytest.mark.slow
def test_ppo_with_iterations_runs_in_all_jobs_and_resumes(small_run, tmp_path):
    """It computes advantages in `preprocess_sequence`, once for an iteration; the job makes its minibatches."""
    given = factories(functools.partial(foreign_agents.ppo, **foreign_agents.FOR_ITERATIONS), 'CartPole-v1', ITERATION)
    small_run.factories = lambda: given
    small_run.start_replay()
    assert run_jobs(small_run, 12, summary_interval_steps=6)['train_step'] == 12
    scalars = written_summaries.scalars(small_run.dir.summaries('train'))
    assert 'train/extra/policy_gradient_loss' in scalars
    assert run_jobs(small_run, 18)['train_step'] == 18
    reader = tf.train.load_checkpoint(str(small_run.dir.checkpoints))
    names = [name for name in reader.get_variable_to_shape_map() if name.startswith('agent/_observation_norm')]
    (count,) = [name for name in names if '_count' in name]
    assert np.all(reader.get_tensor(count) >= 3 * 4 * 9), 'once for each of three iterations'
    assert evaluated(small_run, given['make_environment']) > 0
    assert exported(small_run, 'collect_policy', 18, tmp_path / 'fixed').shape == (2,)


def synchronously(root, num_train_steps, **given):
    run = jobs.SmallRun(root)
    settings = {
        'run_dir': run.dir,
        'stop': threading.Event(),
        'num_environments': 2,
        'num_train_steps': num_train_steps,
        'export_interval_steps': num_train_steps,
    }
    synchronous(**jobs.job_arguments(synchronous, settings | given))
    return run


@pytest.mark.slow
def test_cloning_of_single_steps_begins_with_an_exported_policy(tmp_path):
    """Behavioral cloning trains on steps [B, ...], without a dimension of time."""
    given = factories(foreign_agents.behavioral_cloning, 'CartPole-v1', UNIFORM)
    run = synchronously(tmp_path / 'first', 20, **given, summary_interval_steps=10)
    assert read_json(run.dir.train_result)['train_step'] == 20
    assert evaluated(run, given['make_environment']) > 0
    second = synchronously(tmp_path / 'second', 1, **given, policy=str(run.dir.root))
    first, begun = (
        tf.saved_model.load(str(each.dir.greedy_policy / step)) for each, step in ((run, '20'), (second, '0'))
    )
    for one, other in zip(first.model_variables, begun.model_variables, strict=True):
        np.testing.assert_array_equal(one.numpy(), other.numpy())


CARTPOLE = 'CartPole-v1'
AGENTS = {
    'c51': (foreign_agents.c51, CARTPOLE, UNIFORM),
    'ddpg': (foreign_agents.ddpg, 'Pendulum-v1', UNIFORM),
    'td3': (foreign_agents.td3, 'Pendulum-v1', UNIFORM),
    'recurrent_dqn': (foreign_agents.recurrent_dqn, CARTPOLE, SEQUENCES),
    'cloning': (functools.partial(foreign_agents.behavioral_cloning, num_outer_dims=2), CARTPOLE, SEQUENCES),
    'ppo': (functools.partial(foreign_agents.ppo, num_epochs=3), CARTPOLE, queue()),
    'recurrent_ppo': (functools.partial(foreign_agents.ppo, num_epochs=2, memory=True), CARTPOLE, queue()),
    'ppo_with_advantages': (
        functools.partial(foreign_agents.ppo, num_epochs=3, compute_value_and_advantage_in_train=False),
        CARTPOLE,
        queue(),
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize('name', AGENTS)
def test_agents_in_all_jobs(small_run, tmp_path, name):
    given = factories(*AGENTS[name])
    small_run.factories = lambda: given
    small_run.start_replay()
    assert run_jobs(small_run, 12)['train_step'] == 12
    assert small_run.status('train')['policy_version'] == 2, 'published after so many train steps, however counted'
    assert run_jobs(small_run, 18)['train_step'] == 18
    assert np.isfinite(evaluated(small_run, given['make_environment']))
    assert len(exported(small_run, 'greedy_policy', 18, tmp_path / 'fixed')) == 2
