"""A synchronous run that is stopped or killed, and resumed, equals one that was not: bit for bit."""

import collections
import dataclasses
import functools
import logging
import shutil
import threading

import gymnasium
import numpy as np
import pytest

from tests.testing import forks, jobs, keras_3_networks, lanes, learner
from tflearn.agents import dqn, ppo, sac
from tflearn.core.experience import BatchItems, Experience, Iteration, Prioritized, Queue, Slicing, Uniform
from tflearn.core.waiting import wait_until
from tflearn.environments import gymnasium_env, vector_env
from tflearn.files.numbered import CheckpointFiles
from tflearn.files.run_dir import RunDir, read_json
from tflearn.jobs.collect_settings import CollectOptions
from tflearn.jobs.synchronous import synchronous
from tflearn.learner.learner import LearnerOptions
from tflearn.learner.train_loop import LoopOptions
from tflearn.networks.networks import NetworkOptions

SMALL = NetworkOptions((8,))
REPLAY = Experience(replay=Uniform(min_size=50, samples_per_insert=8.0, max_size=120), batch=BatchItems(8))
NAMES = ('env_steps', 'episodes', 'mean_return', 'mean_length', 'replay_size', 'num_iterations')
CASES = {
    'dqn': (dqn, 'CartPole-v1', REPLAY, {}),
    'dqn by priority': (
        dqn,
        'CartPole-v1',
        Experience(replay=Prioritized(min_size=50, samples_per_insert=8.0, max_size=120), batch=BatchItems(8)),
        {},
    ),
    'sac': (sac, 'Pendulum-v1', REPLAY, {'collect_options': CollectOptions(initial_random_steps=20)}),
    'sac in XLA': (sac, 'Pendulum-v1', REPLAY, {'learner_options': LearnerOptions(loop=LoopOptions(jit_compile=True))}),
    'ppo': (
        ppo,
        'CartPole-v1',
        Experience(
            Slicing(9, 8, cross_episodes=True),
            Queue(training=Iteration(num_epochs=2, minibatch_steps=8)),
            BatchItems(3),
        ),
        {},
    ),
}


def of_keras_3(algorithm, make_network=keras_3_networks.functional, **options):
    network = NetworkOptions(make_network=make_network, **options)
    return {'make_agent': functools.partial(algorithm.make_agent, network=network)}


def _policy_and_value(spec, name):
    return keras_3_networks.Subclass(2, has_value=True, name=name)


if lanes.IS_CURRENT:
    for name, more in {
        'dqn': of_keras_3(dqn),
        'sac': of_keras_3(sac),
        'ppo': of_keras_3(ppo, _policy_and_value, shared=True),
    }.items():
        CASES[f'{name} of Keras 3'] = (*CASES[name][:3], {**CASES[name][3], **more})
FAST = 'ppo'


def arguments(case, root):
    """Returns the arguments of a run of 2 environments, which ends after 96 train steps."""
    algorithm, environment, experience, more = CASES[case]
    return {
        'run_dir': RunDir(root),
        'stop': threading.Event(),
        'make_environment': functools.partial(gymnasium_env.make, environment),
        'make_agent': functools.partial(algorithm.make_agent, network=SMALL),
        'experience': experience,
        'num_environments': 2,
        'seed': 7,
        'num_train_steps': 96,
        'checkpoint_interval_steps': 20,
        **more,
    }


def assert_same(one, other):
    learner.assert_same_variables(RunDir(one), RunDir(other))
    statuses = [read_json(RunDir(root).status('train')) for root in (one, other)]
    mine, theirs = ({name: status.get(name) for name in NAMES} for status in statuses)
    assert mine == theirs


def run_in_parts(case, root, *ends, **changes):
    """Runs the job, and stops it in the first call that reaches each of these train steps; then to its end."""
    given = arguments(case, root) | changes
    for end in (*ends, None):
        stop, taken = threading.Event(), []

        def stop_at_end(result, stop=stop, end=end, taken=taken):
            taken.append(result.num_steps)
            if end is not None and sum(taken) >= end:
                stop.set()

        options = dataclasses.replace(given.get('learner_options', LearnerOptions()), after_run=stop_at_end)
        synchronous(**jobs.job_arguments(synchronous, {**given, 'learner_options': options, 'stop': stop}))
        state = read_json(RunDir(root).status('train'))['state']
        assert state == ('finished' if end is None else 'stopped')


@pytest.mark.parametrize(
    'case', [FAST, *(pytest.param(case, marks=pytest.mark.slow) for case in CASES if case != FAST)]
)
def test_a_stopped_and_resumed_run_equals_an_undisturbed_one(tmp_path, case, caplog):
    caplog.set_level(logging.INFO, 'absl')
    run_in_parts(case, tmp_path / 'whole')
    if case == 'ppo':
        # Sixteen iterations of three items, each of eight steps, and no more; episodes that begin take rows of items.
        env_steps = read_json(RunDir(tmp_path / 'whole').train_result)['env_steps']
        assert 0 <= 16 * 24 + 2 - env_steps < 16 * 6
        # Iterations of six train steps: checkpoints are within them, and the stopped run is resumed within one.
        assert sorted(CheckpointFiles(RunDir(tmp_path / 'whole').checkpoints).numbers()) == [60, 80, 96]
    run_in_parts(case, tmp_path / 'parts', 33)
    assert 'restored' in caplog.text and 'exported already' not in caplog.text, 'which it is at each resume'
    assert_same(tmp_path / 'whole', tmp_path / 'parts')


