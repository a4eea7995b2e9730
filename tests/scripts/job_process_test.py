"""How a job's process ends: on signals, on errors, and although something in it hangs. Real processes."""

import pathlib
import signal
import subprocess
import sys

import pytest

import scripts

CHECKOUT = pathlib.Path(scripts.__path__[0]).parent
DEADLINE_SECS = 60.0
PROGRAM = """
import multiprocessing, os, queue, select, signal, sys, threading
from absl import flags, logging
from scripts import job_process
from tflearn.core import errors, waiting
from tflearn.files import run_dir

def work(stop):
    print('ready', flush=True)
    {work}

flags.FLAGS(sys.argv[:1])
logging.set_verbosity(logging.INFO)
job_process.run('tflearn-toy', 'toy', work, {stop_timeout_secs})
"""


@pytest.fixture
def start():
    """Starts a process that runs `work(stop)`, and waits until it does."""
    started = []

    def start(work: str, stop_timeout_secs: float = 30.0) -> subprocess.Popen[str]:
        code = PROGRAM.format(work=work, stop_timeout_secs=stop_timeout_secs)
        pipes = {'stdout': subprocess.PIPE, 'stderr': subprocess.PIPE}
        process = subprocess.Popen([sys.executable, '-c', code], cwd=CHECKOUT, text=True, **pipes)
        started.append(process)
        assert process.stdout.readline() == 'ready\n', process.communicate(timeout=DEADLINE_SECS)[1]
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate(timeout=DEADLINE_SECS)


def end(process):
    """Returns exit code and stderr."""
    stderr = process.communicate(timeout=DEADLINE_SECS)[1]
    return process.returncode, stderr


def test_exit_status_of_a_job_that_is_done(start):
    code, stderr = end(start("logging.info('hello')"))
    assert code == 0
    assert stderr.startswith('I 20')
    assert ' toy ' in stderr
    assert stderr.endswith('] hello\n')


