"""How a job's process ends: on signals, on errors, and although something in it hangs. Real processes."""

import json
import pathlib
import signal
import subprocess
import sys

import pytest

import scripts
from scripts import job_flags
from tests.testing import console_programs

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
job_process.run('tflearn-toy', 'toy', work, {stop_timeout_secs}, done_by={done_by})
"""


@pytest.fixture
def start():
    """Starts a process that runs `work(stop)`, and waits until it does."""
    started = []

    def start(work: str, stop_timeout_secs: float = 30.0, done_by: int = 0) -> subprocess.Popen[str]:
        code = PROGRAM.format(work=work, stop_timeout_secs=stop_timeout_secs, done_by=done_by)
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


def test_logs_are_objects_of_json_for_collectors_of_logs(start, monkeypatch):
    monkeypatch.setenv('TFLEARN_LOG_FORMAT', 'json')
    code, stderr = end(start("logging.info('hello'); raise KeyError('a')"))
    hello, failed, last = map(json.loads, stderr.splitlines())
    assert code == 1 and (hello['level'], hello['job'], hello['message']) == ('INFO', 'toy', 'hello')
    assert failed['level'] == 'ERROR' and failed['traceback'].splitlines()[-1] == "KeyError: 'a'"
    assert (last['level'], last['message']) == ('ERROR', "tflearn-toy: error: KeyError: 'a'")


@pytest.mark.parametrize(
    ('number', 'work'),
    [
        (signal.SIGINT, "waiting.wait_until(lambda: False, 'nothing', 60, stop)"),
        # Blocked in one call, as TensorFlow's are: the handler runs all the same.
        (signal.SIGTERM, 'select.select([], [], [], 2); assert stop.is_set()'),
    ],
)
def test_a_signal_stops_the_job(start, number, work):
    process = start(work)
    process.send_signal(number)
    code, stderr = end(process)
    assert code == 128 + number
    assert f'got {number.name}; stopping' in stderr
    assert 'error' not in stderr


@pytest.mark.parametrize(
    'work', ['stop.wait(60)', 'with waiting.may_exit(stop, lambda: None): threading.Event().wait(60)']
)
def test_a_server_that_only_a_signal_ends_is_done_by_it(start, work):
    for number, code in ((signal.SIGTERM, 0), (signal.SIGINT, 128 + signal.SIGINT)):
        process = start(work, done_by=int(signal.SIGTERM))
        process.send_signal(number)
        assert end(process)[0] == code


def test_a_signal_that_another_thread_gets_stops_the_job(start):
    code, stderr = end(start('signal.pthread_kill(threading.get_ident(), signal.SIGTERM); assert stop.wait(20)'))
    assert code == 128 + signal.SIGTERM, stderr


@pytest.mark.parametrize('done_by', [0, int(signal.SIGTERM)])
def test_a_job_that_does_not_stop_is_ended(start, done_by):
    process = start('queue.Queue().get()', stop_timeout_secs=0.5, done_by=done_by)
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


def test_a_job_may_be_asked_to_save(start):
    process = start('print([stop.wait(0.05) for _ in iter(lambda: waiting.wants_save(stop), True)], flush=True)')
    process.send_signal(signal.SIGUSR2)
    code, stderr = end(process)
    assert code == 0 and 'saves a checkpoint, as it was asked to (SIGUSR2)' in stderr


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
    assert code == (69 if 'wait_until' in work else 2), 'a deadline is tried again by schedulers'
    assert stderr.startswith(f'tflearn-toy: error: {MISTAKES[work]}')
    assert stderr.count('\n') == 1


DEFECTS = {
    "raise RuntimeError('two\\nlines')": 'RuntimeError: two lines',
    'sys.exit(3)': 'SystemExit: 3',
    "raise waiting.Stopped('though nobody stopped it')": 'Stopped: though',
}


def test_failures_that_are_in_the_log_take_one_line_and_are_no_mistakes(start):
    code, stderr = end(start("raise errors.LoggedError('got 6 failures; fix the cause')"))
    assert (code, stderr) == (1, 'tflearn-toy: error: got 6 failures; fix the cause\n')


@pytest.mark.parametrize('work', DEFECTS)
def test_other_errors_show_a_traceback(start, work):
    code, stderr = end(start(work))
    assert code == 1
    assert 'Traceback' in stderr
    assert stderr.splitlines()[-1].startswith(f'tflearn-toy: error: {DEFECTS[work]}')


# The command line of the job programs: help, checks, and that neither loads TensorFlow.


def run(*arguments, job='train'):
    call = f'from tests.testing import console_programs; console_programs.main({job!r}, *sys.argv[1:])'
    code = f'import sys; {call}; assert "tensorflow" not in sys.modules'
    command = [sys.executable, '-c', code, *arguments]
    return subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, timeout=DEADLINE_SECS)


@pytest.mark.parametrize(
    ('job', 'flag'),
    [
        *((job, '--help') for job in ('replay_server', 'collect', 'train')),
        ('train', '--helpfull'),
    ],
)
def test_help(job, flag):
    ended = run(flag, job=job)
    assert (ended.returncode, ended.stderr) == (0, '')
    assert ended.stdout.startswith(f'{console_programs.name(job)}: ')
    common = 'root_dir gin_file gin_bindings coordinator_address connect_timeout_secs stop_timeout_secs'
    for name in common.split():
        assert f'  --{name}\n' in ended.stdout
    assert ('--collector_name' in ended.stdout) == (job == 'collect')
    assert ('  --replay_address\n' in ended.stdout) == (job == 'replay_server')
    assert ('  --strategy\n' in ended.stdout) == (job == 'train') == ("'multi_worker'" in ended.stdout)
    assert ('--verbosity' in ended.stdout) == (flag == '--helpfull')
    assert 'repeat this option' not in ended.stdout and '[]' not in ended.stdout
    assert ('Index of this server, from 0. [0]\n' in ended.stdout) == (job == 'replay_server')
    assert max(map(len, ended.stdout.splitlines())) <= 120


NEEDED = ('--root_dir=run', '--gin_file=dqn_cartpole')
WRONG = {
    ('--root_dir=run',): 'got no --gin_file; need the path of one, or one of a2c_cartpole, appo_cartpole, ',
    (*NEEDED, '--coordinator_address=foo'): 'got --coordinator_address=foo; need HOST:PORT with a port from 1 to 65535',
    (
        '--root_dir=gs://me:key@bucket/run',
        NEEDED[1],
    ): 'got a URL of gs with credentials or a query; need them where gs clients',
    (*NEEDED, '--connect_timeout_secs=-1'): 'got a wrong flag: flag --connect_timeout_secs=-1',
}


@pytest.mark.parametrize('arguments', WRONG, ids=' '.join)
def test_wrong_flags_take_one_line(arguments):
    ended = run(*arguments)
    assert ended.returncode == 2
    assert ended.stderr.startswith(f'tflearn-train: error: {WRONG[arguments]}')
    assert ended.stderr.count('\n') == 1


def test_rejects_a_collector_name_that_is_no_file_name():
    ended = run(*NEEDED, '--collector_name=a/b', job='collect')
    assert ended.returncode == 2
    assert 'flag --collector_name=a/b: need letters, digits, _ and -' in ended.stderr


@pytest.mark.parametrize('address', ['localhost:8008', 'a-b.c_d.example:1', '10.0.0.1:65535', '[::1]:80'])
def test_accepts_addresses(address):
    assert job_flags.check_address(address, 'coordinator_address') == address


@pytest.mark.parametrize(
    'address',
    [
        '',
        'localhost',
        'localhost:',
        ':80',
        'a:b',
        'a:0',
        'a:65536',
        'http://a:80',
        'a b:80',
        'a:80 ',
        'a:8_0',
        'a..b:80',
        '.:80',
        f'{"a" * 64}.b:80',
    ],
)
def test_rejects_wrong_addresses(address):
    with pytest.raises(ValueError, match='need HOST:PORT with a port from 1 to 65535'):
        job_flags.check_address(address, 'coordinator_address')
