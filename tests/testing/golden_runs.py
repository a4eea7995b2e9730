"""Runs that many tests read: each is made once from the sources as they are, and every test gets a copy.

A run is kept below pytest's cache, under a digest of all that it is made by: processes of tests share it, and a later
call of the tests finds it again until a source changes.
"""

import fcntl
import functools
import hashlib
import pathlib
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable

import gymnasium
import numpy as np
import tensorflow as tf
import tf_agents

from tests.testing import forks, jobs
from tflearn.files.run_dir import RunDir
from tflearn.jobs.policy_exports import ExportOptions
from tflearn.jobs.synchronous import synchronous

CHECKOUT = pathlib.Path(__file__).resolve().parents[2]
_CACHE = CHECKOUT / '.pytest_cache' / 'golden_runs'
_SOURCES = ('tflearn', 'gin', 'scripts')
_LIBRARIES = (tf, tf_agents, gymnasium, np)
_KEPT_SECS = 24 * 3600  # of sources that have changed since
DEADLINE_SECS = 240.0


def _dqn(folder: pathlib.Path) -> None:
    """DQN on CartPole in one process: 20 train steps; all policies are exported before them and after them."""
    run = jobs.SmallRun(folder / 'run')
    given = {
        **run.factories(),
        'run_dir': run.dir,
        'stop': threading.Event(),
        'exports': ExportOptions(),
        'num_environments': 2,
        'num_train_steps': 20,
        'export_interval_steps': 20,
        'seed': 1,
    }
    synchronous(**jobs.job_arguments(synchronous, given))


def _seeds(folder: pathlib.Path) -> None:
    """The short runs of the seeds 3 and 4 of `tflearn seeds`, each in a process; what it printed is in `seeds.out`."""
    flags = ['--gin_file=dqn_cartpole', '--seeds=2', '--first_seed=3', '--parallel=2', '--mode=synchronous']
    bindings = [*jobs.SMALL_BINDINGS, 'train.ExportOptions.policies = ("greedy_policy",)']
    flags += [f'--root_dir={folder / "run"}', *(f'--gin_bindings={binding}' for binding in bindings)]
    ended = forks.run('scripts', 'seeds', *flags, timeout=DEADLINE_SECS, cwd=folder)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    (folder / 'run' / 'seeds.out').write_text(ended.stdout)


_MAKERS: dict[str, Callable[[pathlib.Path], None]] = {'dqn': _dqn, 'seeds': _seeds}


def copy(name: str, folder: pathlib.Path) -> pathlib.Path:
    """Returns the root of a copy of a run, 'dqn' or 'seeds', below the folder."""
    return shutil.copytree(_made(name), folder / 'run', symlinks=True)


def dqn(folder: pathlib.Path) -> RunDir:
    """Returns a copy of the run of DQN."""
    return RunDir(copy('dqn', folder))


def _made(name: str) -> pathlib.Path:
    """Returns the run's root; makes the run if nobody has, while other processes of tests wait for it."""
    _CACHE.mkdir(parents=True, exist_ok=True)
    kept = _CACHE / f'{name}-{_digest()}'
    with (_CACHE / f'{name}.lock').open('w') as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not kept.exists():
            with tempfile.TemporaryDirectory(dir=_CACHE) as temporary:
                folder = pathlib.Path(temporary) / 'made'
                folder.mkdir()
                _MAKERS[name](folder)
                folder.rename(kept)
            for other in _CACHE.iterdir():  # also what a process left that was killed
                if other.is_dir() and other != kept and time.time() - other.stat().st_mtime > _KEPT_SECS:
                    shutil.rmtree(other, ignore_errors=True)
    return kept / 'run'


@functools.cache
def _digest() -> str:
    """A digest of the sources, of this interpreter, and of the libraries that compute."""
    files = [path for source in _SOURCES for path in (CHECKOUT / source).rglob('*') if path.suffix in ('.py', '.gin')]
    digest = hashlib.sha256(f'{sys.prefix} {sys.version}'.encode())
    for library in _LIBRARIES:
        digest.update(library.__version__.encode())
    for path in sorted([*files, pathlib.Path(__file__), CHECKOUT / 'tests' / 'testing' / 'jobs.py']):
        digest.update(f'{path.relative_to(CHECKOUT)}\n'.encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]
