"""The suite's results as files: the row, then a line of JSON for each run that ended, also of one that failed."""

import json
import os
import pathlib
from collections.abc import Iterable, Mapping
from typing import Any

from benchmarks.suite.rows import Row

Result = dict[str, Any]


def read(directory: pathlib.Path, key: str, row: Row) -> list[Result]:
    """Returns a row's results, by side and seed, that its present settings gave. An incomplete last line counts not."""
    path = directory / f'{key}.jsonl'
    lines = path.read_text(encoding='utf-8').split('\n')[:-1] if path.exists() else []
    found = [each for each in map(json.loads, lines) if 'row' not in each]
    sides = ('tflearn', *row.peers)
    valid = [each for each in found if each['side'] in sides and each['settings'] == row.settings(each['side'])]
    return sorted(valid, key=lambda each: (sides.index(each['side']), each['seed']))


def append(directory: pathlib.Path, key: str, result: Mapping[str, Any]) -> None:
    """Adds a run's result, after removing the incomplete last line that a killed program may have left."""
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / f'{key}.jsonl').open('a+b') as file:
        file.seek(0)
        file.truncate(file.read().rfind(b'\n') + 1)
        file.write((json.dumps(result) + '\n').encode())
        file.flush()
        os.fsync(file.fileno())


def by_side(results: Iterable[Result]) -> dict[str, list[Result]]:
    """Returns the results of each side that has any."""
    sides: dict[str, list[Result]] = {}
    for result in results:
        sides.setdefault(result['side'], []).append(result)
    return sides
