"""All pairs of agent, task and path of the conformance matrix, each in one cell at least.

`python -m benchmarks.conformance` runs all cells.
"""

import itertools

import pytest

from tests.testing.conformance_cells import AGENTS, CELLS, TASKS, possible, refusal, run
from tests.testing.replay import serve  # noqa: F401 - a fixture

# TF-Agents' CategoricalProjectionNetwork makes an array of one element a number.
pytestmark = pytest.mark.filterwarnings('ignore:Conversion of an array with ndim > 0:DeprecationWarning')


def cover():
    """Returns cells that hold every possible pair of two of agent, task and path."""
    open_pairs = {pair for cell in CELLS if possible(*cell) for pair in itertools.combinations(cell, 2)}
    chosen = []
    while open_pairs:
        counts = {cell: len(open_pairs & set(itertools.combinations(cell, 2))) for cell in CELLS if possible(*cell)}
        chosen.append(max(counts, key=counts.get))
        open_pairs -= set(itertools.combinations(chosen[-1], 2))
    return chosen


COVER = cover()
# The first cell of each agent and of each task; exports take most of the time.
EXPORTED = {next(cell for cell in COVER if name in cell) for name in (*AGENTS, *TASKS)}


@pytest.mark.parametrize('cell', COVER, ids=' - '.join)
def test_every_pair_of_agent_task_and_path_trains(cell, tmp_path, serve):  # noqa: F811
    run(*cell, tmp_path, serve, cell in EXPORTED)


def test_impossible_cells_are_refused_in_one_line():
    for cell in CELLS:
        if not possible(*cell):
            message = refusal(*cell)
            assert message.startswith('got ') and '\n' not in message and '; ' in message, message
