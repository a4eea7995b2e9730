"""Every program ends by the exit statuses in docs/operate.md."""

import pathlib
import re
import signal

import pytest

import scripts
from scripts import data_flags
from tests.testing import command_lines, forks
from tests.testing.console_programs import PROGRAMS, VERBS, name
from tflearn.core.errors import TRY_AGAIN_EXIT_STATUS

ROOT = pathlib.Path(scripts.__path__[0]).parent
DEADLINE_SECS = 60.0
# Programs and verbs; `data` and `evaluate` are each several.
COMMANDS = [
    *([program] for program in (*PROGRAMS, *VERBS)),
    *(['data', command] for command in (*data_flags.JOBS, *data_flags.COMMANDS)),
    ['evaluate', '--data=data'],
]
ENDED_BY = """
from scripts import job_flags
from tflearn.core.errors import UserRuntimeError

with job_flags.ending('tflearn-x'):
    raise {}
"""
# Root without capabilities may use no more than others; 0x20080522 is the version of the call, 0 this process.
WITHOUT_CAPABILITIES = """
import ctypes, struct, sys
from tests.testing import console_programs

ctypes.CDLL(None).capset(struct.pack('Ii', 0x20080522, 0), bytes(24))
console_programs.main(*sys.argv[1:])
"""


def end(command, *arguments):
    """Returns the exit status of a program, and what it wrote to stderr and stdout."""
    name, *before = command
    ended = command_lines.run(name, *before, *arguments, timeout=DEADLINE_SECS)
    return ended.returncode, ended.stderr + ended.stdout


@pytest.fixture
def end_by(tmp_path):
    """Returns a function that ends a program without a job by an exception, like `end`."""

    def end_by(raised):
        file = tmp_path / 'program.py'
        file.write_text(ENDED_BY.format(raised))
        ended = forks.run(str(file), timeout=DEADLINE_SECS, cwd=ROOT)
        return ended.returncode, ended.stderr + ended.stdout

    return end_by


def test_there_are_all_programs():
    assert len(PROGRAMS) == 8 and len(VERBS) >= 20


@pytest.mark.parametrize('command', COMMANDS, ids=' '.join)
def test_help_ends_with_0_and_a_wrong_flag_with_2(command):
    code, output = end(command, '--help')
    assert code == 0 and output.startswith(f'{name(command[0])}'), output
    code, output = end(command, '--no_such_flag=1')
    assert code == 2
    assert re.fullmatch(rf'{name(command[0])}( [a-z]+)?: error: got .*(need|see) .*\n', output), output


def test_the_documentation_lists_them():
    (table,) = re.findall(r'^\| exit status \|.*\n((?:\|.*\n)+)', (ROOT / 'docs' / 'operate.md').read_text(), re.M)
    rows = [line.split(' | ')[0].removeprefix('| ') for line in table.splitlines()[1:]]
    assert rows == ['0', '2', '69', str(TRY_AGAIN_EXIT_STATUS), '128 + N', '1']


def test_a_user_error_of_a_program_without_a_job_is_one_line(end_by):
    assert end_by(r"UserRuntimeError('got a\nb; need c')") == (2, 'tflearn-x: error: got a b; need c\n')


def test_a_full_disk_is_one_line(end_by):
    code, output = end_by("OSError(28, 'No space left on device', 'file')")
    assert code == 2 and output.count('\n') == 1
    assert output.startswith("tflearn-x: error: got a full disk of 'file' (No space left on device); need room; make ")


def test_any_other_error_has_its_stack_and_status_1(end_by):
    code, output = end_by("KeyError('a')")
    assert code == 1
    assert output.startswith('Traceback') and output.endswith("\ntflearn-x: error: KeyError: 'a'\n")


@pytest.mark.parametrize(
    ('error', 'number'), [('KeyboardInterrupt', signal.SIGINT), ('BrokenPipeError', signal.SIGPIPE)]
)
def test_a_signal_has_128_and_its_number(error, number, end_by):
    code, output = end_by(error)
    assert code == 128 + number and output.count('\n') <= 1


LOOP = """
from __gin__ import dynamic_registration
from tflearn.extensions.product import loop

loop.loop.logs = @loop.Logs()
loop.Logs.decisions = ['decisions']
loop.Logs.outcomes = ['outcomes']
loop.Logs.window_secs = 10.0
loop.Logs.columns = '{0}/columns.toml'
loop.loop.training = @loop.Training()
loop.Training.gin_file = 'neural_bandit_contextual_bandit'
loop.loop.serving = '{0}/serving'
loop.Schedule.hours = 1.0
loop.loop.schedule = @loop.Schedule()
"""


@pytest.mark.parametrize(
    'command',
    [
        ['data', 'describe', '--data={}/closed'],
        ['doctor', '{}/closed'],
        ['serve', '--root_dir={}/closed', '--port=0'],
        ['export', '--root_dir={}/closed'],
        ['launch', '--root_dir={}/closed/run', '--gin_file=dqn_cartpole'],
        ['loop', '--root_dir={}/closed/run', '--gin_file={}/loop.gin'],
    ],
    ids=lambda command: command[0],
)
def test_a_directory_without_permission_is_one_line(command, tmp_path):
    closed = tmp_path / 'closed'
    (closed / 'policies').mkdir(parents=True)
    (tmp_path / 'loop.gin').write_text(LOOP.format(tmp_path))
    (tmp_path / 'columns.toml').write_text("action = 'x'\nobservation = {x = 'x'}\n")
    closed.chmod(0)
    file = tmp_path / 'program.py'
    file.write_text(WITHOUT_CAPABILITIES)
    arguments = [each.format(tmp_path) for each in command[1:]]
    ended = forks.run(str(file), command[0], *arguments, timeout=DEADLINE_SECS, cwd=ROOT)
    code, output = ended.returncode, ended.stdout + ended.stderr
    closed.chmod(0o700)
    assert code == 2 and 'Traceback' not in output, output
    assert re.search(r'tflearn[- ][a-z -]+: error: got .*closed.*need ', output.splitlines()[-1]), output
