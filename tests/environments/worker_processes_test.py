import functools
import multiprocessing
import os
import pathlib
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from tests.environments import example_environments
from tflearn.environments import vector_env
from tflearn.waiting import wait_until

_ROOT = pathlib.Path(__file__).parents[2]

_PROGRAM = """
import signal, sys, threading
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
    environment = worker_processes.WorkerVectorEnv([example_environments.Modules] * 2, timeout_secs=60.0)
    print(environment.reset()[0].tolist(), flush=True)
    print(*(process.pid for process in environment.processes), flush=True)
    if MODE == 'wait':
        while not stop.wait(0.1):
            pass
        environment.step(np.zeros(2, np.int64))
        environment.close()
        print('closed', flush=True)
    if MODE == 'hang':
        threading.Event().wait(100.0)
"""


@pytest.fixture
def start_program(tmp_path):
    """Starts the program above in a session of its own; returns its process and its workers' pids."""
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


def _gone(pid):
    try:
        state = pathlib.Path(f'/proc/{pid}/stat').read_text().rpartition(')')[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return True
    return state == 'Z'  # ended, though nobody has asked yet how


def _wait_until_gone(pids):
    wait_until(lambda: all(map(_gone, pids)), f'the end of the workers {pids}', timeout_secs=20)


def test_workers_leave_signals_to_the_parent(start_program):
    process, pids = start_program('wait')
    for pid in pids:
        os.kill(pid, signal.SIGINT)
        os.kill(pid, signal.SIGTERM)
    os.killpg(process.pid, signal.SIGINT)  # as Ctrl-C does
    assert process.communicate(timeout=30)[0] == 'closed\n'
    assert process.returncode == 0
    _wait_until_gone(pids)


def test_workers_end_with_a_parent_that_forgets_to_close(start_program):
    process, pids = start_program('end')
    process.communicate(timeout=30)
    assert process.returncode == 0
    _wait_until_gone(pids)


def test_workers_end_with_a_parent_that_is_killed(start_program):
    process, pids = start_program('hang')
    process.kill()
    _wait_until_gone(pids)


def _troubled(trouble, **kwargs):
    make_one = functools.partial(example_environments.Troubled, trouble)
    environment = vector_env.in_worker_processes(make_one, 2, seed=0, **kwargs)
    environment.reset()
    return environment


def _check_closed(environment):
    assert not multiprocessing.active_children()
    environment.close()


def test_exception_in_a_worker():
    environment = _troubled('raise')
    with pytest.raises(RuntimeError, match='environment 1 failed in its worker process: ZeroDivisionError'):
        environment.step(np.array([0, 1]))
    _check_closed(environment)


def test_worker_that_exits():
    environment = _troubled('exit')
    with pytest.raises(RuntimeError, match=r'the worker process of environment 1 \(pid \d+\) died \(exit code 7\)'):
        environment.step(np.array([0, 1]))
    _check_closed(environment)


def test_killed_worker():
    environment = _troubled('none')
    os.kill(environment._vector_env.processes[1].pid, signal.SIGKILL)
    environment._vector_env.processes[1].join(10)
    with pytest.raises(RuntimeError, match=r'the worker process of environment 1 \(pid \d+\) died \(SIGKILL\)'):
        environment.step(np.array([0, 0]))
    _check_closed(environment)


def test_worker_that_hangs():
    environment = _troubled('hang', timeout_secs=0.5)
    start = time.monotonic()
    with pytest.raises(TimeoutError, match='waited 0 s in vain for the environments to step'):
        environment.step(np.array([0, 1]))
    assert time.monotonic() - start < 20
    _check_closed(environment)


def test_environment_that_cannot_be_made_in_a_worker():
    with pytest.raises(RuntimeError, match='environment [01] failed in its worker process: OSError: no licence'):
        _troubled('make')
    assert not multiprocessing.active_children()


def test_exit_without_close_of_a_collected_environment():
    environment = _troubled('none')
    del environment
    assert not multiprocessing.active_children()
