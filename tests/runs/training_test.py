"""Runs of `tflearn.train` in several processes, and in a program that is interrupted or starts them again."""

import functools
import pathlib
import re
import signal

import pytest

import tflearn
from tests.api.training_test import SMALL
from tests.testing import forks, jobs, lanes, warm_parents
from tflearn.agents import ppo
from tflearn.core.waiting import wait_until
from tflearn.files.numbered import CheckpointFiles
from tflearn.jobs.train_settings import Intervals
from tflearn.optimization.optimizers import OptimizerOptions


@pytest.fixture
def programs(monkeypatch):
    """Makes the programs of the jobs importable, whose warm parent is a fork."""
    monkeypatch.syspath_prepend(pathlib.Path(__file__).parents[2])
    with warm_parents.forked(warm_parents.loaded()):
        yield


@lanes.classic
@pytest.mark.usefixtures('programs')
def test_python_objects_in_several_processes(tmp_path):
    """Of an agent that learns from a queue: the objects are written as a gin file, which the programs read."""
    experience = tflearn.Experience(
        tflearn.Slicing(9, 8, cross_episodes=True),
        tflearn.Queue(max_size=8, versions_ahead=1, training=tflearn.Iteration(2, 8)),
        tflearn.BatchItems(2),
    )
    given = {**SMALL, 'make_agent': functools.partial(ppo.make_agent, optimizer=OptimizerOptions({'ppo': 1e-3}))}
    given |= {'experience': experience, 'num_train_steps': 40, 'max_secs': 300.0, 'seed': 5}
    run = tflearn.train(**given, root_dir=tmp_path, mode='processes', num_collectors=2)
    assert (run.reason, run.train_step) == ('num_train_steps 40 reached', 40)
    assert [len(evaluation['returns']) for evaluation in run.evaluations] == [3] * len(run.evaluations)
    assert (run.run_dir.status('collect_1')).exists()
    text = run.run_dir.config.read_text()
    assert "learning_rate = {'ppo': 0.001}" in text and 'publish_interval_steps = 1\n' in text
    given['intervals'] = Intervals(4, given.pop('export_interval_steps'))
    again = tflearn.train(**given, root_dir=tmp_path, mode='processes', num_collectors=2)
    assert again.evaluations == run.evaluations
    assert 'publish_interval_steps = 4\n' in (tmp_path / 'run.gin').read_text()


PROGRAM = """
import functools, pathlib, signal, sys, threading
import gymnasium
import tflearn
from tflearn.agents import dqn
from tflearn.environments import vector_env
from tflearn.jobs.policy_exports import ExportOptions
from tflearn.networks.networks import NetworkOptions



class Robot(gymnasium.Wrapper):
    def __init__(self):
        super().__init__(gymnasium.make('CartPole-v1'))

    def close(self):
        super().close()
        saved = len(list(pathlib.Path('run').glob('**/ckpt-*.index')))
        print(threading.current_thread().name, 'closes with', saved, 'checkpoints', file=sys.stderr)


signal.signal(signal.SIGINT, signal.SIG_IGN)  # as a shell's background job has it
run = tflearn.train(
    make_environment=functools.partial(vector_env.in_process, Robot),
    num_environments=1,
    make_agent=functools.partial(dqn.make_agent, network=NetworkOptions((8,))),
    experience=tflearn.Experience(
        replay=tflearn.Uniform(min_size=50, samples_per_insert=8.0), batch=tflearn.BatchItems(8)
    ),
    num_train_steps=int(sys.argv[1]),
    num_episodes=2,
    export_interval_steps=50,
    exports=ExportOptions(('greedy_policy',)),
    root_dir='run',
)
"""


@lanes.classic
def test_signals_close_the_environment_and_save_checkpoints_and_the_same_call_goes_on(tmp_path):
    program, log, run_dir = tmp_path / 'program.py', tmp_path / 'log', tflearn.RunDir(tmp_path / 'run')
    program.write_text(PROGRAM)
    newest = 0
    for num_saved, number in enumerate((signal.SIGINT, signal.SIGTERM)):
        process = forks.start(str(program), 10**7, log=log, cwd=tmp_path)
        try:
            steps = lambda: map(int, re.findall(r'train step (\d+): mean return', log.read_text()))  # noqa: E731
            wait_until(lambda: max(steps(), default=0) > newest or process.poll() is not None, 'an evaluation', 200)  # noqa: B023
            process.send_signal(number)
            code, output = process.wait(200), log.read_text()
        finally:
            process.kill()
        assert code == -number or (number == signal.SIGINT and 'KeyboardInterrupt' in output)
        closed = {*re.findall(r'tflearn_0 closes with (\d+)', output)}
        assert closed == {str(num_saved)}, 'training closes its own before the last save'
        before, newest = newest, max(CheckpointFiles(run_dir.checkpoints).numbers())
        assert newest > before, output
    code = forks.start(str(program), newest + 10, log=log, cwd=tmp_path).wait(200)
    output = log.read_text()
    assert code == 0, output
    assert f'finished: num_train_steps {newest + 10} reached' in output
    assert 'waiting for' not in output


AGAIN = f"""
import sys
import tflearn

for seed in (1, 1, 2, 2):
    print('call', file=sys.stderr, flush=True)
    bindings = [*{jobs.SMALL_BINDINGS!r}, f'train.Initial.seed = {{seed}}']
    tflearn.train('dqn_cartpole', root_dir='run', mode='synchronous', gin_bindings=bindings)
"""


def test_each_call_of_an_ended_run_says_so_and_what_was_changed(tmp_path):
    program, log = tmp_path / 'program.py', tmp_path / 'log'
    program.write_text(AGAIN)
    assert forks.start(str(program), log=log, cwd=tmp_path).wait(200) == 0, log.read_text()
    again = log.read_text().split('call\n')[2:]
    assert ['nothing to do' in text for text in again] == [True] * 3
    assert ['changed since: train_settings.Initial.seed 1 -> 2 (no effect' in text for text in again] == [
        False,
        True,
        True,
    ]
