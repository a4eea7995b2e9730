"""Each agent, kind of observation and of action, and path, in one cell of the conformance matrix at least.

A cell of which only the agent, the observation or its network is new takes a few train steps without a run. The slow
tests have runs of each pair of them, as `python -m benchmarks.conformance`, which keeps its results.
"""

import pytest

from tests.testing import conformance_cells, lanes, plain_loader

WHOLE, BRIEF = conformance_cells.first()
PAIRS = [
    cell if cell in WHOLE else pytest.param(cell, marks=pytest.mark.slow)
    for cell in conformance_cells.cover(2, [*WHOLE, *BRIEF])
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


@pytest.mark.parametrize('cell', BRIEF, ids=' - '.join)
def test_every_other_agent_and_network_trains_briefly_and_its_policy_acts_in_tensorflow_alone(cell, tmp_path, plain):
    run = conformance_cells.Run(cell, tmp_path)
    run.train_briefly()
    run.check(plain, conformance_cells.BRIEF_TRAIN_STEPS)


@lanes.classic
@pytest.mark.parametrize('cells', [REFUSED[::5], pytest.param(REFUSED, marks=pytest.mark.slow)], ids=['some', 'all'])
def test_what_cannot_work_is_refused_in_one_line(cells, tmp_path):
    for i, cell in enumerate(cells):
        message = conformance_cells.refusal(cell, tmp_path / str(i))
        assert message.startswith('got ') and '\n' not in message and '; ' in message, (cell, message)
