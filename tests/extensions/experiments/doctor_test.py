import json
import sys

import pytest
import tensorflow as tf

from tests.testing import console_programs, forged
from tflearn.extensions.experiments import checks
from tflearn.files.run_dir import RunDir
from tflearn.files.status import Status


@pytest.fixture
def run(monkeypatch):
    """Returns a function that calls the program with arguments, and returns its exit status."""

    def call(*arguments):
        monkeypatch.setattr(sys, 'argv', sys.argv)
        with pytest.raises(SystemExit) as ended:
            console_programs.main('doctor', *map(str, arguments))
        return ended.value.code

    return call


@pytest.fixture
def bad_run(tmp_path):
    """A run whose return is flat and whose updates are too large."""
    with tf.summary.create_file_writer(str(RunDir(tmp_path).summaries('train'))).as_default():
        for step in range(10):
            tf.summary.scalar('collect/mean_return', 20.0 + step % 2, step)
            tf.summary.scalar('train/extra/clipped_share', 0.8, step)
    return tmp_path


def test_it_says_what_looks_wrong_with_figure_and_link(run, bad_run, capsys):
    assert run(bad_run) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f'{bad_run}: 2 of 3 checks look wrong; {len(checks.CHECKS) - 3} are unknown'
    assert lines[1].split()[:2] == ['LOOK', 'returns-flat']
    assert lines[3].split(maxsplit=2) == [
        'LOOK',
        'clipped-share',
        'train/extra/clipped_share is 0.8; a usual share is at most 0.3',
    ]
    assert lines[4].split() == ['see', 'docs/watching.md#clipped-share']


def test_nothing_looks_right_that_could_not_be_checked(run, tmp_path, capsys):
    with tf.summary.create_file_writer(str(RunDir(tmp_path).summaries('train'))).as_default():
        tf.summary.scalar('train/loss', 1.0, 1)
    assert run(tmp_path) == 0
    head, *lines = capsys.readouterr().out.splitlines()
    assert head.startswith(f'{tmp_path}: no check could be made, all {len(checks.CHECKS)} are unknown: the run was too')
    assert [line.split()[0] for line in lines] == ['unknown'] * len(checks.CHECKS)


def test_a_forged_length_in_an_event_file_does_not_end_it(run, bad_run, capsys):
    (file,) = RunDir(bad_run).summaries('train').iterdir()
    file.write_bytes(file.read_bytes() + forged.header(1 << 40))
    assert run(bad_run) == 0
    assert capsys.readouterr().out.startswith(f'{bad_run}: 2 of ')


def test_programs_read_json_and_the_exit_status(run, bad_run, capsys):
    assert run('--json', '--strict', bad_run) == 1
    (findings,) = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [each['check'] for each in findings if each['wrong']] == ['returns-flat', 'clipped-share']


def test_of_a_run_that_failed_at_its_start_it_says_what_ended_it(run, tmp_path, capsys):
    Status(RunDir(tmp_path).status('train')).update('failed: got no licence')
    assert run(tmp_path) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f'tflearn doctor: error: got {tmp_path} (failed: train got no licence) without event files')
    assert line.endswith('; correct what ended it, and start it again')


@pytest.mark.parametrize('arguments', [[], ['--jsn'], ['/nowhere/at/all']])
def test_bad_input_is_one_line(run, arguments, capsys):
    assert run(*arguments) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith('tflearn doctor: error: got ')
