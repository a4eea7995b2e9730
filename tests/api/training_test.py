"""Complete runs as one call from Python."""

import concurrent.futures
import dataclasses
import functools
import gc
import json
import logging
import pathlib
import re
import threading
import typing

import gymnasium
import numpy as np
import pytest
from absl import logging as absl_logging

import tflearn
from tests.testing import forks, jobs, lanes, warm_parents, written_summaries
from tflearn.agents import dqn, sac
from tflearn.api import run_check, training
from tflearn.api.run_settings import RunSettings
from tflearn.core import background
from tflearn.core.errors import UserError
from tflearn.environments import gymnasium_env, vector_env
from tflearn.files.run_dir import read_json
from tflearn.jobs import session
from tflearn.jobs.collect_settings import CollectOptions
from tflearn.jobs.evaluate_settings import EvaluateOptions
from tflearn.jobs.policy_exports import ExportOptions
from tflearn.jobs.synchronous import synchronous
from tflearn.jobs.train_settings import GROUPS, Intervals
from tflearn.transforms import rewards, transformed

SMALL = {
    **jobs.SmallRun('unused').factories(),
    'num_train_steps': 60,
    'num_environments': 2,
    'num_episodes': 3,
    'export_interval_steps': 30,
    'exports': ExportOptions(('greedy_policy',)),
    'learner_options': tflearn.LearnerOptions(summaries=tflearn.SummaryOptions(None)),
}

CARTPOLE = functools.partial(gymnasium_env.make, 'CartPole-v1')


