"""A release: scripts/release on a repository of its own, up to what would be signed and published."""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile

import pytest

import tflearn

ROOT = pathlib.Path(__file__).resolve().parents[1]
VERSION = tflearn.__version__
TAG = f'v{VERSION}'
OWNER = {
    'author': "An Owner's Group",
    'email': 'owner@example.org',
    'repository': 'https://example.org/owner/project',
    'security_contact': 'security@example.org',
}


def run(*command: str | os.PathLike[str], cwd: pathlib.Path, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=cwd, env=os.environ | variables, text=True, capture_output=True, timeout=120, check=False
    )


def git(folder: pathlib.Path, *arguments: str) -> None:
    done = run('git', '-c', 'user.name=n', '-c', 'user.email=e', *arguments, cwd=folder)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope='module')
def checkout(tmp_path_factory) -> pathlib.Path:
    """The checkout, with all that the owner fills in, committed and tagged."""
    folder = tmp_path_factory.mktemp('release') / 'checkout'
    ignore = shutil.ignore_patterns('.venv*', '.git', '.*_cache', 'runs', 'build', 'dist', '*.egg-info', '__pycache__')
    shutil.copytree(ROOT, folder, ignore=ignore)
    (folder / 'owner.toml').write_text('\n'.join(f'{name} = "{value}"' for name, value in OWNER.items()))
    changes = folder / 'CHANGELOG.md'
    changes.write_text(changes.read_text(encoding='utf-8').replace('## Unreleased', f'## {VERSION}'), encoding='utf-8')
    done = run(sys.executable, '-m', 'tests.architecture.owner_pages', cwd=folder, PYTHONPATH=str(folder))
    assert done.returncode == 0, done.stderr
    for command in (['init', '--quiet'], ['add', '.'], ['commit', '--quiet', '--message=all'], ['tag', TAG]):
        git(folder, *command)
    return folder


def release(folder: pathlib.Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return run(
        sys.executable, folder / 'scripts' / 'release', *arguments, cwd=folder, TFLEARN_VENV=sys.prefix, **variables
    )


def test_a_dry_run_builds_and_checks_what_the_tag_holds(checkout):
    done = release(checkout, '--dry_run', '--no_resolve', TAG)
    assert done.returncode == 0, done.stdout + done.stderr
    wheel, sdist = checkout.glob('dist/*.whl'), checkout.glob('dist/*.tar.gz')
    (wheel,), (sdist,) = wheel, sdist
    would = [line for line in done.stdout.splitlines() if line.startswith('would run: ')]
    assert [line.split()[2:4] for line in would] == [['pypi-attestations', 'sign'], ['twine', 'upload']]
    assert all(str(file) in line for file in (wheel, sdist) for line in would)
    with zipfile.ZipFile(wheel) as archive:
        text = archive.read(f'tflearn_agents-{VERSION}.dist-info/METADATA').decode()
    assert f'Author: {OWNER["author"]}\n' in text and f'Author-email: {OWNER["email"]}\n' in text
    assert f'Project-URL: Source, {OWNER["repository"]}\n' in text
    assert f']({OWNER["repository"]}/raw/{TAG}/docs/images/dqn_cartpole.png)' in text
    code = r'(?s)```.*?```'
    assert set(re.findall(code, (ROOT / 'README.md').read_text(encoding='utf-8'))) <= set(re.findall(code, text))
    links = re.findall(r'\]\(([^)]+)\)', re.sub(code, '', text))
    ours = [link.removeprefix(f'{OWNER["repository"]}/') for link in links if link.startswith(OWNER['repository'])]
    assert len(ours) > 20 and all(link.startswith('https://') for link in links)
    assert [link for link in ours if not (ROOT / link.split('/', 2)[2].partition('#')[0]).exists()] == []
    with tarfile.open(sdist) as archive:
        names = {name.partition('/')[2] for name in archive.getnames()}
    assert {'owner.toml', 'CITATION.cff', 'SECURITY.md', '.github/ISSUE_TEMPLATE/bug.yml', 'scripts/release'} <= names
    assert OWNER['author'] in (checkout / 'CITATION.cff').read_text()
    assert {file.name for file in checkout.glob('dist/*.json')} == {'sbom-classic.json', 'sbom-current.json'}


def test_an_extra_whose_versions_do_not_resolve_is_refused(checkout):
    program = checkout / 'scripts' / 'check_extras'
    program.write_text('#!/bin/sh\necho "$TFLEARN_LANE $1: pip is still looking at multiple versions" >&2; exit 1\n')
    git(checkout, 'commit', '--quiet', '--all', '--message=break')
    git(checkout, 'tag', '--force', TAG)
    done = release(checkout, '--dry_run', TAG)
    assert done.returncode == 2 and 'classic --resolve: pip is still looking at' in done.stderr
    assert 'got exit status 1 of' in done.stderr and 'check_extras --resolve' in done.stderr
    git(checkout, 'reset', '--quiet', '--hard', 'HEAD~1')
    git(checkout, 'tag', '--force', TAG)


@pytest.mark.parametrize(
    ('file', 'old', 'new', 'message'),
    [
        ('owner.toml', OWNER['author'], '<name>', 'got owner.toml without author; need'),
        ('owner.toml', OWNER['author'], 'Another', 'got CITATION.cff of another version or owner; need'),
        ('tflearn/__init__.py', f"'{VERSION}'", "'9.9.9'", f'got the tag {TAG}; need v9.9.9'),
        ('CHANGELOG.md', f'## {VERSION}', '## Unreleased', f'got no section {VERSION} in CHANGELOG.md; need'),
        ('README.md', '# tflearn', '# tf', 'got a checkout with changes; need'),
    ],
)
def test_what_must_not_be_published_is_refused_in_one_line(checkout, file, old, new, message):
    text = (checkout / file).read_text(encoding='utf-8')
    assert old in text
    (checkout / file).write_text(text.replace(old, new), encoding='utf-8')
    done = release(checkout, '--dry_run', TAG)
    assert (done.returncode, done.stdout) == (2, '')
    assert done.stderr.startswith(f'scripts/release: error: {message}') and done.stderr.count('\n') == 1
    git(checkout, 'checkout', '--quiet', '.')


def test_a_tag_elsewhere_and_missing_tools_are_refused_in_one_line(checkout):
    done = release(checkout, TAG, PATH=f'/usr/bin{os.pathsep}/bin')
    assert done.returncode == 2 and done.stderr.startswith(
        'scripts/release: error: got no twine and no pypi-attestations'
    )
    git(checkout, 'commit', '--quiet', '--allow-empty', '--message=later')
    done = release(checkout, '--dry_run', TAG)
    assert done.returncode == 2 and done.stderr.startswith(f'scripts/release: error: got no tag {TAG} at HEAD; need')
    git(checkout, 'reset', '--quiet', '--hard', TAG)
