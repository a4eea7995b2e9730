"""The job evaluate_policy with policies of all origins; tests/scripts/evaluate_test.py runs its program."""

import functools
import json
import shutil

import gymnasium
import numpy as np
import pytest
import tensorflow as tf
from tf_agents.networks import q_network
from tf_agents.policies import greedy_policy, policy_saver, q_policy

import tflearn
from tests import fakes
from tests.testing import example_policies
from tflearn.core.types import specs_of
from tflearn.environments import gymnasium_env, vector_env
from tflearn.files.run_dir import RunDir
from tflearn.jobs.evaluate_settings import EvaluateOptions
from tflearn.jobs.policy_evaluation import evaluate_policy
from tflearn.jobs.run import Run
from tflearn.policies.exporter import PolicyExporter
from tflearn.policies.policy_function import load_policy

CARTPOLE = functools.partial(gymnasium_env.make, 'CartPole-v1', max_episode_steps=100)


class Costly(gymnasium.Wrapper):
    """Reports a cost of 2 in each step."""

    def step(self, action):
        *step, info = super().step(action)
        return (*step, {**info, 'cost': 2.0})


def make_costly(num_environments, seed):
    return vector_env.in_process(lambda: Costly(gymnasium.make('CartPole-v1')), num_environments, seed)


def run(root, **settings):
    settings = {'make_environment': CARTPOLE, 'num_episodes': 3, 'num_environments': 2, **settings}
    return evaluate_policy(run=Run(RunDir(root)), **settings)


def balance(observation):
    return (observation[:, 2] + observation[:, 3] > 0).astype(np.int32)


@pytest.fixture(scope='module')
def two_versions(tmp_path_factory):
    """The root of versions 3 and 9 of a greedy policy, without any other file of a run."""
    root = tmp_path_factory.mktemp('two_versions')
    specs = specs_of(CARTPOLE)
    linear = example_policies.Linear(specs.observation, specs.action)
    exporter = PolicyExporter(linear.policy, RunDir(root).greedy_policy)
    for step, weights in ((3, (0.1, 0.2, 1.0, 1.0)), (9, (0.0,) * 4)):
        linear.set(weights)
        exporter.export(step, {'env_steps': step})
    return root


@pytest.fixture
def exported(two_versions, tmp_path):
    """The root of a copy."""
    return shutil.copytree(two_versions, tmp_path, symlinks=True, dirs_exist_ok=True)


def results(root):
    folder = RunDir(root).policy_evaluations
    return {path.name: json.loads(path.read_text()) for path in folder.glob('[!.]*')} if folder.exists() else {}


def test_versions_by_name_number_and_path(exported):
    greedy = RunDir(exported).greedy_policy
    for given in ({'train_step': 3}, {'policy': 'greedy_policy/3'}, {'policy': str(greedy / '3')}):
        assert 'mean return 100.00 of 3 episodes' in run(exported, **given)
    for given in ({}, {'policy': 'latest'}, {'policy': str(exported)}, {'policy': str(greedy)}):
        assert 'train step 9: mean return 10.00 of' in run(exported, **given)
    found = results(exported)
    assert {f'greedy_policy-{step}-{number}.json' for step, number in ((3, 1), (3, 3), (9, 1), (9, 4))} < found.keys()
    assert {each['path'] for each in found.values()} == {str(greedy / '3'), str(greedy / '9')}
    assert len({tuple(each['returns']) for each in found.values() if each['train_step'] == 9}) == 1, 'the same seeds'


