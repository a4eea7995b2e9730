"""The evaluate job on CartPole with exported policies, for every way in which a run can end."""

import functools
import json
import math
import threading

import gymnasium
import numpy as np
import pytest
import tensorflow as tf
from gymnasium.wrappers import RecordVideo

from tests import fakes
from tests.environments.example_environments import SlowResets
from tests.testing import example_policies, file_handles, written_summaries
from tflearn.core import side_tasks
from tflearn.core.types import specs_of
from tflearn.core.waiting import wait_until
from tflearn.environments import gymnasium_env, vector_env, window
from tflearn.files import temporary
from tflearn.files.run_dir import RunDir, read_json, write_json
from tflearn.jobs import run as job_run
from tflearn.jobs.evaluate import evaluate
from tflearn.jobs.evaluate_settings import EvaluateOptions, Videos
from tflearn.policies import versions
from tflearn.policies.exporter import PolicyExporter

make_cart_pole = functools.partial(gymnasium_env.make, 'CartPole-v1', max_episode_steps=100)

# Weights of cart position, its speed, pole angle, its speed.
BALANCES = (0.1, 0.2, 1.0, 1.0)  # 100 steps, which is all there are
FALLS = (0.0, 0.0, 0.0, 0.0)  # about 10
RESULT = {'reason': 'num_train_steps 9 reached', 'train_step': 9, 'env_steps': 90, 'seconds': 1.5}


class Run:
    """A run directory with a train job's files in it, and the evaluate job in a thread."""

    def __init__(self, root, linear, exporter):
        self.dir, self.linear, self.exporter = RunDir(root), linear, exporter
        self.exporter._directory = self.dir.greedy_policy
        self.stop = threading.Event()
        self.errors = []
        self._thread = None

    def export(self, train_step, weights):
        self.linear.set(weights)
        return self.exporter.export(train_step, {'env_steps': 10 * train_step})

    def start(self, **arguments):
        defaults = {
            'run': job_run.Run(self.dir, self.stop, connect_timeout_secs=30.0),
            'make_environment': make_cart_pole,
            'num_episodes': 4,
            'num_environments': 2,
            'idle_timeout_secs': 30.0,
            'seed': 0,
        }
        self._thread = threading.Thread(target=self._evaluate, args=(defaults | arguments,), daemon=True)
        self._thread.start()

    def _evaluate(self, arguments):
        try:
            evaluate(**arguments)
        except Exception as error:
            self.errors.append(error)

    def join(self, timeout_secs=240.0):
        self._thread.join(timeout_secs)
        assert not self._thread.is_alive()
        return self.errors

    def evaluations(self):
        path = self.dir.evaluations
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def wait_for_evaluations(self, count):
        wait_until(lambda: len(self.evaluations()) >= count, f'{count} evaluations', 60)
        return self.evaluations()


@pytest.fixture(scope='module')
def exporting(tmp_path_factory):
    """A policy whose weights each export sets, and its exporter, which has compared a first version with it."""
    specs = specs_of(make_cart_pole)
    linear = example_policies.Linear(specs.observation, specs.action)
    exporter = PolicyExporter(linear.policy, tmp_path_factory.mktemp('first'), keep_last=2)
    exporter.export(0, {})
    return linear, exporter


@pytest.fixture
def run(tmp_path, exporting):
    run = Run(tmp_path / 'run', *exporting)
    yield run
    run.stop.set()
    if run._thread:
        run.join()


def test_run_ends_with_its_last_policy(run):
    run.start()
    run.export(0, FALLS)
    run.wait_for_evaluations(1)
    run.export(9, BALANCES)
    write_json(run.dir.train_result, RESULT)
    assert run.join() == []
    first, last = run.evaluations()
    assert list(first)[:5] == ['train_step', 'env_steps', 'mean_return', 'num_episodes', 'returns']
    assert (first['train_step'], first['env_steps'], first['num_episodes'], len(first['returns'])) == (0, 0, 4, 4)
    assert first['mean_return'] == sum(first['returns']) / 4 < 20
    assert last['returns'] == [100.0] * 4
    assert read_json(run.dir.done) == {
        **RESULT,
        'policy': 'policies/greedy_policy/9',
        'evaluation': {
            'train_step': 9,
            'env_steps': 90,
            'mean_return': 100.0,
            'num_episodes': 4,
            'returns': [100.0] * 4,
            'metrics': {'reward': 1.0},
        },
        'best_policy': 'policies/greedy_policy/9',
    }
    status = read_json(run.dir.status('evaluate'))
    assert status['state'].startswith('finished')
    assert (status['train_step'], status['mean_return'], status['best_mean_return']) == (9, 100.0, 100.0)
    assert run.dir.learning_curve.stat().st_size > 1000
    assert run.dir.evaluation_image.samefile(run.dir.learning_curve)
    written = written_summaries.scalars(run.dir.summaries('evaluate'))
    assert written['evaluate/mean_return'] == {0: first['mean_return'], 9: 100.0}
    assert written['evaluate_by_env_steps/mean_return'] == {0: first['mean_return'], 90: 100.0}
    low, high = first['mean_return_interval']
    assert low < first['mean_return'] < high
    assert written['evaluate/mean_return_low'][0] == pytest.approx(low)
    assert not run.dir.stop_request.exists()


