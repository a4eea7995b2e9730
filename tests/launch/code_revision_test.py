import re
import subprocess

import pytest

import tflearn
from tflearn.launch.code_revision import code_revision, code_snapshot

VERSION = f'version {tflearn.__version__}'


@pytest.fixture
def file(tmp_path):
    """A file that a fresh checkout tracks."""
    path = tmp_path / 'package' / 'code.py'
    path.parent.mkdir()
    path.write_text('a = 1\n')
    git(tmp_path, 'init', '--quiet')
    git(tmp_path, 'add', '.')
    git(tmp_path, '-c', 'user.name=n', '-c', 'user.email=e', 'commit', '--quiet', '--message=first')
    return path


def git(folder, *arguments):
    command = ['git', '-C', str(folder), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60.0).stdout.strip()


def test_revision_of_a_checkout_marks_changes(file, tmp_path):
    revision = git(tmp_path, 'rev-parse', 'HEAD')
    git(tmp_path, '-c', 'user.name=n', '-c', 'user.email=e', 'tag', '--annotate', 'v1', '--message=v1')
    assert code_revision(file) == revision
    (tmp_path / 'notes').write_text('not tracked')
    assert code_revision(file) == revision
    file.write_text('a = 2\n')
    assert code_revision(file) == f'{revision}-dirty'


def test_snapshot_has_differences_and_untracked_files(file, tmp_path):
    revision = git(tmp_path, 'rev-parse', 'HEAD')
    text = code_snapshot([file.parent])
    assert f'## {tmp_path.name}\n\nrevision `{revision}`\n\nuntracked: none\n\nno differences' in text
    file.write_text('a = 2\n')
    git(tmp_path, 'add', '.')  # staged changes count too
    (tmp_path / 'notes').write_text('not tracked')
    text = code_snapshot([file.parent])
    assert 'untracked: notes' in text and '\n    -a = 1\n    +a = 2' in text
    assert '... cut: ' in code_snapshot([file.parent], max_chars=20)
    assert code_snapshot([file.parent, tmp_path]).count(f'## {tmp_path.name}\n') == 1


def test_untracked_file_gives_the_version(file):
    installed = file.with_name('installed.py')
    installed.write_text('')
    assert code_revision(installed) == VERSION


def test_version_without_a_checkout(tmp_path):
    assert code_revision(tmp_path / 'code.py') == VERSION


def test_version_without_git(file, monkeypatch):
    monkeypatch.setenv('PATH', '')
    assert code_revision(file) == VERSION


def test_revision_of_this_package():
    assert re.fullmatch(r'[0-9a-f]{40}(-dirty)?|version [\w.]+', code_revision())