STEPPED = collections.Counter()  # the steps in each environment of these tests


class Corridor(gymnasium.Env):
    """Episodes of seven steps. Not all environments of these spaces are the same."""

    observation_space = gymnasium.spaces.Box(0.0, 10.0, (1,))
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self):
        self.left = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.left = 7
        return np.array([self.left], np.float32), {}

    def step(self, action):
        STEPPED['Corridor'] += 1
        self.left -= 1
        return np.array([self.left], np.float32), 1.0, self.left == 0, False, {}


class Slowed(gymnasium.Wrapper):
    """A wrapper that was not there before."""

    def step(self, action):
        STEPPED['Slowed'] += 1
        return super().step(action)


@pytest.fixture(scope='module')
def begun(tmp_path_factory):
    """The directory of a run that was stopped after its first train steps, in a Corridor."""
    root = tmp_path_factory.mktemp('begun') / 'run'
    stop = threading.Event()
    options = LearnerOptions(after_run=lambda result: stop.set())
    synchronous(**jobs.job_arguments(synchronous, {**in_corridor(root), 'learner_options': options, 'stop': stop}))
    return root


def in_corridor(root, make_one=Corridor, **changes):
    make_environment = functools.partial(vector_env.in_process, make_one)
    given = {'make_environment': make_environment, 'num_train_steps': 60, 'summary_interval_steps': None}
    return arguments('dqn', root) | given | changes


def make_large():
    """A Corridor in a wrapper, with more data than a checkpoint of these tests may have of two environments."""
    made = Slowed(Corridor())
    made.table = np.zeros(1 << 20, np.uint8)
    return made


@lanes.classic
@pytest.mark.parametrize(
    ('make_one', 'stepped', 'changed'),
    [
        # tests/core/composition_test.py has other differences.
        (make_large, {'Slowed', 'Corridor'}, f'class: {__name__}.Corridor -> {__name__}.Slowed'),
        (Corridor, {'Corridor'}, None),
    ],
    ids=['wrapper', 'the same'],
)
def test_a_continued_run_acts_in_the_environment_that_it_is_given(begun, tmp_path, caplog, make_one, stepped, changed):
    shutil.copytree(begun, tmp_path / 'run')
    STEPPED.clear()
    given = in_corridor(tmp_path / 'run', make_one, collect_options=CollectOptions(max_saved_gb=2e-3))
    with caplog.at_level('WARNING'):
        synchronous(**jobs.job_arguments(synchronous, given))
    assert set(STEPPED) == stepped
    lines = [line for line in caplog.messages if 'new episodes begin' in line]
    assert len(lines) == (changed is not None)
    too_large = 'no checkpoint can hold (they hold more than CollectOptions.max_saved_gb=0.002 in all): '
    assert (too_large in caplog.text) == (changed is not None)
    if changed:
        assert lines[0].startswith(f'got another environment than that of the checkpoint ({changed}')
    assert read_json(RunDir(tmp_path / 'run').train_result)['train_step'] == 60
    saved = (tmp_path / 'run').rglob('ckpt-60*')
    assert 0 < sum(path.stat().st_size for path in saved) < 1 << 20


@pytest.mark.slow
def test_says_that_it_begins_new_episodes_where_environments_cannot_be_saved(tmp_path, caplog):
    environments = functools.partial(gymnasium_env.make, 'CartPole-v1', vectorization='worker_processes')
    run_in_parts('ppo', tmp_path, 20, make_environment=environments)
    assert 'got environments that no checkpoint can hold (got environments in processes' in caplog.text
    assert 'begins new episodes' in caplog.text


@pytest.mark.slow
def test_a_replay_that_is_too_large_is_filled_again(tmp_path, caplog):
    replay = dataclasses.replace(REPLAY.replay, max_saved_gb=1e-6)
    run_in_parts('dqn', tmp_path, 20, experience=dataclasses.replace(REPLAY, replay=replay))
    assert 'more than max_saved_gb=1e-06: a resumed run fills it again' in caplog.text


@pytest.mark.slow
def test_a_killed_and_resumed_program_equals_an_undisturbed_one(tmp_path):
    def start(root):
        settings = (
            'Initial.seed=7',
            'StopConditions.num_train_steps=1500',
            'LearnerOptions.checkpoint_interval_steps=100',
        )
        flags = [
            f'--root_dir={root}',
            '--gin_file=dqn_cartpole',
            *(f'--gin_bindings=train.{each}' for each in settings),
        ]
        return forks.start('scripts', 'synchronous', *flags, log=tmp_path / 'log')

    assert start(tmp_path / 'whole').wait(240) == 0
    killed = start(tmp_path / 'killed')
    checkpoints = CheckpointFiles(RunDir(tmp_path / 'killed').checkpoints)
    wait_until(lambda: max(checkpoints.numbers(), default=0) >= 300, 'a checkpoint', 120, poll_secs=0.01)
    killed.kill()
    killed.wait(60)
    assert not RunDir(tmp_path / 'killed').train_result.exists()
    assert start(tmp_path / 'killed').wait(240) == 0
    assert_same(tmp_path / 'whole', tmp_path / 'killed')
