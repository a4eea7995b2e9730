"""The real export program: its flags and its error messages. tests/jobs/export_test.py tests the job."""

import pytest

from tests.testing import forks

DEADLINE_SECS = 120.0


def run(*arguments):
    return forks.run('scripts.export', *arguments, timeout=DEADLINE_SECS)


def test_help():
    ended = run('--help')
    assert (ended.returncode, ended.stderr) == (0, '')
    assert ended.stdout.startswith('tflearn-export: Makes a full model of one train step')
    for name in ('root_dir', 'policy', 'train_step', 'output', 'batch_size', 'tflite', 'observations'):
        assert f'  --{name}\n' in ended.stdout


@pytest.mark.parametrize(
    ('flags', 'message'),
    [
        ((), 'got no --root_dir; need '),
        (('--root_dir=x', '--tflite=int4'), 'got a wrong flag: flag --tflite=int4'),
        (('--root_dir=s3://me:key@x/y',), 'got a URL of s3 with credentials or a query; need them where s3 clients'),
        (('--root_dir=x', '--output=gs://x/y'), "got --output='gs://x/y', which is a URL; need a path"),
        (('--root_dir=no_such_run',), 'got no policy in '),
    ],
)
def test_user_errors_take_one_line(flags, message):
    ended = run(*flags)
    assert ended.returncode == 2
    assert ended.stderr.splitlines()[-1].startswith(f'tflearn-export: error: {message}')
    assert 'Traceback' not in ended.stderr
