"""The table of faults, which docs/operate.md shows."""

from collections.abc import Callable

import pytest

Row = Callable[..., None]
_ROWS = pytest.StashKey[list[tuple[str, str, str, str]]]()


@pytest.fixture
def promise(request) -> Row:
    """A function that adds a row: promise(fault, what was lost at most, recovery in seconds or words)."""
    rows = request.config.stash.setdefault(_ROWS, [])

    def add(fault: str, lost: str, recovery: object) -> None:
        text = f'{recovery:.0f} s' if isinstance(recovery, float) else str(recovery)
        rows.append((fault, lost, text, f'`{request.node.name}`'))

    return add


def pytest_terminal_summary(terminalreporter, config) -> None:
    """Prints the table."""
    rows = config.stash.get(_ROWS, [])
    if rows:
        lines = [('fault', 'lost at most', 'recovery', 'test'), ('---',) * 4, *rows]
        terminalreporter.write_line('\n'.join('| ' + ' | '.join(line) + ' |' for line in lines))
