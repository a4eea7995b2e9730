"""tflearn watch beside a run of the launcher."""

import os
import pty
import re
import select
import subprocess
import sys

import pytest

from tests.testing import forks
from tflearn.core.waiting import wait_until
from tflearn.files.run_dir import RunDir, write_json
from tflearn.files.status import Status
from tflearn.launch import supervisor

DEADLINE_SECS = 60.0
TRAIN = {'train_step': 12, 'num_train_steps': 48, 'train_steps_per_sec': 2.0, 'time': 0.0}


@pytest.fixture
def run_dir(tmp_path):
    """A run of which three jobs have reported."""
    run_dir = RunDir(tmp_path)
    Status(run_dir.status('train')).update('running', **{**TRAIN, 'time': None})
    Status(run_dir.status('evaluate')).update('waiting for a policy')
    Status(run_dir.status('worker-a7')).update('running', policy_version=3, env_steps_per_sec=7.0)
    write_json(run_dir.status('launch'), {'state': 'running', 'restarts': {'train': 2}})
    return run_dir


def test_the_report_is_of_what_the_jobs_have_written(run_dir):
    report = supervisor.read_report(run_dir, 5.0)
    assert [(job.name, job.kind, job.state, job.restarts) for job in report.jobs] == [
        ('train', 'train', 'running', 2),
        ('evaluate', 'evaluate', 'waiting for a policy', 0),
        ('worker-a7', 'collect', 'running', 0),
    ]
    assert report.progress == (12, 48)
    assert report.metrics()['env steps'] == 'at 7.0/s'


def test_it_shows_a_run_until_its_end(run_dir, tmp_path):
    log = tmp_path / 'out'
    program = forks.start('scripts', 'watch', run_dir.root, log=log)
    try:
        wait_until(lambda: 'train: running' in re.sub(', worker-a7', '', log.read_text()), 'the states', DEADLINE_SECS)
        write_json(run_dir.done, {'reason': 'num_train_steps 48 reached', 'train_step': 48})
        assert program.wait(DEADLINE_SECS) == 0
    finally:
        program.kill()
    assert 'The run is done: num_train_steps 48 reached; train step 48' in log.read_text()


def test_it_ends_with_a_launch_that_has_no_result(run_dir):
    write_json(run_dir.status('launch'), {'state': 'stopped'})
    ended = forks.run('scripts', 'watch', run_dir.root, timeout=DEADLINE_SECS)
    assert ended.returncode == 1
    assert 'The run has ended without a result; its logs are in' in ended.stdout


def test_in_a_terminal_it_is_the_live_view(run_dir):
    ours, theirs = pty.openpty()
    environment = {**os.environ, 'TERM': 'xterm', 'COLUMNS': '100'}
    with subprocess.Popen(
        [sys.executable, '-m', 'scripts', 'watch', str(run_dir.root)], stdout=theirs, stderr=theirs, env=environment
    ) as program:
        os.close(theirs)
        shown, wanted = b'', {b'25%', b'train steps'}  # a frame may come in several parts
        while missing := {text for text in wanted if text not in shown}:
            if not select.select([ours], [], [], DEADLINE_SECS)[0]:
                break
            shown += os.read(ours, 1 << 16)
        program.kill()
    os.close(ours)
    assert not missing, shown


def test_wrong_input_is_one_line(tmp_path):
    for arguments, message in [
        ((), 'got no argument; need RUN; see'),
        ((tmp_path,), 'where no job has reported; need'),
    ]:
        ended = forks.run('scripts', 'watch', *arguments, timeout=DEADLINE_SECS)
        assert (ended.returncode, ended.stderr.count('\n')) == (2, 1)
        assert message in ended.stderr