def test_a_run_gives_its_policy_and_its_returns_and_can_be_called_again(tmp_path, caplog, monkeypatch, capsys):
    caplog.set_level('INFO')
    monkeypatch.setattr(session, 'LOG_EVERY_SECS', 0.0)
    monkeypatch.setattr(session, '_REPORT_SECS', 0.0)
    seen = []

    def make_triggers(learner):
        return [tflearn.PeriodicAction(lambda step: seen.append((step, learner.collected())), every_steps=20)]

    options = tflearn.LearnerOptions(summaries=None, make_triggers=make_triggers)
    run = tflearn.train(**{**SMALL, 'learner_options': options}, root_dir=tmp_path, seed=1)
    assert (run.reason, run.train_step) == ('num_train_steps 60 reached', 60)
    name = r'tests\.api\.training_test\.\S+make_triggers in LearnerOptions\.make_triggers'
    assert re.search(rf'the run itself is fine; .*--gin_file, without .*/run.gin: got {name} for several', caplog.text)
    assert re.search(r'mean return \S+; [0-9.]+ train steps/s, \d+% waiting for data; loss ', caplog.text)
    assert run.env_steps >= 50
    assert run.run_dir.root == tmp_path
    assert [step // 20 for step, _ in seen] == [1, 2, 3]  # some train steps are taken together
    env_steps = [found['env_steps'] for _, found in seen]
    assert 0 < env_steps[0] < env_steps[1] < env_steps[2] <= run.env_steps
    assert seen[-1][1]['mean_return'] is not None and seen[-1][1]['episodes'] > 0
    assert [evaluation['train_step'] for evaluation in run.evaluations] == [0, 30, 60]
    assert [len(evaluation['returns']) for evaluation in run.evaluations] == [3, 3, 3]
    assert run.returns == tuple(np.mean(evaluation['returns']) for evaluation in run.evaluations)
    best = run.evaluations[int(np.argmax(run.returns))]
    assert run.best_return == best['mean_return'] == run.policy.metadata['evaluation']['mean_return']
    assert run.policy.train_step == best['train_step']
    with pytest.raises(dataclasses.FrozenInstanceError):
        run.train_step = 1
    environment = gymnasium.make('CartPole-v1')
    observation, _ = environment.reset(seed=1)
    assert environment.action_space.contains(run.policy(observation))

    again = tflearn.train(**SMALL, root_dir=tmp_path, seed=1)
    assert (again.evaluations, again.policy.path) == (run.evaluations, run.policy.path)

    ends = {'num_train_steps': None, 'max_env_steps': run.env_steps + 120}
    with monkeypatch.context() as plain:
        plain.setattr(logging.root, 'handlers', [])
        absl_logging.info('sets up logging, as when TensorFlow loads a policy')
        more = tflearn.train(**{**SMALL, **ends}, root_dir=tmp_path, seed=1)
        assert [type(handler) for handler in logging.root.handlers] == [logging.StreamHandler]
    assert 'the run continues' in capsys.readouterr().err
    assert more.reason == f'max_env_steps {run.env_steps + 120} reached'
    # 120 steps of the environment are 120 train steps of 8 draws each, since the replay has its first 50 items still.
    assert 60 + 110 <= more.train_step <= 60 + 130
    assert more.evaluations[:3] == run.evaluations, 'nothing that was there is lost'
    assert more.evaluations[-1]['train_step'] == more.train_step
    assert json.loads((tmp_path / 'DONE-1').read_text())['train_step'] == 60


class Counter(gymnasium.Env):
    """Ends after `max_steps`, or never; reports what an action costs."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, max_steps=None):
        self._max_steps, self._steps = max_steps, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._steps = 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self._steps += 1
        info = {'cost': 2.0 * self._steps, 'success': True}
        return np.ones(2, np.float32), 1.0, False, self._steps == self._max_steps, info


def of_counter(max_steps=None):
    make_environment = functools.partial(vector_env.in_process, functools.partial(Counter, max_steps))
    return {**SMALL, 'make_environment': make_environment, 'num_train_steps': 2, 'export_interval_steps': 2}


@lanes.classic
def test_an_environment_without_an_end_ends_the_evaluation_with_a_reason(tmp_path, caplog):
    options = EvaluateOptions('newest', max_steps_per_episode=40)
    run = tflearn.train(**of_counter(), root_dir=tmp_path, evaluate_options=options)
    last = run.evaluations[-1]
    assert (last['train_step'], last['returns'], last['mean_length']) == (2, [40.0] * 3, 40.0)
    assert last['incomplete'] == '3 of 3 episodes did not end within 40 steps (max_steps_per_episode)'
    assert run.policy.metadata['evaluation']['incomplete'] == last['incomplete']
    written = written_summaries.scalars(run.run_dir.summaries('evaluate'))
    assert (written['evaluate/mean_info/cost'][2], written['evaluate/mean_info_end/success'][2]) == (41.0, 1.0)
    assert 'the evaluation is incomplete: 3 of 3 episodes did not end within 40 steps' in caplog.text


@lanes.classic
def test_a_number_of_the_info_chooses_the_best_policy_and_ends_the_run(tmp_path, caplog):
    caplog.set_level('INFO')
    options = EvaluateOptions('each', target_metric='info_end/cost', lower_is_better=True, limits={'reward': 1.0})
    given = {**of_counter(max_steps=5), 'num_train_steps': 10**6, 'target_return': 10.0}
    run = tflearn.train(**given, root_dir=tmp_path, evaluate_options=options)
    assert run.reason.startswith('target info_end/cost 10 reached')
    metrics = {'reward': 1.0, 'info/cost': 6.0, 'info_end/cost': 10.0, 'info/success': 1.0, 'info_end/success': 1.0}
    assert [evaluation['metrics'] for evaluation in run.evaluations[:2]] == [metrics] * 2
    assert run.policy.metadata['evaluation']['metrics'] == metrics
    assert run.best_return == 5.0
    status = read_json(run.run_dir.status('evaluate'))
    assert (status['target_value'], status['best_target_value'], status['target']) == (10.0, 10.0, 10.0)
    assert 'of such means within 5.00 ... 5.00); info/cost 6' in caplog.text


@pytest.mark.parametrize(
    ('changes', 'error', 'message'),
    [
        ({'make_agent': None, 'root_dir': None}, TypeError, 'got no make_agent, root_dir; need'),
        ({'mode': 'processes'}, TypeError, r'got .*never.* in make_environment for several processes; need'),
        ({'gin_bindings': ['a.b = 1']}, TypeError, r"gin_bindings=\['a.b = 1'\] without a gin file"),
        ({'mode': 'fast'}, ValueError, "got mode='fast'; need one of synchronous, processes"),
        ({'make_environment': 'CartPole-v1'}, TypeError, "got make_environment='CartPole-v1'; need a function"),
        (
            {'make_environment': vector_env.in_process},
            TypeError,
            r'got make_environment=in_process, which cannot .* missing a required .*; need .*in_process, MyEnvironment',
        ),
        (
            {'make_agent': functools.partial(dqn.make_agent, networks=(8,))},
            TypeError,
            r"unexpected keyword argument 'networks' \(did you mean network\?\)",
        ),
        ({'experience': None, 'make_agent': lambda a, b, c: None}, TypeError, 'got no experience; need '),
        ({'experience': {}}, TypeError, r'got experience=\{\}; need a tflearn.Experience'),
        ({'num_episodes': 0}, ValueError, 'got num_episodes=0'),
        ({'intervals': Intervals()}, ValueError, 'got export_interval_steps and intervals; need one of them; put '),
        ({'max_sec': 3}, TypeError, r'got max_sec=...; did you mean max_secs\? need one of num_environments, '),
        ({'on_restored': print}, TypeError, 'got on_restored=...; '),
        (
            {'checkpoint_interval_steps': 100},
            TypeError,
            r'got checkpoint_interval_steps=...; need learner_options=LearnerOptions\(checkpoint_interval_steps=...\)$',
        ),
        (
            {'make_agent': functools.partial(sac.make_agent, gamma=0.9)},
            TypeError,
            r"'gamma'; need loss=SACLoss\(gamma=...\)$",
        ),
        ({'exports': ExportOptions(('raw_policy',))}, ValueError, "need 'greedy_policy' among its policies"),
        (
            {'experience': tflearn.Experience(replay=tflearn.Uniform(max_times_sampled=1))},
            ValueError,
            r'need Uniform\(',
        ),
        ({'root_dir': 'gs://bucket/run'}, ValueError, 'which is a URL'),
        ({'root_dir': 'runs/[x]'}, ValueError, r"got root_dir='runs/\[x\]', which is '/.*, with '\['; need a path"),
    ],
)
def test_bad_input_is_refused_before_any_work(tmp_path, changes, error, message):
    def never(**_):
        raise AssertionError('it began to work')

    given = {**SMALL, 'make_environment': never, 'root_dir': tmp_path / 'run', **changes}
    with pytest.raises(error, match=message):
        tflearn.train(**given)
    assert not list(tmp_path.rglob('*.*'))


@pytest.mark.parametrize(
    ('inner', 'message'),
    [
        (functools.partial(dqn.make_agent, networks=(8,)), r"'networks' \(did you mean network\?\); need a"),
        (lambda specs, train_step, experience, *, size: None, "missing a required .*argument: 'size'; need a function"),
        (lambda specs: None, 'too many positional arguments; need a function'),
        ('dqn', 'need a function, such as functools.partial'),
        (lambda *_: 3, 'that returned a int without policy, .*; need a TF-Agents agent'),
    ],
)
def test_a_factory_within_another_is_refused_in_one_line(tmp_path, inner, message):
    make_agent = functools.partial(transformed.make_agent, make_agent=inner, transforms=[rewards.Scale(2.0)])
    with pytest.raises(UserError, match=f'got (transformed.make_agent.)?make_agent.*{message}') as raised:
        tflearn.train(**{**SMALL, 'make_agent': make_agent}, root_dir=tmp_path)
    assert '\n' not in str(raised.value)


@lanes.classic
def test_training_waits_for_evaluations_in_the_loop_and_a_function_gets_their_episodes(tmp_path):
    """Training ends with the evaluation that reaches the target, however slow evaluations are."""
    taken, found = [], []

    def on_episode(episode):
        before = sum(taken)
        threading.Event().wait(0.2)
        found.append((sum(taken) - before, len(episode.observation) - len(episode.reward)))
        return {'number': len(found)}

    settings = {
        **SMALL,
        'num_episodes': 2,
        'target_return': 3.0,
        'evaluate_options': EvaluateOptions('in_loop', target_metric='custom/number', on_episode=on_episode),
        'learner_options': tflearn.LearnerOptions(after_run=lambda result: taken.append(result.num_steps)),
    }
    run = tflearn.train(**settings, root_dir=tmp_path, seed=1)
    steps = [evaluation['train_step'] for evaluation in run.evaluations]
    assert steps == [0, run.train_step, run.train_step]
    assert 30 <= run.train_step < 40
    assert run.reason == f'target custom/number 3 reached at train step {run.train_step}'
    assert found == [(0, 1)] * 6, 'no train step is taken meanwhile; an episode has its last observation'
    assert [evaluation['metrics']['custom/number'] for evaluation in run.evaluations] == [1.5, 3.5, 5.5]


@lanes.classic
def test_an_error_in_an_evaluation_ends_the_run(tmp_path):
    environments = []

    def second_fails(**arguments):
        environments.append(SMALL['make_environment'](**arguments))
        if len(environments) == 2:
            raise ValueError('no second one')
        return environments[0]

    given = {**SMALL, 'make_environment': second_fails, 'num_train_steps': 10**6}
    before = set(threading.enumerate())
    with pytest.raises(ValueError, match='no second one'):
        tflearn.train(**given, root_dir=tmp_path)
    environments.clear()  # each has a thread that ends with it
    gc.collect()
    for thread in set(threading.enumerate()) - before:
        if isinstance(thread, background.Thread):
            thread.join(60.0)
            assert not thread.is_alive(), thread.name
    assert read_json(tflearn.RunDir(tmp_path).status('evaluate'))['state'] == 'failed: no second one'
    broken = functools.partial(gymnasium_env.make, 'NoSuch-v1')
    with pytest.raises(ValueError, match='NoSuch'):
        tflearn.train(**{**given, 'make_environment': broken}, root_dir=tmp_path / 'broken')
    assert 'NoSuch' in read_json(tflearn.RunDir(tmp_path / 'broken').status('train'))['state']
    assert list(tflearn.RunDir(tmp_path).checkpoints.glob('ckpt-*.index')), 'a call that goes on begins with it'


@pytest.mark.parametrize(
    ('arguments', 'error', 'message'),
    [
        ({'gin_file': 'dqn_cartpol'}, ValueError, "got gin_file='dqn_cartpol'; did you mean dqn_cartpole"),
        ({'num_train_steps': 9, 'seed': 1}, TypeError, 'got a gin file and num_train_steps, seed; need that bound'),
        ({'gin_bindings': 'a.b = 1'}, TypeError, "got gin_bindings='a.b = 1'; need a list"),
        ({'gin_bindings': ['train.train.num_step = 1']}, ValueError, 'num_step'),
        ({'gin_bindings': ['train.train.num_step = 1'], 'mode': 'synchronous'}, ValueError, 'num_step'),
        ({'num_collectors': 0}, ValueError, 'got num_collectors=0'),
        ({'num_collectors': 2, 'mode': 'synchronous'}, ValueError, 'got num_collectors=2'),
    ],
)
def test_a_wrong_configuration_is_refused_before_any_work(tmp_path, monkeypatch, arguments, error, message):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(pathlib.Path(__file__).parents[2])
    with warm_parents.forked(warm_parents.loaded()), pytest.raises(error, match=message):
        tflearn.train(**{'gin_file': 'dqn_cartpole', **arguments})
    assert not list(tmp_path.iterdir())


def test_processes_need_the_main_thread(tmp_path):
    with concurrent.futures.ThreadPoolExecutor() as pool, pytest.raises(RuntimeError, match='on another thread'):
        pool.submit(tflearn.train, 'dqn_cartpole', root_dir=tmp_path).result()


def test_the_settings_that_type_checkers_know_are_those_of_the_job():
    known = typing.get_type_hints(RunSettings, include_extras=True)
    of_job = typing.get_type_hints(synchronous, include_extras=True)
    given = {'run', 'make_environment', 'make_agent', 'experience', 'stop_conditions', 'return'}
    wanted = {name: kind for name, kind in of_job.items() if name not in given}
    for group in {'stop_conditions', *wanted} & GROUPS.keys():
        wanted |= typing.get_type_hints(GROUPS[group], include_extras=True)
    del wanted['num_train_steps']
    assert known == wanted


@pytest.mark.parametrize(('interval', 'warns'), [(60, True), (59, False)])
def test_a_target_that_nothing_evaluates_before_the_end_is_named(tmp_path, caplog, interval, warns):
    given = {**SMALL, 'num_episodes': 1, 'target_return': 2.0, 'export_interval_steps': interval}
    training.of_objects(tmp_path, given)
    assert ('the target cannot end the run' in caplog.text) == warns


class Stopping:
    """A trigger that stops its run once, when it passes 20 train steps."""

    def __init__(self, learner):
        self._learner = learner

    def __call__(self, before, after):
        if before < 20 <= after:
            self._learner.stop('enough of it')
        return False


def make_triggers(learner):
    return [Stopping(learner)]


@lanes.classic
def test_a_run_that_its_program_stopped_goes_on_when_a_stop_condition_is_raised(tmp_path):
    options = tflearn.LearnerOptions(summaries=None, make_triggers=make_triggers)
    settings = {**SMALL, 'num_episodes': 1, 'learner_options': options, 'root_dir': tmp_path, 'seed': 1}
    run = tflearn.train(**settings)
    assert run.reason == 'learner.stop: enough of it' and 20 <= run.train_step < 60
    assert run.evaluations[-1]['train_step'] == run.train_step, 'its last policy is exported and evaluated'
    again = tflearn.train(**settings)
    assert (again.train_step, (tmp_path / 'DONE-1').exists()) == (run.train_step, False)
    assert run.run_dir.objects.exists(), 'programs find its environment there'
    more = tflearn.train(**{**settings, 'num_train_steps': 70})
    assert (more.reason, more.train_step) == ('num_train_steps 70 reached', 70)


@lanes.classic
def test_evaluations_that_get_no_better_end_a_run_which_goes_on_with_more_patience(tmp_path):
    limits = {'num_train_steps': 200, 'evaluate_options': EvaluateOptions('in_loop')}
    settings = {**of_counter(5), **limits, 'root_dir': tmp_path}
    run = tflearn.train(**settings, plateau=tflearn.Plateau(patience=2))
    assert run.reason == 'Plateau.patience 2 reached: the best evaluation is that of train step 0'
    assert [evaluation['train_step'] for evaluation in run.evaluations] == [0, 2, 4]
    again = tflearn.train(**settings, plateau=tflearn.Plateau(patience=2))
    assert (again.evaluations, (tmp_path / 'DONE-1').exists()) == (run.evaluations, False)
    more = tflearn.train(**settings, plateau=tflearn.Plateau(patience=4, min_improvement=0.5))
    assert more.reason.startswith('Plateau.patience 4 reached')
    assert [evaluation['train_step'] for evaluation in more.evaluations] == [0, 2, 4, 6, 8]


def test_videos_of_evaluations_are_of_the_runs_environment(tmp_path):
    given = {**SMALL, 'make_environment': CARTPOLE, 'record_video': True}
    arguments, evaluation = training.of_objects(tmp_path, given)
    assert 'window.record.make_environment = @' in training.gin_text(arguments, evaluation)
    assert 'record_video' not in training.of_objects(tmp_path, {**given, 'record_video': False})[1]


@pytest.mark.filterwarnings('ignore')  # moviepy's own
def test_a_run_records_videos_of_its_evaluations(tmp_path):
    pytest.importorskip('moviepy', reason='needs pip install ".[video]"')
    run = tflearn.train(**{**SMALL, 'make_environment': CARTPOLE}, root_dir=tmp_path, record_video=True)
    videos = {path.parent.name for path in run.run_dir.videos.rglob('*.mp4')}
    assert videos == {f'train_step_{run.evaluations[0]["train_step"]}'}, 'the first of ten evaluations'


@lanes.classic
def test_programs_know_the_environment_and_the_conditions_of_a_run_of_objects(tmp_path):
    limits = {'max_env_steps': 500, 'collect_options': CollectOptions(max_env_steps=7), 'target_return': 4.0}
    arguments, evaluation = training.of_objects(tmp_path, {**SMALL, **limits, 'plateau': tflearn.Plateau(5)})
    path = tmp_path / 'run.gin'
    path.write_text(training.gin_text(arguments, evaluation))
    jobs_of_run = [f'tflearn.jobs.{job}' for job in ('train', 'collect', 'evaluate')]
    found = run_check.check(run_check.Question(str(path), (), jobs_of_run)).conditions
    ended = forks.run('scripts.evaluate', f'--root_dir={tmp_path}', '--policy=random', '--episodes=2', timeout=60)
    assert 'random: mean return' in ended.stdout, ended.stderr
    path.rename(tmp_path / 'other.gin')
    ended = forks.run('scripts.evaluate', f'--root_dir={tmp_path}', '--policy=random', timeout=60)
    assert 'or a run in --root_dir that has its own' in ended.stderr
    (tmp_path / 'policies').mkdir()
    ended = forks.run('scripts.evaluate', f'--root_dir={tmp_path}', timeout=60)
    assert f'got no --gin_file, and {tmp_path} has no run.gin, which tflearn.train writes if' in ended.stderr
    assert found == {
        'num_train_steps': 60, 'max_env_steps': 500, 'CollectOptions.max_env_steps': 7, 'target_return': 4.0,
        'Plateau.patience': 5,
    }  # fmt: skip
