"""Each agent, task and path of the conformance matrix in one cell at least; the slow tests have all their pairs.

`python -m benchmarks.conformance` runs all cells.
"""

import itertools

import pytest

from tests.testing.conformance_cells import CELLS, possible, refusal, run
from tests.testing.replay import serve  # noqa: F401 - a fixture

# TF-Agents' CategoricalProjectionNetwork makes an array of one element a number.
pytestmark = pytest.mark.filterwarnings('ignore:Conversion of an array with ndim > 0:DeprecationWarning')


def cover(size, chosen=()):
    """Returns cells that hold every possible choice of `size` of agent, task and path, beginning with `chosen`."""
    parts = {cell: set(itertools.combinations(cell, size)) for cell in CELLS if possible(*cell)}
    chosen = [*chosen]
    missing = set().union(*parts.values()).difference(*(parts[cell] for cell in chosen))
    while missing:
        chosen.append(max(parts, key=lambda cell: len(missing & parts[cell])))
        missing -= parts[chosen[-1]]
    return chosen


SINGLES = cover(1)
PAIRS = cover(2, SINGLES)[len(SINGLES) :]


@pytest.mark.parametrize(
    'cell', [*SINGLES, *(pytest.param(cell, marks=pytest.mark.slow) for cell in PAIRS)], ids=' - '.join
)
def test_every_agent_task_and_path_trains(cell, tmp_path, serve):  # noqa: F811
    run(*cell, tmp_path, serve, exports=cell in SINGLES)


def test_impossible_cells_are_refused_in_one_line():
    for cell in CELLS:
        if not possible(*cell):
            message = refusal(*cell)
            assert message.startswith('got ') and '\n' not in message and '; ' in message, message
