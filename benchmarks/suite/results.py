"""The suite's results as files: the row, then a line of JSON for each run that ended, also of one that failed."""

import hashlib
import json
import os
import pathlib
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from benchmarks.suite.rows import OURS, Row
from tflearn.config import files

Result = dict[str, Any]


def read(directory: pathlib.Path, key: str, row: Row) -> list[Result]:
    """Returns a row's results, by side and seed, that its present settings gave. An incomplete last line counts not.

    Ours count if the gin file is still what it was: a line has the digest of its statements, and the row's line that
    for lines from before there were digests.
    """
    path = directory / f'{key}.jsonl'
    lines = path.read_text(encoding='utf-8').split('\n')[:-1] if path.exists() else []
    found = [*map(json.loads, lines)]
    before = next((each.get('gin') for each in found if 'row' in each), None)
    sides, now = (OURS, *row.peers), gin_digest(row.gin_file)
    valid = [
        each
        for each in found
        if each.get('side') in sides
        and each['settings'] == row.settings(each['side'])
        and (each['side'] != OURS or each.get('gin', before) == now)
    ]
    return sorted(valid, key=lambda each: (sides.index(each['side']), each['seed']))


def gin_digest(gin_file: str) -> str:
    """Returns the digest of what a gin file and those that it includes bind; comments and imports decide nothing."""
    return hashlib.sha256('\n'.join(_statements(gin_file)).encode()).hexdigest()[:16]


def _statements(gin_file: str) -> Iterator[str]:
    for line in files.resolve(gin_file).read_text(encoding='utf-8').splitlines():
        statement = line.partition('#')[0].rstrip()
        if included := re.fullmatch(r"include '(.+)'", statement):
            yield from _statements(included[1])
        elif statement and not statement.startswith(('from ', 'import ')):
            yield statement


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
