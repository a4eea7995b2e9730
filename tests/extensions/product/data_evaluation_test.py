"""Off-policy evaluation of exported policies on recorded episodes."""

import functools
import json
import pathlib
import shutil

import numpy as np
import pytest

import tflearn
from tests.testing import golden_runs
from tflearn.agents import ppo
from tflearn.core.experience import BatchItems, Experience, Queue, Slicing
from tflearn.data import columns, conversion
from tflearn.data.reader import Dataset, EpisodeReader
from tflearn.environments import gymnasium_env
from tflearn.extensions.product.data_evaluation import evaluate_on_data
from tflearn.files.run_dir import RunDir
from tflearn.jobs.policy_exports import ExportOptions
from tflearn.jobs.record import Quota, record
from tflearn.jobs.run import Run

CARTPOLE = functools.partial(gymnasium_env.make, 'CartPole-v1')


@pytest.fixture(scope='module')
def run_dir(tmp_path_factory):
    """A run of few steps, with exported policies of two train steps."""
    return golden_runs.dqn(tmp_path_factory.mktemp('dqn'))


@pytest.fixture(scope='module')
def recorded(run_dir, tmp_path_factory):
    """Returns the path of a data set of a policy, with its log-probabilities."""

    @functools.cache
    def write(policy, **settings):
        output = tmp_path_factory.mktemp('data') / 'data'
        record(
            run=Run(run_dir), make_environment=CARTPOLE, output=str(output), policy=policy,
            quota=Quota(60), num_environments=4, **{'log_probabilities': True, **settings},
        )  # fmt: skip
        return str(output)

    return write


def evaluate(run_dir, path, policy, **settings):
    return evaluate_on_data(run_dir, [path], {}, policy, num_features=32, **settings)


def test_episodes_with_unknown_rewards_are_named(run_dir, recorded, tmp_path):
    for path in (tmp_path / 'data', tmp_path / 'data' / 'unknown'):
        shutil.copytree(recorded('greedy_policy', epsilon=0.4), path)
    found, facts = evaluate(run_dir, str(tmp_path / 'data'), 'greedy_policy', epsilon=0.4)
    # A version is found by its path from anywhere.
    assert evaluate(RunDir(tmp_path), str(tmp_path / 'data'), facts['policy'], epsilon=0.4)[0] == found
    assert found.num_episodes == 60
    assert 'no estimate or interval is about 60 more episodes, whose rewards are unknown' in found.warnings
    assert conversion.copy(Dataset([str(tmp_path / 'data')]), tmp_path / 'copy')[0] == 60
    assert EpisodeReader(Dataset([str(tmp_path / 'copy' / 'unknown')])).num_episodes == 60


@pytest.mark.parametrize(
    ('policy', 'epsilon'), [('raw_policy', 0.0), ('raw_policy', 0.3), ('greedy_policy', 0.4), ('greedy_policy', 0.0)]
)
def test_the_policy_that_recorded_is_worth_its_mean_return(run_dir, recorded, policy, epsilon):
    found, facts = evaluate(run_dir, recorded(policy, epsilon=epsilon), policy, epsilon=epsilon)
    assert found.behaviour == 'recorded'
    assert found.effective_sample_size == pytest.approx(found.num_episodes, rel=1e-3)
    value = found.estimates['behaviour policy (mean return)']
    assert value == pytest.approx(found.num_steps / found.num_episodes)  # a reward of 1 in each step
    for name in ('importance sampling', 'weighted IS', 'per-decision IS', 'weighted per-decision IS'):
        assert found.estimates[name] == pytest.approx(value, rel=1e-3), name
    assert json.loads(json.dumps(facts, allow_nan=False))['train_step'] == 20


def test_another_policy_of_random_data(run_dir, recorded):
    path = recorded('random')
    probabilities = [np.exp(e['policy_info.log_probability']) for e in EpisodeReader(Dataset([path])).episodes()]
    assert {round(float(p), 6) for episode in probabilities for p in episode[:-1]} == {0.5}
    found, _ = evaluate(run_dir, path, 'greedy_policy', horizon=3)
    # Each of three steps rewards any policy with 1.
    for name, tolerance in {'weighted IS': 1e-9, 'doubly robust': 0.1, 'fitted Q evaluation': 0.05}.items():
        assert found.estimates[name] == pytest.approx(3, abs=tolerance), name
    assert 2 < found.effective_sample_size < 30  # an eighth of the episodes


