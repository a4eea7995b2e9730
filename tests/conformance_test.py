"""Each agent, kind of observation and of action, and path, in one cell of the conformance matrix at least.

The slow tests have each pair of them, as `python -m benchmarks.conformance`, which keeps its results.
"""

import pytest

from tests.testing import conformance_cells, lanes, plain_loader

FIRST = conformance_cells.cover(1)
PAIRS = [
    cell if cell in FIRST else pytest.param(cell, marks=pytest.mark.slow) for cell in conformance_cells.cover(2, FIRST)
]
REFUSED = conformance_cells.refused()


@pytest.fixture(scope='module')
def plain():
    with plain_loader.started() as started:
        yield started


@pytest.mark.parametrize('cell', PAIRS, ids=' - '.join)
def test_trains_and_its_policy_acts_in_tensorflow_alone(cell, tmp_path, plain):
    run = conformance_cells.Run(cell, tmp_path)
    run.train()
    run.check(plain)


@lanes.classic
@pytest.mark.parametrize('cells', [REFUSED[::5], pytest.param(REFUSED, marks=pytest.mark.slow)], ids=['some', 'all'])
def test_what_cannot_work_is_refused_in_one_line(cells, tmp_path):
    for i, cell in enumerate(cells):
        message = conformance_cells.refusal(cell, tmp_path / str(i))
        assert message.startswith('got ') and '\n' not in message and '; ' in message, (cell, message)
