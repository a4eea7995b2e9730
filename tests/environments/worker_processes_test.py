import functools
import multiprocessing
import os
import pathlib
import signal
import subprocess
import sys

import numpy as np
import pytest

from tests.environments import conformance, example_environments
from tests.testing import lanes
from tflearn.core.waiting import wait_until
from tflearn.environments import vector_env

_ROOT = pathlib.Path(__file__).parents[2]

_PROGRAM = """
import multiprocessing, signal, sys, threading
import numpy as np
from tests.environments import example_environments
from tflearn.environments import worker_processes

MODE = sys.argv[1]
if MODE == 'wait':
    import tensorflow  # at the top, as programs do
stop = threading.Event()
if __name__ == '__main__':
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    environment = worker_processes.WorkerVectorEnv(example_environments.Modules, 2, step_timeout_secs=60.0)
    print(environment.reset(None).tolist(), flush=True)
    print(*(child.pid for child in multiprocessing.active_children()), flush=True)
    if MODE == 'wait':
        while not stop.wait(0.1):
            pass
        environment.step(np.zeros(2, np.int64))
        environment.close()
        print('closed', flush=True)
"""


@pytest.fixture
def start_program(tmp_path):
    """Starts the program above in its own session; returns its process and its workers' pids."""
    path = tmp_path / 'program.py'
    path.write_text(_PROGRAM)
    processes = []

    def start(mode):
        process = subprocess.Popen(
            [sys.executable, path, mode],
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env={**os.environ, 'PYTHONPATH': str(_ROOT), 'TF_CPP_MIN_LOG_LEVEL': '3'},
        )
        processes.append(process)
        observation, pids = process.stdout.readline(), process.stdout.readline()
        assert observation == '[0, 0]\n', 'a worker imported TensorFlow'
        return process, [int(pid) for pid in pids.split()]

    yield start
    for process in processes:
        if process.poll() is None:
            process.kill()
        process.communicate(timeout=30)


