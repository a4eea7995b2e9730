"""Every program ends by the exit statuses in docs/operate.md."""

import ctypes
import importlib
import pathlib
import re
import signal
import struct
import sys

import pytest

import scripts
from scripts import job_flags
from tests.chaos import forked
from tflearn.core.errors import TRY_AGAIN_EXIT_STATUS, UserRuntimeError

ROOT = pathlib.Path(scripts.__path__[0]).parent
DEADLINE_SECS = 60.0
# The console programs; `data` and `evaluate` are each several.
SETUP = (ROOT / 'setup.py').read_text()
PROGRAMS = re.findall(r"'(\w+)'", ''.join(re.findall(r'^(?:JOBS|PROGRAMS) = \((.*?)\)', SETUP, re.M | re.S)))
COMMANDS = [
    *([program] for program in PROGRAMS),
    *(['data', command] for command in ('record', 'extract', 'describe', 'merge', 'filter', 'copy', 'convert')),
    ['evaluate', '--data=data'],
]


def end(function, tmp_path):
    """Returns the exit status of `function` in a fork, and what it wrote."""
    ended = forked.run(function, tmp_path / 'output', DEADLINE_SECS)
    return ended.code, ended.output


def program(command, *arguments):
    """Returns a function that runs a program."""

    def run():
        sys.argv = [command[0], *command[1:], *arguments]
        importlib.import_module(f'scripts.{command[0]}').main()

    return run


def test_there_are_all_programs():
    assert len(PROGRAMS) >= 11


@pytest.mark.parametrize('command', COMMANDS, ids=' '.join)
def test_help_ends_with_0_and_a_wrong_flag_with_2(command, tmp_path):
    code, output = end(program(command, '--help'), tmp_path)
    assert (code, output[:8]) == (0, 'tflearn-'), output
    code, output = end(program(command, '--no_such_flag=1'), tmp_path)
    assert code == 2
    assert re.fullmatch(r'tflearn-[a-z-]+( [a-z]+)?: error: got .*(need|see) .*\n', output), output


def test_the_documentation_lists_them():
    rows = re.findall(
        r'^\| (\S[^|]*?) \| [^|]+ \| [^|]+ \| [^|]+ \|$', (ROOT / 'docs' / 'operate.md').read_text(), re.M
    )
    assert [row for row in rows if row[0].isdigit()] == ['0', '2', str(TRY_AGAIN_EXIT_STATUS), '128 + N', '1']


def test_a_user_error_of_a_program_without_a_job_is_one_line(tmp_path):
    def run():
        with job_flags.ending('tflearn-x'):
            raise UserRuntimeError('got a\nb; need c')

    assert end(run, tmp_path) == (2, 'tflearn-x: error: got a b; need c\n')


def test_any_other_error_has_its_stack_and_status_1(tmp_path):
    def run():
        with job_flags.ending('tflearn-x'):
            raise KeyError('a')

    code, output = end(run, tmp_path)
    assert code == 1
    assert output.startswith('Traceback') and output.endswith("\ntflearn-x: error: KeyError: 'a'\n")


@pytest.mark.parametrize('error', [KeyboardInterrupt, BrokenPipeError])
def test_a_signal_has_128_and_its_number(error, tmp_path):
    def run():
        with job_flags.ending('tflearn-x'):
            raise error

    number = {KeyboardInterrupt: signal.SIGINT, BrokenPipeError: signal.SIGPIPE}[error]
    code, output = end(run, tmp_path)
    assert code == 128 + number and output.count('\n') <= 1


@pytest.mark.parametrize(
    'command',
    [
        ['data', 'describe', '--data={}/closed'],
        ['doctor', '{}/closed'],
        ['serve', '--root_dir={}/closed', '--port=0'],
        ['export', '--root_dir={}/closed'],
        ['launch', '--root_dir={}/closed/run', '--gin_file=dqn_cartpole'],
    ],
    ids=lambda command: command[0],
)
def test_a_directory_without_permission_is_one_line(command, tmp_path):
    closed = tmp_path / 'closed'
    (closed / 'policies').mkdir(parents=True)

    def run():
        closed.chmod(0)
        header = struct.pack('Ii', 0x20080522, 0)  # the version of the call; this process
        ctypes.CDLL(None).capset(header, bytes(24))  # root without capabilities may use no more than others
        program([command[0]], *(each.format(tmp_path) for each in command[1:]))()

    code, output = end(run, tmp_path)
    closed.chmod(0o700)
    assert code == 2 and 'Traceback' not in output, output
    assert re.search(r'tflearn-[a-z -]+: error: got .*closed.*need ', output.splitlines()[-1]), output
