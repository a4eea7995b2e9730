"""The revision of the code that runs, which is recorded with its results;
and its uncommitted changes.
"""

import pathlib
import subprocess
from collections.abc import Sequence

import tflearn

_TIMEOUT_SECS = 20.0
_MAX_CHARS = 500_000
_HERE = pathlib.Path(__file__)


def code_revision(file: pathlib.Path = _HERE) -> str:
    """Returns the git revision that the source `file` belongs to, or this package's version.

    Returns:
      The revision's hash, followed by '-dirty' if a tracked file of the checkout differs from it;
      'version ...' where `file` is not tracked by git (it is installed, perhaps in somebody's
      checkout), or there is no git.
    """
    tracked = _git(file, 'ls-files', '--error-unmatch', file.name)
    revision = tracked and _git(file, 'describe', '--always', '--dirty', '--abbrev=40', '--exclude=*')
    return revision or f'version {tflearn.__version__}'


def code_snapshot(folders: Sequence[pathlib.Path] = (), max_chars: int = _MAX_CHARS) -> str:
    """Returns the git revision, the differences from it and the untracked files of checkouts,
    in Markdown.

    Args:
      folders: folders of checkouts, besides this package's own; None of them need be one.
      max_chars: where the differences of a checkout are cut.
    """
    roots = [_git(file, 'rev-parse', '--show-toplevel') for file in (_HERE, *(folder / '_' for folder in folders))]
    texts = []
    for root in dict.fromkeys(root for root in roots if root):
        inside = pathlib.Path(root, '_')
        revision = _git(inside, 'rev-parse', 'HEAD') or 'no commit'
        difference = _git(inside, 'diff', 'HEAD') or ''
        if len(difference) > max_chars:
            difference = f'{difference[:max_chars]}\n... cut: {len(difference)} characters in total'
        untracked = _git(inside, 'ls-files', '--others', '--exclude-standard') or ''
        names = ', '.join(untracked.splitlines()) or 'none'
        parts = [f'## {inside.parent.name}', f'revision `{revision}`', f'untracked: {names}']
        texts.append('\n\n'.join([*parts, *([_verbatim(difference)] if difference else ['no differences'])]))
    return '\n\n'.join(texts) or f'no checkout; version {tflearn.__version__}'


def _verbatim(text: str) -> str:
    return '\n'.join(f'    {line}' for line in text.splitlines())


def _git(file: pathlib.Path, *arguments: str) -> str | None:
    try:
        ended = subprocess.run(
            ['git', '-C', str(file.parent), *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_SECS,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return ended.stdout.strip()
