"""The revision of the code that runs, which is recorded with its results."""

import pathlib
import subprocess

import tflearn

_TIMEOUT_SECS = 20.0
_HERE = pathlib.Path(__file__)


def code_revision(file: pathlib.Path = _HERE) -> str:
    """Returns the git revision that the source `file` belongs to, or this package's version.

    Returns:
      The revision's hash, followed by '-dirty' if a tracked file of the checkout differs from it; 'version ...' where
      `file` is not tracked by git (it is installed, perhaps in somebody's checkout), or there is no git.
    """
    tracked = _git(file, 'ls-files', '--error-unmatch', file.name)
    revision = tracked and _git(file, 'describe', '--always', '--dirty', '--abbrev=40', '--exclude=*')
    return revision or f'version {tflearn.__version__}'


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
