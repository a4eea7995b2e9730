"""Half-valid message files of the extensions, see `tests/wrong_files_test.py`."""

import json
import types

import pytest

from benchmarks import wrong_files
from tests.wrong_files_test import COUNTS, DONE, EVALUATION, SEED, STATUS
from tflearn.extensions.experiments import comparison, overview, report, trackers
from tflearn.extensions.games.league import League
from tflearn.extensions.product import log_rows
from tflearn.extensions.product.steps import Rounds, table, write_page
from tflearn.extensions.serving.clients import Clients
from tflearn.files.run_dir import RunDir, write_json

INPUTS = {'began': 1.7e9, 'new_decisions': 5, 'decisions': ['a'], 'outcomes': ['b']}
ESTIMATE = {'value': 1.0, 'low': 0.5, 'high': 1.5}
VERDICT = {'passes': True, 'outcome': 'better', 'candidate': ESTIMATE, 'incumbent': ESTIMATE, 'difference': ESTIMATE}
RESULT = {'ended': 1.7e9, 'promoted': True, 'serves': 5, 'gate': VERDICT, 'import': {'steps': 9}}
POSITION = {
    'config': True,
    'evaluations': 1,
    'offsets': {'a': 5},
    'statuses': {'train': 1.7e9},
    'files': ['a'],
    'ended': 5,
}


def look(run_dir):
    ''.join(overview.cells(run_dir)).encode()
    report._speed(run_dir, {})
    report._times(run_dir, {})
    comparison.reached_target(run_dir)


def track(run_dir):
    follower = trackers._Delivery(run_dir, run_dir.tracker('a'), lambda state: types.SimpleNamespace(state=state))
    follower.run()


def rounds(run_dir):
    directory = run_dir.root / 'rounds' / '1'
    if not (directory / 'round.json').exists():
        write_json(directory / 'round.json', INPUTS)
    found = Rounds(run_dir.root)
    table(found.finished()).encode()
    if finished := found.finished():
        write_page(run_dir.root, finished)
    found.unfinished()


READERS = {
    'DONE': (DONE, look),
    'status/train.json': (STATUS, look),
    'evaluations.jsonl': (EVALUATION, look),
    'league.json': ({'policy': 'a', 'versions': {'5': [3.0, 1.5]}}, lambda run_dir: League(run_dir.root)._read()),
    'rounds/1/round.json': (INPUTS, rounds),
    'rounds/1/end.json': (RESULT, rounds),
    'trackers/a.json': ({'position': POSITION, 'tracker': {}}, track),
}


@pytest.mark.parametrize('count', COUNTS)
@pytest.mark.parametrize('name', READERS)
def test_a_message_file_is_read_or_refused_by_its_name_and_the_fields(name, count, tmp_path):
    good, read = READERS[name]
    run_dir = RunDir(tmp_path)
    found, counts = wrong_files.faults(tmp_path / name, good, lambda: read(run_dir), count, SEED)
    assert found == [] and counts['read'] > count // 20, counts


def toml(value):
    """Returns a value as TOML; what TOML has not is left as it is in JSON."""
    if isinstance(value, dict):
        return '{' + ', '.join(f'{json.dumps(name)} = {toml(each)}' for name, each in value.items()) + '}'
    return json.dumps(value).replace('NaN', 'nan').replace('Infinity', 'inf')


@pytest.mark.parametrize('count', COUNTS)
def test_a_column_map_is_read_or_refused_by_its_name(count, tmp_path):
    file = tmp_path / 'columns.toml'
    good = {
        'observation': {'age': {'column': 'age'}, 'color': {'column': 'c', 'values': ['red', 'blue']}},
        'action': {'column': 'a', 'values': ['x', 'y']},
        'reward': 'r',
        'reward_range': [0, 1],
        'longest': 5,
        'episode': 'e',
    }

    def encode(value):
        return '\n'.join(f'{json.dumps(name)} = {toml(each)}' for name, each in value.items()).encode()

    found, counts = wrong_files.faults(file, good, lambda: log_rows.read_map(file), count, SEED, encode)
    assert found == [] and counts['read'] > count // 20, counts


def test_a_file_of_clients_is_read_or_refused_by_its_name(tmp_path):
    """Not by the fields: what stands there may be a token."""
    file = tmp_path / 'clients.json'
    good = {'a': {'certificate': 'b', 'policies': ['c'], 'requests_per_sec': 5.0, 'max_in_flight': 3}}
    found, counts = wrong_files.faults(file, good, lambda: Clients(file), 100, SEED, named=False)
    assert found == [] and counts['read'] > 5, counts
