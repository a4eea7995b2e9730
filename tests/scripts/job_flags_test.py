"""The command line of the job programs: help, checks, and that neither loads TensorFlow."""

import pathlib
import subprocess
import sys

import pytest

import scripts
from scripts import job_flags

CHECKOUT = pathlib.Path(scripts.__path__[0]).parent
DEADLINE_SECS = 60.0


def run(*arguments, job='train'):
    code = f'import sys; from scripts import {job}; {job}.main(); assert "tensorflow" not in sys.modules'
    command = [sys.executable, '-c', code, *arguments]
    return subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, timeout=DEADLINE_SECS)


@pytest.mark.parametrize('job', ['replay_server', 'collect', 'train', 'synchronous', 'evaluate'])
@pytest.mark.parametrize('flag', ['--help', '--helpfull'])
def test_help(job, flag):
    ended = run(flag, job=job)
    assert (ended.returncode, ended.stderr) == (0, '')
    assert ended.stdout.startswith(f'tflearn-{job.replace("_", "-")}: ')
    for name in (
        'root_dir',
        'gin_file',
        'gin_bindings',
        'coordinator_address',
        'connect_timeout_secs',
        'stop_timeout_secs',
    ):
        assert f'  --{name}\n' in ended.stdout
    assert ('--collector_name' in ended.stdout) == (job == 'collect')
    assert ('  --replay_address\n' in ended.stdout) == (job == 'replay_server')
    assert ('  --strategy\n' in ended.stdout) == (job == 'train') == ("'multi_worker'" in ended.stdout)
    assert ('--verbosity' in ended.stdout) == (flag == '--helpfull')
    assert 'repeat this option' not in ended.stdout
    assert max(map(len, ended.stdout.splitlines())) <= 120


NEEDED = ('--root_dir=run', '--gin_file=dqn_cartpole')
WRONG = {
    (): 'got no --root_dir; need',
    ('--root_dir=run',): 'got no --gin_file; need the path of one, or one of a2c_cartpole, appo_cartpole, ',
    (*NEEDED, '--coordinator_address=foo'): 'got --coordinator_address=foo; need HOST:PORT with a port from 1 to 65535',
    (
        '--root_dir=gs://me:key@bucket/run',
        NEEDED[1],
    ): 'got a URL of gs with credentials or a query; need them where gs clients',
    (*NEEDED, '--connect_timeout_secs=-1'): 'got a wrong flag: flag --connect_timeout_secs=-1',
    (*NEEDED, '--rootdir=x'): "got a wrong flag: Unknown command line flag 'rootdir'. Did you mean: root_dir",
    (*NEEDED, 'train'): "got the argument 'train'; need flags only",
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