def test_without_a_free_file_handle_it_looks_for_policies_again(run):
    run.start()
    run.export(0, FALLS)
    run.wait_for_evaluations(1)
    state = lambda: (read_json(run.dir.status('evaluate')) or {}).get('state')  # noqa: E731
    wait_until(lambda: state() == 'waiting for a policy', 'the end of the evaluation', 60)
    before = side_tasks.failures.total()
    with file_handles.none_free():
        wait_until(lambda: side_tasks.failures.total() > before + 1, 'two attempts', 60)
    run.export(9, BALANCES)
    write_json(run.dir.train_result, RESULT)
    assert run.join() == []
    assert [evaluation['train_step'] for evaluation in run.evaluations()] == [0, 9]


class Fragile(gymnasium.Wrapper):
    """Raises in each of the steps `raises_in`, counted over all episodes."""

    def __init__(self, env, raises_in):
        super().__init__(env)
        self._raises_in = raises_in
        self._steps = 0

    def step(self, action):
        self._steps += 1
        if self._steps in self._raises_in:
            self._raises_in.remove(self._steps)
            raise OSError('lost the simulator')
        return super().step(action)


def test_failed_episode_adds_nothing_to_the_next_one(run):
    raises_in = {7}  # the policy's episodes last 8 to 10 steps

    def make_environment(num_environments, seed):
        return vector_env.in_process(lambda: Fragile(gymnasium.make('CartPole-v1'), raises_in), num_environments, seed)

    run.export(0, FALLS)
    run.start(make_environment=make_environment, target_return=14.0, num_environments=1)
    (evaluation,) = run.wait_for_evaluations(1)
    assert max(evaluation['returns']) < 14
    assert len(evaluation['returns']) == 4
    assert evaluation['dropped_episodes'] == 1
    status = lambda: read_json(run.dir.status('evaluate')) or {}  # noqa: E731
    wait_until(lambda: status().get('dropped_episodes') == 1, 'the status', 60)


def test_a_video_or_mark_that_fails_does_not_end_the_job(run):
    """What cannot be marked as the best is marked with the next policy."""

    def record(folder):
        raise OSError('no space left')

    # A link to itself, to which nothing can be written.
    written = temporary.temporary(run.export(0, BALANCES) / versions.METADATA)
    written.symlink_to(written.name)
    run.start(record_video=record)
    run.wait_for_evaluations(1)
    mark = f'mark the best policy in {run.dir.greedy_policy}'
    wait_until(lambda: side_tasks.failures[mark], 'the failed mark', 30.0)
    written.unlink()
    run.export(1, FALLS)
    run.wait_for_evaluations(2)
    wait_until(lambda: versions.best_version(run.dir.greedy_policy) == 0, 'the mark', 30.0)
    assert side_tasks.failures[f'record videos in {run.dir.videos}'] == 1
    write_json(run.dir.train_result, RESULT)
    assert run.join() == []


def test_a_version_that_cannot_be_kept_is_confirmed(run):
    """No room for the mark, say: here it is a link to itself, to which nothing can be written."""
    version = run.export(0, BALANCES)
    (version / versions.KEPT).symlink_to(versions.KEPT)
    run.start(target_return=95.0)
    wait_until(run.dir.stop_request.exists, 'the request', 60.0)
    assert side_tasks.failures[f'mark {version} as {versions.KEPT}'] == 1
    write_json(run.dir.train_result, RESULT)
    assert run.join() == []


def test_reports_while_its_environments_are_reset(run):
    status = run.dir.status('evaluate')

    def make_environment(num_environments, seed):
        slow = lambda: SlowResets(0.8, status, gymnasium.make('CartPole-v1'))  # noqa: E731
        return vector_env.in_process(slow, num_environments, seed)

    run.export(0, FALLS)
    run.start(make_environment=make_environment, num_environments=4)
    run.wait_for_evaluations(1)
    assert SlowResets.reported_meanwhile(status, 4)


