"""TD3 through the jobs: collected and trained alternately, and with behavioural cloning from files."""

import functools
import threading

import numpy as np
import pytest
import tensorflow as tf

from tests.data import data_sets
from tests.testing import jobs
from tflearn.agents import td3
from tflearn.core.experience import BatchItems, Experience, Slicing, Uniform
from tflearn.data import columns
from tflearn.data.reader import Dataset, EpisodeReader
from tflearn.environments import gymnasium_env
from tflearn.files.run_dir import RunDir, read_json
from tflearn.jobs.policy_exports import ExportOptions
from tflearn.jobs.run import Run
from tflearn.jobs.synchronous import synchronous
from tflearn.jobs.train_offline import train_offline
from tflearn.jobs.train_settings import Initial
from tflearn.learner.stop_conditions import StopConditions
from tflearn.networks.networks import NetworkOptions
from tflearn.optimization import schedules
from tflearn.policies.policy_function import load_policy
from tflearn.transforms import normalize, transformed

SMALL = {'network': NetworkOptions(fc_layer_params=(8,), critic_fc_layer_params=(8,))}
RUN = {
    'make_environment': functools.partial(gymnasium_env.make, 'Pendulum-v1', max_episode_steps=20),
    'make_agent': functools.partial(td3.make_agent, exploration_noise=schedules.linear(0.3, 0.1, 10), **SMALL),
    'experience': Experience(
        Slicing(sequence_length=3), Uniform(max_size=2_000, min_size=50, samples_per_insert=8.0), BatchItems(8)
    ),
}


@pytest.mark.slow
def test_the_same_seed_gives_the_same_weights(tmp_path):
    found = []
    for name in ('a', 'b'):
        run_dir = RunDir(tmp_path / name)
        given = {'run_dir': run_dir, 'stop': threading.Event(), 'num_environments': 2, 'num_train_steps': 60, 'seed': 3}
        synchronous(**jobs.job_arguments(synchronous, {**RUN, **given, 'checkpoint_interval_steps': 60}))
        reader = tf.train.load_checkpoint(str(run_dir.checkpoints))
        names = [name for name in reader.get_variable_to_shape_map() if name.startswith('agent')]
        found.append({name: reader.get_tensor(name) for name in names})
    tf.nest.map_structure(np.testing.assert_array_equal, *found)


def test_behavior_cloning_from_files_with_the_data_s_mean_and_variance(tmp_path):
    environment = RUN['make_environment'](4, 0)
    data_sets.write(tmp_path / 'data', 200, environment)
    run_dir, agents = RunDir(tmp_path / 'run'), []

    def make_agent(*arguments):
        agents.append(
            transformed.make_agent(
                *arguments,
                make_agent=functools.partial(td3.make_agent, loss=td3.TD3Loss(behavior_cloning_alpha=2.5), **SMALL),
                transforms=[normalize.Observations(clipping=10.0)],
            )
        )
        return agents[-1]

    train_offline(
        run=Run(run_dir),
        dataset=Dataset([str(tmp_path / 'data')]),
        make_agent=make_agent,
        experience=Experience(batch=BatchItems(256)),
        stop_conditions=StopConditions(num_train_steps=40),
        initial=Initial(seed=3),
        exports=ExportOptions(('greedy_policy',)),
    )
    assert read_json(run_dir.train_result)['train_step'] == 40
    reader = EpisodeReader(Dataset([str(tmp_path / 'data')]), columns.data_spec(environment.specs))
    observations = np.concatenate([episode.observation for episode in reader.episodes()])
    statistics = agents[-1]._statistics[0]
    np.testing.assert_allclose(statistics.means[0], observations.mean(axis=0), atol=0.1)
    np.testing.assert_allclose(statistics.variances[0], observations.var(axis=0), rtol=0.2)
    policy = load_policy(run_dir.root)
    first = np.array([[1.0, 0.0, 0.0]], np.float32)
    steps = environment.reset()._replace(observation=np.repeat(first, 4, axis=0))
    expected = agents[-1].policy.action(tf.nest.map_structure(tf.constant, steps)).action
    np.testing.assert_allclose(policy(first[0]), expected[0], rtol=1e-5)
    environment.close()