def _has_ended(pid):
    try:
        state = pathlib.Path(f'/proc/{pid}/stat').read_text().rpartition(')')[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return True
    return state == 'Z'  # ended, but its exit status was not read yet


def _wait_until_ended(pids):
    wait_until(lambda: all(map(_has_ended, pids)), f'the end of the workers {pids}', timeout_secs=20)


@lanes.classic
def test_workers_ignore_signals(start_program):
    process, pids = start_program('wait')
    for pid in pids:
        os.kill(pid, signal.SIGINT)
        os.kill(pid, signal.SIGTERM)
    os.killpg(process.pid, signal.SIGINT)  # as Ctrl-C does
    assert process.communicate(timeout=30)[0] == 'closed\n'
    assert process.returncode == 0
    _wait_until_ended(pids)


def test_workers_end_with_a_parent_that_forgets_to_close(start_program):
    process, pids = start_program('end')
    process.communicate(timeout=30)
    assert process.returncode == 0
    _wait_until_ended(pids)


def _troubled(trouble, **kwargs):
    make_one = functools.partial(example_environments.Troubled, trouble)
    environment = vector_env.in_worker_processes(make_one, 2, seed=0, **kwargs)
    environment.reset()
    return environment


def _pids():
    """Returns the workers' pids by their environments' indices."""
    return {int(child.name.rpartition('_')[2]): child.pid for child in multiprocessing.active_children()}


def _check_rebuilt(environment, caplog, cause):
    """Environment 1 of two fails in the next step; then both continue."""
    before = _pids()
    time_step = environment.step(np.array([0, 1]))
    assert time_step.step_type.tolist() == [conformance.MID, conformance.FIRST]
    assert time_step.observation.tolist() == [0, 0]
    assert time_step.reward.tolist() == [0, 0]
    assert time_step.discount.tolist() == [1, 1]
    after = _pids()
    assert after[0] == before[0]
    assert after[1] != before.get(1)
    assert environment.num_rebuilt == 1
    messages = '\n'.join(record.getMessage() for record in caplog.records if record.levelname == 'WARNING')
    assert 'rebuilding environment 1 (failure 1 in a row)' in messages
    assert cause in messages
    assert environment.step(np.array([0, 0])).step_type.tolist() == [conformance.MID, conformance.MID]
    environment.close()
    assert not multiprocessing.active_children()


@pytest.mark.parametrize(
    ('trouble', 'cause'),
    [
        ('raise', 'ZeroDivisionError: the physics broke'),
        ('exit', 'died (exit code 7)'),
        ('hang', 'did not answer in time'),
    ],
)
def test_failing_environment_is_rebuilt(trouble, cause, caplog):
    _check_rebuilt(_troubled(trouble, step_timeout_secs=3.0), caplog, cause)


def test_a_killed_worker_is_replaced(caplog):
    environment = _troubled('none')
    os.kill(_pids()[1], signal.SIGKILL)
    wait_until(lambda: 1 not in _pids(), 'the end of worker 1', timeout_secs=10)
    _check_rebuilt(environment, caplog, 'SIGKILL')


def test_an_environment_that_fails_at_each_reset_is_an_error(tmp_path):
    environment = vector_env.in_worker_processes(
        functools.partial(example_environments.Unresettable, tmp_path / 'broken'), 2, seed=0
    )
    environment.reset()
    (tmp_path / 'broken').touch()
    with pytest.raises(RuntimeError, match='got 6 failures in a row of environment [01]; .*OSError: no licence left'):
        environment.step(np.array([0, 0]))
    assert not multiprocessing.active_children()
    with pytest.raises(RuntimeError, match='need open environments'):
        environment.step(np.array([0, 0]))
    environment.close()


def test_environment_that_cannot_be_made_is_an_error():
    with pytest.raises(RuntimeError, match='environment [01] failed in its worker process: OSError: no licence'):
        _troubled('make')
    assert not multiprocessing.active_children()


def test_exit_without_close():
    environment = _troubled('none')
    del environment
    assert not multiprocessing.active_children()


@pytest.mark.parametrize('end', ['close', 'kill'])
def test_what_an_environment_starts_ends_with_it(tmp_path, end):
    make_one = functools.partial(example_environments.Starting, tmp_path / 'pids')
    environment = vector_env.in_worker_processes(make_one, 2, seed=0)
    environment.reset()
    pids = [int(pid) for pid in (tmp_path / 'pids').read_text().split()]
    assert len(pids) == 4 and not any(map(_has_ended, pids))
    ignored = int(_status(pids[0])['SigIgn'], 16)
    assert not ignored & (1 << signal.SIGTERM - 1 | 1 << signal.SIGINT - 1)
    if end == 'kill':
        for pid in _pids().values():
            os.kill(pid, signal.SIGKILL)
    environment.close()
    _wait_until_ended(pids)


_ORPHANS = """
import functools, pathlib, signal, sys, threading
import numpy as np
from tests.environments import example_environments
from tflearn.environments import worker_processes

if __name__ == '__main__':
    worker_processes._CLOSE_SECS = 0.5
    make_one = functools.partial(example_environments.Stubborn, pathlib.Path(sys.argv[2]))
    environment = worker_processes.WorkerVectorEnv(make_one, 2, step_timeout_secs=60.0)
    environment.reset(None)
    print('ready', flush=True)
    if sys.argv[1] == 'hanging':
        environment.step(np.zeros(2, np.int64))
    signal.pause()
"""


@pytest.mark.parametrize('state', ['waiting', 'hanging'])
def test_stubborn_workers_and_programs_end_with_a_killed_parent(tmp_path, state):
    (tmp_path / 'program.py').write_text(_ORPHANS)
    process = subprocess.Popen(
        [sys.executable, tmp_path / 'program.py', state, tmp_path / 'pids'],
        stdout=subprocess.PIPE,
        start_new_session=True,
        env={**os.environ, 'PYTHONPATH': str(_ROOT)},
    )
    with process:
        assert process.stdout.readline() == b'ready\n'
        pids = [int(pid) for pid in (tmp_path / 'pids').read_text().split()]
        assert len(pids) == 4 and not any(map(_has_ended, pids))
        process.kill()
        _wait_until_ended(pids)


@pytest.mark.slow
def test_an_environment_may_take_seconds_to_close(tmp_path):
    make_one = functools.partial(example_environments.Closing, tmp_path / 'closed', 6.0)
    environment = vector_env.in_worker_processes(make_one, 1, seed=0)
    environment.reset()
    (tmp_path / 'closed').unlink()  # of the environment that showed its spaces
    environment.close()
    assert (tmp_path / 'closed').exists()


def _status(pid):
    return dict(line.split(':\t', 1) for line in pathlib.Path(f'/proc/{pid}/status').read_text().splitlines())


def test_infos_come_from_workers():
    environment = vector_env.in_worker_processes(example_environments.Talkative, 2, seed=0)
    environment.reset()
    assert environment.info == {}
    environment.step(np.array([0, 1]))
    environment.close()
    assert {key: value.tolist() for key, value in environment.info.items()} == {
        'count': [1, 1],
        'executed_action': [0, 0],
        'nested/x': [1, 1],
        'position': [[0.0, 1.0]] * 2,
        'speed': [0.5, 0.5],
    }