def test_a_call_from_python_plays_the_episodes_of_the_program(exported):
    version = RunDir(exported).greedy_policy / '3'
    run(exported, train_step=3, seed=5)
    (written,) = results(exported).values()
    for policy in (version, str(version), load_policy(version)):
        found = tflearn.evaluate(policy, CARTPOLE, 3, 5, num_environments=2)
        assert (found.mean_return, list(found.returns)) == (written['mean_return'], written['returns'])
    specs = specs_of(CARTPOLE)
    linear = example_policies.Linear(specs.observation, specs.action)
    linear.set((0.1, 0.2, 1.0, 1.0))
    found = tflearn.evaluate(linear.policy, CARTPOLE, 3, 5, num_environments=2)
    assert list(found.returns) == written['returns'], "TF-Agents' own policy, as learner.agent.policy is one"
    options = EvaluateOptions(max_steps_per_episode=60)
    assert tflearn.evaluate(balance, CARTPOLE, 2, options=options).lengths == (60, 60)
    assert tflearn.evaluate('random', CARTPOLE, 2).mean_return < 80
    assert tflearn.evaluate('random', CARTPOLE, 2) == tflearn.evaluate('random', CARTPOLE, 2)
    for given, message in (
        ((None, CARTPOLE), 'need a function'),
        ((balance, gymnasium.make), 'got make_environment=.*need'),
        ((balance, CARTPOLE, 0), 'got num_episodes=0'),
        ((version, fakes.make_environment), 'use the configuration that it was trained with'),
        ((linear.policy, fakes.make_environment), 'got a policy of .*; the environment has'),
    ):
        with pytest.raises((TypeError, ValueError), match=message):
            tflearn.evaluate(*given)
    own = functools.partial(vector_env.in_process, functools.partial(gymnasium.make, 'CartPole-v1'))
    with pytest.raises(ValueError, match='gymnasium_env.make has not made; .* or give tflearn.train.record_video=...'):
        tflearn.evaluate('random', own, record_video='never_made')


@pytest.mark.filterwarnings('ignore')  # moviepy's own
def test_a_call_from_python_records_a_video_of_each_episode(tmp_path):
    pytest.importorskip('moviepy', reason='needs pip install ".[video]"')
    assert tflearn.evaluate('random', CARTPOLE, 2, record_video=tmp_path).num_episodes == 2
    assert {f'rl-video-episode-{i}.mp4' for i in (0, 1)} <= {path.name for path in tmp_path.iterdir()}


@pytest.mark.filterwarnings('ignore:Encoding a StructuredValue')  # by PolicySaver
def test_policies_of_other_origins_in_another_environment(tmp_path):
    specs = specs_of(CARTPOLE)
    network = q_network.QNetwork(specs.observation, specs.action, fc_layer_params=(5,))
    policy = greedy_policy.GreedyPolicy(q_policy.QPolicy(specs.time_step, specs.action, network))
    policy_saver.PolicySaver(policy, train_step=tf.Variable(7, dtype=tf.int64)).save(str(tmp_path / 'saved'))
    options = EvaluateOptions(max_steps_per_episode=60)
    for given, step in ((str(tmp_path / 'saved'), 7), (balance, None), ('random', None)):
        output = tmp_path / f'{step}-{callable(given)}.json'
        text = run(tmp_path, policy=given, make_environment=make_costly, options=options, output=str(output))
        found = json.loads(output.read_text())
        assert 'info/cost 2, info_end/cost 2' in text
        assert (found['train_step'], found['metrics']['info/cost']) == (step, 2.0)
        if given is balance:
            assert (found['lengths'], found['policy']) == ([60, 60], f'{__name__}:balance')
            assert found['incomplete'].startswith('2 of 3 episodes did not end within 60 steps')
    assert results(tmp_path) == {}
    with pytest.raises(
        ValueError, match=r"got .*saved, which TF-Agents' .*; call tf.saved_model.load\('.*saved'\)\.action"
    ):
        load_policy(tmp_path / 'saved')


def test_what_cannot_be_evaluated_is_refused(exported, tmp_path):
    output = tmp_path / 'taken.json'
    output.write_text('{}')
    for given, message in (
        ({'policy': 'no_policy'}, 'got no policy in .*no_policy; need one that'),
        (
            {'policy': f'{tmp_path}/none'},
            'got no policy at .*none, which does not exist; need the directory of a Saved',
        ),
        ({'policy': str(tmp_path), 'train_step': 4}, 'got no policy at .*4; need .*; there are the train steps 3, 9'),
        ({'train_step': 4}, 'got no policy at .*greedy_policy/4; need a version that is still there'),
        ({'make_environment': fakes.make_environment}, 'use the configuration that it was trained with'),
        ({'sampled': True}, r'but no version 9 in .*raw_policy \(there is none\); need one'),
        ({'sampled': True, 'policy': balance}, 'got sampled actions of .*balance.*; need a policy that a run has'),
        ({'output': str(output)}, 'taken.json, which exists; need a new file'),
        ({'num_processes': 4}, 'got num_processes=4 for num_episodes=3; need at most as many'),
    ):
        with pytest.raises((ValueError, FileNotFoundError), match=message):
            run(exported, **given)
    assert results(exported) == {}