def test_data_without_log_probabilities_get_an_estimated_policy(run_dir, recorded):
    path = recorded('random', log_probabilities=False)
    assert not any('policy_info' in column.name for column in columns.read_columns(pathlib.Path(path)))
    found, _ = evaluate(run_dir, path, 'raw_policy', horizon=5)
    assert found.behaviour == 'estimated'
    assert found.estimates['weighted IS'] == pytest.approx(5, abs=1e-6)


@pytest.fixture(scope='module')
def clipped(tmp_path_factory):
    """A run of PPO on five steps of Pendulum, about half of whose actions are bounds or beyond, and its environment."""
    root = tmp_path_factory.mktemp('clipped')
    make_environment = functools.partial(gymnasium_env.make, 'Pendulum-v1', max_episode_steps=5)
    experience = Experience(Slicing(6, 5), Queue(8), BatchItems(4))
    tflearn.train(
        make_environment=make_environment,
        make_agent=functools.partial(ppo.make_agent, initial_deviation=1.5),
        experience=experience,
        root_dir=root,
        exports=ExportOptions(('greedy_policy', 'raw_policy')),
        num_environments=2, export_interval_steps=2, num_train_steps=2, num_episodes=1, seed=1,
    )  # fmt: skip
    return RunDir(root), make_environment


@pytest.mark.parametrize('estimate_behaviour', [False, True])
def test_actions_at_bounds_have_weights_whose_mean_is_one(clipped, tmp_path, estimate_behaviour):
    run_dir, make_environment = clipped
    # An episode's weight has a deviation of about 0.5, so the mean of 300 is off by 0.15 once in a million times.
    epsilons = (0.0, 0.0) if estimate_behaviour else (0.3, 0.15)
    record(
        run=Run(run_dir), make_environment=make_environment, output=str(tmp_path / 'data'), policy='raw_policy',
        quota=Quota(300), num_environments=16, epsilon=epsilons[0], log_probabilities=True,
    )  # fmt: skip
    data = [episode['action'] for episode in EpisodeReader(Dataset([str(tmp_path / 'data')])).episodes()]
    assert 0.2 < (np.abs(np.concatenate(data)) >= 2).mean() < 0.8
    found, _ = evaluate(
        run_dir, str(tmp_path / 'data'), 'raw_policy', epsilon=epsilons[1], estimate_behaviour=estimate_behaviour
    )
    assert found.effective_sample_size > 50 and found.warnings == ()
    # The mean weight is 1 when the value by ordinary importance sampling is that by weighted one.
    ratio = found.estimates['importance sampling'] / found.estimates['weighted IS']
    assert ratio == pytest.approx(1, abs=0.15)


def test_mistakes_are_refused(run_dir, recorded, tmp_path):
    with pytest.raises(ValueError, match='got no policy in'):
        evaluate(run_dir, recorded('random'), 'no_policy')
    with pytest.raises(ValueError, match="got the policy 'random'; need one that tflearn has exported"):
        evaluate(run_dir, recorded('random'), 'random')
    with pytest.raises(ValueError, match='exported without their probabilities'):
        evaluate(run_dir, recorded('random'), 'collect_policy')
    with pytest.raises(ValueError, match='exported without their probabilities'):
        recorded('collect_policy')
    with pytest.raises(ValueError, match='got log_probabilities for a policy that is not exported by a run'):
        recorded(lambda observation: np.zeros(len(observation), np.int64))
    with pytest.raises(ValueError, match='got no episodes that pass the filters'):
        evaluate_on_data(run_dir, [recorded('random')], {'min_return': 1e6})
    pendulum = tmp_path / 'pendulum'
    record(
        run=Run(run_dir), output=str(pendulum), policy='random', quota=Quota(1),
        make_environment=functools.partial(gymnasium_env.make, 'Pendulum-v1'), num_environments=1,
    )  # fmt: skip
    with pytest.raises(ValueError, match='use the configuration that it was trained with'):
        evaluate(run_dir, str(pendulum), 'greedy_policy')
