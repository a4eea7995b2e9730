"""Half-valid message files of the extensions, see `tests/wrong_files_test.py`."""

import contextlib
import json
import shutil
import types

import pytest

from benchmarks import wrong_files
from tests.wrong_files_test import COUNTS, DONE, EVALUATION, SEED, STATUS
from tflearn.extensions.clusters import slurm
from tflearn.extensions.experiments import comparison, overview, report, trackers, tuning
from tflearn.extensions.games.league import League
from tflearn.extensions.product import column_map, importing
from tflearn.extensions.product.round_page import table, write_page
from tflearn.extensions.product.steps import Logs, Round, Rounds, Steps, Training
from tflearn.extensions.serving.clients import Clients
from tflearn.extensions.stores import store_layout
from tflearn.files.run_dir import RunDir, read_json, write_json

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


def end_round(run_dir):
    """Ends a round by what its data set and its candidate say; what is written then is read for ever."""
    begun = Round(run_dir.root / 'rounds' / '1', INPUTS)
    version = begun.run.greedy_policy / '5'
    version.mkdir(parents=True, exist_ok=True)
    (version / 'saved_model.pb').touch()
    logs = Logs(['a'], ['b'], 'columns.toml', 1.0)
    begun.finish(**Steps('tflearn', logs, Training('bandit'), RunDir(run_dir.root / 'serving'), None).result(begun))
    rounds(run_dir)


def take_marker(run_dir):
    with contextlib.suppress(store_layout.BadObject):  # it is passed over
        store_layout.decode((run_dir.root / 'marker').read_bytes(), 'policies/greedy_policy/5')


def still_there(run_dir):
    before = read_json(run_dir.submitted, slurm._Submitted)
    ' '.join(before.get('slurm', {}).values()).encode()


READERS = {
    'submitted.json': ({'slurm': {'train': '104', 'collect': '105'}}, still_there),
    'marker': ({'files': {f'policies/greedy_policy/5/{name}': [5, 'ab'] for name in 'ab'}}, take_marker),
    'rounds/1/joined/dataset.json': ({'format': 1, 'metadata': {'import': {'steps': 9, 'outcomes': 5}}}, end_round),
    'rounds/1/run/policies/greedy_policy/5/metadata.json': ({'train_step': 5, 'gate': VERDICT}, end_round),
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


def in_toml(value):
    return '\n'.join(f'{json.dumps(name)} = {toml(each)}' for name, each in value.items()).encode()


DECISION = {
    'id': 'a',
    'time': 100.0,
    'model': 'm',
    'version': 5,
    'arm': 'stable',
    'observation': [0.5],
    'action': 1,
    'probability': 0.5,
    'mask': [0, 1],
}
OUTCOME = {'event_id': 'a', 'reward': 1.0, 'time': 105.0, 'outcome_id': 'x'}


@pytest.mark.parametrize('count', (10, pytest.param(400, marks=pytest.mark.slow)))
@pytest.mark.parametrize(('kind', 'max_bad_rows'), [('decisions', 0), ('outcomes', 5)])
def test_a_log_is_joined_or_refused_by_its_name_and_the_fields(kind, max_bad_rows, count, tmp_path):
    columns = tmp_path / 'columns.toml'
    columns.write_text(
        "action = {kind = 'integer', high = 2}\nobservation = {x = {column = 'observation', length = 1}}"
    )
    paths = {}
    for name, row, event_id in (('decisions', DECISION, 'id'), ('outcomes', OUTCOME, 'event_id')):
        paths[name] = [tmp_path / f'{name}-1.jsonl', tmp_path / f'{name}-2.jsonl']
        paths[name][0].write_text(json.dumps(row))
        paths[name][1].write_text(json.dumps({**row, event_id: 'b'}))

    def join():
        shutil.rmtree(tmp_path / 'data', ignore_errors=True)
        outcomes = {'paths': paths['outcomes'], 'until': 1e9}
        options = {'outcomes': outcomes, 'max_bad_rows': max_bad_rows}
        importing.import_logs(paths['decisions'], columns, tmp_path / 'data', **options).encode()

    good = {'decisions': DECISION, 'outcomes': OUTCOME}[kind]
    found, counts = wrong_files.faults(paths[kind][0], good, join, count, SEED)
    assert found == [] and counts['read'] > count // 20, counts


@pytest.mark.parametrize('count', COUNTS)
def test_a_space_is_read_or_refused_by_its_name(count, tmp_path):
    file = tmp_path / 'space.toml'
    good = {'a.rate': {'low': 1e-5, 'high': 1e-2, 'log': True}, 'b.units': {'low': 1, 'high': 5}, 'c.kind': [1, 'x']}
    found, counts = wrong_files.faults(file, good, lambda: tuning.read_space(file), count, SEED, in_toml)
    assert found == [] and counts['read'] > count // 20, counts


@pytest.mark.parametrize('count', COUNTS)
def test_a_column_map_is_read_or_refused_by_its_name(count, tmp_path):
    file = tmp_path / 'columns.toml'
    good = {
        'observation': {'age': {'column': 'age'}, 'color': {'column': 'c', 'values': ['red', 'blue']}},
        'action': {'column': 'a', 'values': ['x', 'y']},
        'reward': 'r',
        'reward_range': [0, 1],
        'longest': 5,
        'greatest_weight': 10.0,
        'episode': 'e',
    }
    found, counts = wrong_files.faults(file, good, lambda: column_map.read_map(file), count, SEED, in_toml)
    assert found == [] and counts['read'] > count // 20, counts


def test_a_file_of_clients_is_read_or_refused_by_its_name(tmp_path):
    """Not by the fields: what stands there may be a token."""
    file = tmp_path / 'clients.json'
    good = {'a': {'certificate': 'b', 'policies': ['c'], 'requests_per_sec': 5.0, 'max_in_flight': 3}}
    found, counts = wrong_files.faults(file, good, lambda: Clients(file), 100, SEED, named=False)
    assert found == [] and counts['read'] > 5, counts