def test_target_reached_twice_ends_training(run):
    run.export(3, BALANCES)
    run.start(target_return=95.0)
    request = wait_until(lambda: read_json(run.dir.stop_request), 'the stop request', 60)
    assert request['reason'].startswith('target_return 95 reached')
    # The train job continues for a while; it must not prune the run's result.
    for train_step in (4, 5, 6, 7):
        run.export(train_step, FALLS)
    write_json(run.dir.train_result, {**RESULT, 'reason': request['reason']})
    assert run.join() == []
    first, second = run.evaluations()
    assert first['train_step'] == second['train_step'] == 3
    done = read_json(run.dir.done)
    assert done['reason'] == request['reason']
    assert done['train_step'] == 9
    assert done['evaluation']['train_step'] == 3
    assert (run.dir.root / done['policy'] / 'saved_model.pb').exists()
    assert versions.versions(run.dir.greedy_policy) == [3, 6, 7]
    assert versions.best_version(run.dir.greedy_policy) == 3


def test_target_reached_once_does_not_end_training(run):
    linear = example_policies.Linear(fakes.OBSERVATION_SPEC, fakes.ACTION_SPEC)
    # Acts 1, which earns 1, in the first episode only.
    linear.set((-1.0, 0.0), bias=0.5)
    version = PolicyExporter(linear.policy, run.dir.greedy_policy).export(0, {'env_steps': 0})
    write_json(run.dir.train_result, RESULT)
    run.start(make_environment=fakes.make_environment, num_episodes=2, target_return=3.5)
    assert run.join() == []
    assert [evaluation['mean_return'] for evaluation in run.evaluations()] == [3.5, 0.0]
    assert not run.dir.stop_request.exists()
    assert not (version / 'KEPT').exists()
    done = read_json(run.dir.done)
    assert done['reason'] == RESULT['reason']
    assert done['evaluation']['mean_return'] == 0.0


def test_job_killed_after_its_request_finishes_the_run(run):
    run.export(3, BALANCES)
    evaluation = {'train_step': 3, 'env_steps': 30, 'mean_return': 99.0, 'num_episodes': 1, 'returns': [99.0]}
    write_json(run.dir.stop_request, {'reason': 'target_return 95 reached', 'evaluation': evaluation})
    write_json(run.dir.train_result, RESULT)
    run.start(target_return=95.0)
    assert run.join() == []
    assert run.evaluations() == []
    assert read_json(run.dir.done)['evaluation'] == evaluation


def test_evaluates_each_version_once_in_order_and_keeps_the_best(run):
    for train_step, weights in ((5, FALLS), (40, BALANCES), (300, FALLS)):
        exported = run.export(train_step, weights)
        versions.keep(exported)
    run.start(options=EvaluateOptions(follow='each'))
    run.wait_for_evaluations(3)
    for train_step in (5, 40, 300):
        versions.unkeep(run.dir.greedy_policy / str(train_step))
    for count, train_step in enumerate((1000, 2000, 3000), start=4):
        run.export(train_step, FALLS)
        run.wait_for_evaluations(count)
    write_json(run.dir.train_result, RESULT)
    assert run.join() == []
    assert [evaluation['train_step'] for evaluation in run.evaluations()] == [5, 40, 300, 1000, 2000, 3000]
    assert versions.versions(run.dir.greedy_policy) == [40, 2000, 3000]
    best = read_json(run.dir.greedy_policy / 'best' / 'metadata.json')
    recorded = run.evaluations()[1]
    assert (best['train_step'], best['env_steps'], best['evaluation']['mean_return']) == (40, 400, 100.0)
    assert best['evaluation'].items() <= recorded.items() and best['exported_at'] == recorded['exported_at']
    assert 'evaluation' not in read_json(run.dir.greedy_policy / '3000' / 'metadata.json')
    done = read_json(run.dir.done)
    assert (done['policy'], done['best_policy']) == ('policies/greedy_policy/3000', 'policies/greedy_policy/40')


def test_a_policy_above_a_limit_is_not_the_best_and_reaches_no_target(run):
    for train_step, weights in ((1, BALANCES), (2, FALLS), (3, BALANCES)):
        versions.keep(run.export(train_step, weights))
    write_json(run.dir.train_result, RESULT)
    run.start(options=EvaluateOptions('each', limits={'length': 50.0}), target_return=95.0)
    assert run.join() == []
    assert [evaluation['mean_return'] > 95 for evaluation in run.evaluations()] == [True, False, True]
    assert not run.dir.stop_request.exists()
    assert versions.best_version(run.dir.greedy_policy) == 2


