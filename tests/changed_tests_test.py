"""Which files of tests `scripts/test --changed` runs."""

import subprocess

import pytest

from tests.architecture.source_tree import SourceFile
from tests.testing import changed_tests

FILES = {
    'tflearn/__init__.py': 'from tflearn.core import errors',
    'tflearn/core/errors.py': '',
    'tflearn/core/types.py': 'NAMES = {"extension": "tflearn.tools.report"}',
    'tflearn/api/training.py': 'from tflearn.core import types',
    'tflearn/tools/report.py': '',
    'tflearn/jobs/train.py': 'def train(): from tflearn.core import types',
    'scripts/train.py': 'import importlib; importlib.import_module(f"tflearn.jobs.{job}")',
    'tests/conftest.py': '',
    'tests/fakes.py': 'from tflearn.core import types',
    'tests/api/conftest.py': 'from tests import fakes',
    'tests/api/training_test.py': 'import tflearn\ntflearn.train()',
    'tests/api/empty_test.py': '',
    'tests/core/errors_test.py': 'from tflearn.core.errors import UserError',
    'tests/scripts_test.py': "PROGRAM = \"import scripts.train; run('dqn_cartpole', 'table.csv')\"",
}
ALL = sorted(path for path in FILES if path.endswith('_test.py'))


@pytest.mark.parametrize(
    ('change', 'expected'),
    [
        ('tests/core/errors_test.py', ['tests/core/errors_test.py']),
        ('tflearn/core/errors.py', ALL),
        # By a public name; by fixtures; by a program in a text, whose job's name is put together.
        ('tflearn/core/types.py', ['tests/api/empty_test.py', 'tests/api/training_test.py', 'tests/scripts_test.py']),
        ('tflearn/api/training.py', ['tests/api/training_test.py']),
        ('tflearn/jobs/train.py', ['tests/scripts_test.py']),
        ('tflearn/jobs/removed.py', ['tests/scripts_test.py']),
        ('tflearn/tools/report.py', []),
        ('tests/api/conftest.py', ['tests/api/empty_test.py', 'tests/api/training_test.py']),
        ('tests/conftest.py', ALL),
        ('gin/dqn_cartpole.gin', ['tests/scripts_test.py']),
        ('tests/table.csv', ['tests/scripts_test.py']),
        ('requirements/classic/lock.txt', ALL),
        ('docs/index.md', []),
    ],
)
def test_files_that_a_change_may_affect(change, expected):
    files = [SourceFile(path, text) for path, text in FILES.items()]
    public = {'tflearn.train': 'tflearn.api.training'}
    assert sorted(changed_tests.affected(files, {change}, public)) == expected


def test_changes_are_those_since_the_branch_began(tmp_path):
    def git(*arguments):
        identity = ('-c', 'user.name=t', '-c', 'user.email=t@localhost', '-c', 'init.defaultBranch=main')
        subprocess.run(['git', *identity, *arguments], cwd=tmp_path, check=True, capture_output=True)

    git('init')
    for name in ('a', 'b', 'c'):
        (tmp_path / name).write_text('1')
    git('add', '.')
    git('commit', '-m', 'first')
    assert changed_tests.changed(tmp_path) == set()
    git('checkout', '-b', 'branch')
    (tmp_path / 'a').write_text('2')
    git('commit', '-a', '-m', 'second')
    (tmp_path / 'b').unlink()
    (tmp_path / 'new').touch()
    assert changed_tests.changed(tmp_path) == {'a', 'b', 'new'}