@pytest.mark.parametrize('number', [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize(
    'work',
    [
        'stop.wait(60)',
        "waiting.wait_until(lambda: False, 'nothing', 60, stop)",
        # Blocked in one call, as TensorFlow's are: the handler runs all the same.
        'select.select([], [], [], 2); assert stop.is_set()',
    ],
)
def test_a_signal_stops_the_job(start, number, work):
    process = start(work)
    process.send_signal(number)
    code, stderr = end(process)
    assert code == 128 + number
    assert f'got {number.name}; stopping' in stderr
    assert 'error' not in stderr


def test_a_signal_that_another_thread_gets_stops_the_job(start):
    code, stderr = end(start('signal.pthread_kill(threading.get_ident(), signal.SIGTERM); assert stop.wait(20)'))
    assert code == 128 + signal.SIGTERM, stderr


def test_a_job_that_does_not_stop_is_ended(start):
    process = start('queue.Queue().get()', stop_timeout_secs=0.5)
    process.send_signal(signal.SIGTERM)
    code, stderr = end(process)
    assert code == 128 + signal.SIGTERM
    assert 'in work' in stderr
    assert stderr.splitlines()[-1] == (
        'tflearn-toy: error: got no end of the job within 0.5 s after SIGTERM (--stop_timeout_secs); where its threads '
        'were is above'
    )


def test_a_second_signal_ends_the_job_at_once(start):
    process = start("stop.wait(60); select.select([], [], [], 1.2); print('again', flush=True); queue.Queue().get()")
    process.send_signal(signal.SIGINT)
    assert process.stdout.readline() == 'again\n'
    process.send_signal(signal.SIGINT)
    code, stderr = end(process)
    assert code == 128 + signal.SIGINT
    assert 'got SIGINT while it was stopping' in stderr


def test_two_signals_of_one_ctrl_c_count_once(start):
    process = start("stop.wait(60); print('again', flush=True); select.select([], [], [], 0.5)")
    process.send_signal(signal.SIGINT)
    assert process.stdout.readline() == 'again\n'
    process.send_signal(signal.SIGTERM)
    code, stderr = end(process)
    assert code == 128 + signal.SIGINT
    assert 'error' not in stderr


def test_stacks_are_shown_on_request(start):
    process = start('stop.wait(60)')
    process.send_signal(signal.SIGUSR1)
    while 'in work' not in (line := process.stderr.readline()):
        assert line
    process.send_signal(signal.SIGTERM)
    assert end(process)[0] == 128 + signal.SIGTERM


def test_threads_that_hang_do_not_delay_the_end(start):
    process = start('threading.Thread(target=queue.Queue().get).start()')
    assert end(process) == (0, '')


FORK = "child = multiprocessing.get_context('fork').Process(target=queue.Queue().get); child.start(); "


def test_child_processes_do_not_outlive_the_job(start):
    process = start(f'{FORK} print(child.pid, flush=True)')
    child = int(process.stdout.readline())
    assert end(process)[0] == 0
    # What is left of it at most waits to be collected by init.
    assert not pathlib.Path(f'/proc/{child}/exe').exists()


def test_child_processes_end_on_signals(start):
    up = f'{FORK} select.select([], [], [], 1.0); '
    assert end(start(f'{up} child.terminate(); child.join(20); assert child.exitcode == -15')) == (0, '')


def test_a_job_that_has_nothing_to_save_yet_ends_at_once(start):
    work = (
        "with waiting.may_exit(stop, lambda: print('exits', flush=True)): print('in', flush=True); queue.Queue().get()"
    )
    process = start(work)
    assert process.stdout.readline() == 'in\n'
    process.send_signal(signal.SIGTERM)
    stdout, stderr = process.communicate(timeout=DEADLINE_SECS)
    assert (process.returncode, stdout) == (128 + signal.SIGTERM, 'exits\n')
    assert 'got SIGTERM while the job was starting: there is nothing to save' in stderr
    assert 'error' not in stderr and 'most recent call' not in stderr


def test_started_job_ends_by_itself_on_a_signal(start):
    work = (
        "exec('with waiting.may_exit(stop, os.abort): pass'); print('started', flush=True); "
        "stop.wait(60); print('saved', flush=True)"
    )
    process = start(work)
    assert process.stdout.readline() == 'started\n'
    process.send_signal(signal.SIGTERM)
    assert process.communicate(timeout=DEADLINE_SECS)[0] == 'saved\n'
    assert process.returncode == 128 + signal.SIGTERM


def test_exit_status_75_when_a_peer_was_stopped(start):
    code, stderr = end(start("raise waiting.PeerStopped('got a stop of another worker')"))
    assert code == 75
    assert 'got a stop of another worker' in stderr and 'Traceback' not in stderr


MISTAKES = {
    "run_dir.RunDir('/proc/run').make()": "got root_dir='/proc/run', which cannot be written to",
    "waiting.wait_until(lambda: False, 'a peer', 0.2)": 'timed out after 0 s waiting for a peer',
    "raise errors.UserImportError('got no such package')": 'got no such package',
    "raise type('Proxy', (errors.UserTypeError,), {})('two\\nlines')": 'two lines',
}


@pytest.mark.parametrize('work', MISTAKES)
def test_user_errors_take_one_line(start, work):
    code, stderr = end(start(work))
    assert code == 2
    assert stderr.startswith(f'tflearn-toy: error: {MISTAKES[work]}')
    assert stderr.count('\n') == 1


DEFECTS = {
    "raise ValueError('of another package')": 'ValueError: of another package',
    "exec('raise ValueError(3)', {'__package__': 'tflearn.jobs'})": 'ValueError: 3',
    "exec('from tflearn import nothing', {'__package__': 'tflearn.jobs'})": 'ImportError: cannot import name',
    "waiting.wait_until(None, 'nothing', 1)": "TypeError: 'NoneType' object is not",  # Ours, but no `raise` of ours.
    "raise RuntimeError('two\\nlines')": 'RuntimeError: two lines',
    'sys.exit(3)': 'SystemExit: 3',
    "raise waiting.Stopped('though nobody stopped it')": 'Stopped: though',
}


@pytest.mark.parametrize('work', DEFECTS)
def test_other_errors_show_a_traceback(start, work):
    code, stderr = end(start(work))
    assert code == 1
    assert 'Traceback' in stderr
    assert stderr.splitlines()[-1].startswith(f'tflearn-toy: error: {DEFECTS[work]}')