def test_skips_policy_that_is_removed_before_its_evaluation(run, monkeypatch):
    best, keep = run.export(1, FALLS), versions.keep
    pruned = {best: versions.remove}
    monkeypatch.setattr(versions, 'keep', lambda path, marker: (pruned.get(path, id)(path), keep(path, marker))[1])
    run.start()
    wait_until(lambda: not best.exists(), 'the removal', 60)
    run.export(2, FALLS)
    write_json(run.dir.train_result, RESULT)
    assert run.join() == []
    assert [evaluation['train_step'] for evaluation in run.evaluations()] == [2]


def test_random_actions_on_request(run):
    run.export(9, BALANCES)
    write_json(run.dir.train_result, RESULT)
    run.start(options=EvaluateOptions(epsilon=1.0))
    assert run.join() == []
    (evaluation,) = run.evaluations()
    assert evaluation['mean_return'] < 60


OF_NAME = functools.partial(window.record, functools.partial(gymnasium_env.make, 'CartPole-v1'))


def of_a_wrapper(folder):
    return RecordVideo(gymnasium.make('CartPole-v1', render_mode='rgb_array'), folder)


@pytest.mark.filterwarnings('ignore')  # pygame's and moviepy's own
@pytest.mark.parametrize('record', [OF_NAME, of_a_wrapper])
def test_video_on_request(run, record):
    pytest.importorskip('moviepy', reason='needs pip install ".[video]"')
    run.export(9, FALLS)
    write_json(run.dir.train_result, RESULT)
    run.start(record_video=record, options=EvaluateOptions(videos=Videos(episodes=2)))
    assert run.join() == []
    (evaluation,) = run.evaluations()
    assert evaluation['num_episodes'] == 4
    videos = sorted(path.name for path in (run.dir.videos / 'train_step_9').iterdir())
    assert videos == ['rl-video-episode-0.mp4', 'rl-video-episode-1.mp4']


def test_stop_ends_a_running_evaluation(run):
    run.export(3, BALANCES)
    run.start(num_episodes=1_000_000)
    status = lambda: read_json(run.dir.status('evaluate')) or {}  # noqa: E731
    first = wait_until(lambda: status().get('evaluation_steps') and status(), 'the evaluation', 60)
    assert (first['state'], first['episodes_wanted']) == ('running', 1_000_000)
    then = wait_until(lambda: status()['time'] > first['time'] and status(), 'the next sign of life', 60)
    assert then['evaluation_steps'] > first['evaluation_steps']
    run.stop.set()
    assert run.join() == []  # a million episodes take hours
    assert run.evaluations() == []
    assert read_json(run.dir.status('evaluate'))['state'] == 'stopped'
    assert not run.dir.done.exists()


def test_restarted_job_continues_where_it_stopped(run):
    run.export(1, FALLS)
    run.start()
    run.wait_for_evaluations(1)
    run.stop.set()
    run.join()
    with run.dir.evaluations.open('a') as file:
        file.write('{"train_step": 2, "env_st')
    run.stop.clear()
    run.start()
    run.export(3, FALLS)
    run.wait_for_evaluations(2)
    write_json(run.dir.train_result, RESULT)
    assert run.join() == []
    assert [evaluation['train_step'] for evaluation in run.evaluations()] == [1, 3]
    assert read_json(run.dir.done)['evaluation']['train_step'] == 3


def test_retrained_step_is_evaluated_again(run):
    run.export(8, FALLS)
    run.export(9, FALLS)
    run.start()
    run.wait_for_evaluations(1)
    # The train job is killed and continues from its checkpoint of step 8.
    assert run.exporter.drop_newer_than(8) == [9]
    run.wait_for_evaluations(2)
    run.export(9, BALANCES)
    run.wait_for_evaluations(3)
    write_json(run.dir.train_result, RESULT)
    assert run.join() == []
    assert [evaluation['train_step'] for evaluation in run.evaluations()] == [9, 8, 9]
    assert read_json(run.dir.done)['evaluation']['mean_return'] == 100.0


def test_finished_run_is_left_alone(run):
    write_json(run.dir.done, {'reason': 'num_train_steps 9 reached', 'train_step': 9})
    run.export(1, FALLS)
    run.start()
    assert run.join(10) == []
    assert not run.dir.evaluations.exists()


