"""Verbs, programs and flags are completed by real shells, at a terminal."""

import os
import pathlib
import pty
import select
import shutil
import time

import pytest

from tests.testing import command_lines

DEADLINE_SECS = 60.0
SHELLS = {'bash': ['--norc', '--noprofile', '-i'], 'zsh': ['-f', '-i']}
BEFORE = {'bash': '', 'zsh': 'autoload -U compinit && compinit -u -D; '}


class Shell:
    """A shell at a terminal."""

    def __init__(self, name: str, folder: pathlib.Path):
        self._pid, self._terminal = pty.fork()
        if self._pid == 0:
            environment = {**os.environ, 'TERM': 'dumb', 'PS1': '> ', 'HOME': str(folder)}
            os.chdir(folder)
            os.execvpe(name, [name, *SHELLS[name]], environment)

    def type(self, text: str, until: str) -> None:
        """Types, and waits until the shell has printed what it is to print."""
        os.write(self._terminal, text.encode())
        printed, end = '', time.monotonic() + DEADLINE_SECS
        while until not in printed:
            assert select.select([self._terminal], [], [], max(0.0, end - time.monotonic()))[0], printed
            printed += os.read(self._terminal, 4096).decode(errors='replace')

    def close(self) -> None:
        os.close(self._terminal)
        os.waitpid(self._pid, 0)


@pytest.fixture(params=SHELLS)
def shell(request, tmp_path):
    if not shutil.which(request.param):
        pytest.skip(f'needs {request.param}')
    printed = command_lines.run('completion', request.param, timeout=DEADLINE_SECS)
    assert (printed.returncode, printed.stderr) == (0, '')
    (tmp_path / 'script').write_text(printed.stdout)
    (tmp_path / 'my_runs').mkdir()
    started = Shell(request.param, tmp_path)
    started.type(f'{BEFORE[request.param]}source ./script; echo read""y\n', 'ready')
    yield started
    started.close()


@pytest.mark.parametrize(
    ('typed', 'completed'),
    [
        ('tflearn compl', 'tflearn completion '),
        ('tflearn help sac_pendulum_h', 'tflearn help sac_pendulum_hidden '),
        ('tflearn data spl', 'tflearn data split '),
        ('tflearn data split --sh', 'tflearn data split --share '),
        pytest.param(
            *('tflearn compare a b --low', 'tflearn compare a b --lower_is_better '), marks=pytest.mark.extensions
        ),
        ('tflearn list my', 'tflearn list my_runs/'),
        ('tflearn-train --strat', 'tflearn-train --strategy '),
    ],
)
def test_a_tab_completes(shell, typed, completed):
    shell.type(f'{typed}\t', completed)


def test_an_unknown_shell_is_one_line():
    ended = command_lines.run('completion', 'fish', timeout=DEADLINE_SECS)
    assert ended.returncode == 2
    assert ended.stderr == "tflearn completion: error: got 'fish'; need one of bash, zsh\n"
