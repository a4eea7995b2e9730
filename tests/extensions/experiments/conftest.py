import types

import pytest

from tests.testing import golden_runs


@pytest.fixture(scope='session')
def two_seeds(tmp_path_factory):
    """The folder of tflearn seeds with the short runs of the seeds 3 and 4, and what the program printed."""
    root = golden_runs.copy('seeds', tmp_path_factory.mktemp('two_seeds'))
    return types.SimpleNamespace(root=root, output=(root / 'seeds.out').read_text())