def test_rejects_invalid_arguments(run, tmp_path):
    arguments = {'run': job_run.Run(run.dir, run.stop, connect_timeout_secs=0.2), 'make_environment': make_cart_pole}
    with pytest.raises(ValueError, match='without make_agent and experience'):
        evaluate(**arguments, options=EvaluateOptions(follow='weights'))
    with pytest.raises(ValueError, match="need follow='served' and served_at='host:port' together"):
        EvaluateOptions(follow='served')
    with pytest.raises(ValueError, match="target_metric='sucess'; need return, length, reward, return_<i>, info/<key>"):
        EvaluateOptions(target_metric='sucess')
    with pytest.raises(ValueError, match="got EvaluateOptions.limits='cost'; need return, .*info/<key>"):
        EvaluateOptions(limits={'cost': 1.0})
    with pytest.raises(ValueError, match='got EvaluateOptions.limits=0.1; need a dict'):
        EvaluateOptions(limits=0.1)
    with pytest.raises(ValueError, match="got EvaluateOptions.follow='in_loop' in a process of its own"):
        evaluate(**arguments, options=EvaluateOptions(follow='in_loop'))
    with pytest.raises(TimeoutError, match=str(run.dir.greedy_policy)):
        evaluate(**arguments)
    write_json(run.dir.train_result, RESULT)
    with pytest.raises(ValueError, match='finished without a policy'):
        evaluate(**arguments)
    run.export(1, FALLS)
    with pytest.raises(ValueError, match=r'float32\[4\].*need|float32\[4\].*environment has'):
        evaluate(**{**arguments, 'make_environment': fakes.make_environment})
    line = '{"train_step": 1, "mean_return": 1.0}'
    run.dir.evaluations.write_text(f'{line}\nnonsense\n{line}\n')
    with pytest.raises(ValueError, match='line 2'):
        evaluate(**arguments)


# The evaluator's returns are those of a plain loop over gymnasium and the SavedModel.

NUM_EPISODES = 24
NUM_ENVIRONMENTS = 5
T_QUANTILE = 2.069  # of 97.5% with 23 degrees of freedom
SEED = 7


def returns_of_a_plain_loop(path, num_episodes, seed):
    """Uses no code of this project."""
    act = tf.saved_model.load(str(path)).signatures['serving_default']
    environment = gymnasium.make('CartPole-v1')
    returns = []
    for episode in range(num_episodes):
        observation, _ = environment.reset(seed=seed if episode == 0 else None)
        total, ended = 0.0, False
        while not ended:
            action = act(observation=tf.constant(observation[None]))['action'].numpy()[0]
            observation, reward, terminated, truncated, _ = environment.step(action)
            total, ended = total + reward, terminated or truncated
        returns.append(total)
    environment.close()
    return returns


def test_returns_equal_those_of_a_plain_loop(tmp_path):
    run_dir = RunDir(tmp_path)
    make = functools.partial(gymnasium_env.make, 'CartPole-v1', vectorization='in_process')
    specs = specs_of(make)
    linear = example_policies.Linear(specs.observation, specs.action)
    linear.set((0.0, 0.0, 1.0, 0.0))  # uses only the angle: the pole falls after about 40 steps, with some variance
    path = PolicyExporter(linear.policy, run_dir.greedy_policy).export(1, {'env_steps': 2})
    write_json(run_dir.train_result, {'reason': 'enough', 'train_step': 1, 'env_steps': 2, 'seconds': 3.0})
    evaluate(
        run=job_run.Run(run_dir, connect_timeout_secs=10.0),
        make_environment=make,
        num_episodes=NUM_EPISODES,
        num_environments=NUM_ENVIRONMENTS,
        seed=SEED,
    )
    (evaluation,) = map(json.loads, run_dir.evaluations.read_text().splitlines())
    low, high = evaluation['mean_return_interval']
    quotas = [NUM_EPISODES // NUM_ENVIRONMENTS + (i < NUM_EPISODES % NUM_ENVIRONMENTS) for i in range(NUM_ENVIRONMENTS)]
    plain = [value for i, quota in enumerate(quotas) for value in returns_of_a_plain_loop(path, quota, SEED + i)]
    radius = T_QUANTILE * np.std(plain, ddof=1) / math.sqrt(NUM_EPISODES)
    assert evaluation['returns'] == plain
    assert np.std(plain) > 3, 'equal returns would show nothing'
    assert high - low == pytest.approx(2 * radius, rel=0.01)


def test_several_processes_need_exported_versions(run):
    served = EvaluateOptions(follow='served', served_at='localhost:1')
    run.start(num_processes=2, options=served)
    (error,) = run.join()
    assert str(error) == "got num_processes=2 with EvaluateOptions.follow='served'; need 1"
