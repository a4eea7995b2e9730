import types

import pytest

from tests.testing import forks
from tests.testing.jobs import SMALL_BINDINGS

DEADLINE_SECS = 240.0


@pytest.fixture(scope='session')
def two_seeds(tmp_path_factory):
    """The folder of tflearn-seeds with the short runs of the seeds 3 and 4, and what the program printed."""
    folder = tmp_path_factory.mktemp('two_seeds')
    flags = ['--gin_file=dqn_cartpole', '--seeds=2', '--first_seed=3', '--parallel=2', '--mode=synchronous']
    flags += [f'--root_dir={folder / "runs"}', *(f'--gin_bindings={binding}' for binding in SMALL_BINDINGS)]
    ended = forks.run('scripts.seeds', *flags, timeout=DEADLINE_SECS, cwd=folder)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return types.SimpleNamespace(root=folder / 'runs', output=ended.stdout)
