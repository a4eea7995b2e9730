"""One command, `tflearn`: what it lists is there, and what is not there is answered in one line."""

import importlib.util
import resource
import subprocess
import sys

import pytest

from scripts import commands, tools
from tests.testing import forks, without_extensions
from tests.testing.console_programs import PROGRAMS, VERBS
from tflearn.core import extensions
from tflearn.core.errors import UserImportError, UserValueError

DEADLINE_SECS = 60.0
HELP_SECS = 0.5
TIMED = 'import sys; sys.argv[1:] = ["--help"]; from scripts import __main__; __main__.main()'
LOADED = f'{TIMED}; print(*sys.modules, file=sys.stderr)'


def run(*arguments):
    return subprocess.run(
        [sys.executable, *arguments], cwd=forks.CHECKOUT, capture_output=True, text=True, timeout=DEADLINE_SECS
    )


def test_help_lists_every_verb_and_program_and_loads_no_tensorflow():
    ended = run('-c', LOADED)
    assert ended.returncode == 0
    listed = [line.split()[0] for line in ended.stdout.splitlines() if line.startswith('  ')]
    assert [verb.replace('-', '_') for verb in listed] == [*VERBS] and len(set(listed)) == len(listed)
    assert all(f'tflearn-{program}' in ended.stdout for program in commands.PROGRAMS)
    modules = {name.partition('.')[0] for name in ended.stderr.split()}
    assert 'tflearn' in modules and not modules & {'tensorflow', 'numpy', 'gin', 'rich'}


def test_help_is_there_at_once():
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert run('-c', TIMED).returncode == 0
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    # The processor's time, which is that of the clock on a machine that does nothing else.
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < HELP_SECS


@pytest.mark.extensions
@pytest.mark.parametrize('name', [*PROGRAMS, *VERBS])
def test_each_is_a_module_or_a_verb_of_an_extension(name):
    verb = name.replace('_', '-')
    if found := tools.VERBS.get(verb) or extensions.verb(verb):
        assert found.run.__doc__
    else:
        assert importlib.util.find_spec(f'scripts.{name}')


@pytest.mark.extensions
def test_verbs_of_extensions_are_those_of_the_registry():
    for extension in set(extensions.VERBS.values()):
        own = extensions.imported(f'tflearn.extensions.{extension}.cli').VERBS
        assert {*own} == {verb for verb, of in extensions.VERBS.items() if of == extension}


@pytest.mark.parametrize(
    ('word', 'nearest'),
    [
        ('comapre', 'tflearn compare'),
        ('train_offline', 'tflearn train-offline'),
        ('trian', 'tflearn-train'),
        ('launch', 'tflearn-launch'),
        ('replay_server', 'tflearn-replay-server'),
        ('checkenv', 'tflearn check-env'),
    ],
)
def test_a_wrong_verb_is_answered_with_the_nearest_command(word, nearest):
    with pytest.raises(UserValueError, match=f'^got {word!r}; need a verb .*; the nearest command is {nearest}$'):
        commands.check(word)


def test_a_wrong_verb_is_one_line():
    ended = run('-m', 'scripts', 'reprot', '--output=x')
    assert (ended.returncode, ended.stdout, ended.stderr.count('\n')) == (2, '', 1)
    assert ended.stderr.startswith("tflearn: error: got 'reprot'; need ")


@pytest.mark.parametrize(('verb', 'extra'), [('report', 'experiments'), ('loop', 'product')])
def test_a_verb_of_a_missing_extension_names_its_extra(verb, extra):
    with without_extensions.hidden(), pytest.raises(UserImportError) as error:
        extensions.verb(verb)
    assert str(error.value).startswith(f'got no extension {extra}, ')
    assert str(error.value).endswith(f"pip install 'tflearn-agents[{extra}]'")


def test_without_a_verb_it_shows_the_help():
    shown = run('-m', 'scripts')
    assert (shown.returncode, shown.stdout) == (0, f'{commands.help_text()}\n')
