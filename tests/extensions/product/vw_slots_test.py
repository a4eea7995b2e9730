"""Vowpal Wabbit's decisions for several slots, ccb and slates, are read as they are."""

import json

import numpy as np
import pytest

from tests.extensions.product.log_import_test import episodes_of, import_logs
from tflearn.data import columns
from tflearn.files.run_dir import read_json

pytest.importorskip('pyarrow', reason='needs pip install ".[product]"')

# As on VW's pages: the items of all slots, then the slots, each with item:cost:probability, and what it may take.
CCB = """\
ccb shared 'first|User user=Tom
ccb action |Action a
ccb action |Action b
ccb action |Action c
ccb slot 2:-1:0.5,0:0.25,1:0.25 |Slot top
ccb slot 0:0:0.25 0,1 |Slot side size:2

ccb shared |User user=Anna
ccb action |Action b
ccb action |Action c
ccb slot |Slot top
ccb slot 0,1 |Slot side

ccb shared |User user=Anna
ccb action |Action b
ccb action |Action c
ccb slot 0:0.5:1 |Slot top
ccb slot 1:-2:0.75 |
"""
CCB_EVENTS = [
    {
        'EventId': 'first',
        'c': {
            'User': {'user': 'Tom'},
            '_multi': [{'Action': {'a': True}}, {'Action': {'b': True}}, {'Action': {'c': True}}],
            '_slots': [{'Slot': {'top': True}}, {'Slot': {'side': True, 'size': 2}, '_inc': [0, 1]}],
        },
        '_outcomes': [
            {'_label_cost': -1, '_id': 's', '_a': [2, 0, 1], '_p': [0.5, 0.25, 0.25], '_o': [-1]},
            {'_label_cost': 0, '_id': 't', '_a': [0, 1], '_p': [0.25, 0.75]},
        ],
    },
    {'c': {'_multi': [{}, {}], '_slots': [{}, {}]}},
    {
        'c': {
            'User': {'user': 'Anna'},
            '_multi': [{'Action': {'b': True}}, {'Action': {'c': True}}],
            '_slots': [{'Slot': {'top': True}}, {}],
        },
        '_outcomes': [{'_label_cost': 0.5, '_a': 0, '_p': 1.0}, {'_label_cost': -2, '_a': [1], '_p': [0.75]}],
    },
]
# Each slot has items of its own, and the slate has one cost.
SLATES = """\
slates shared -0.5 |User user=Tom
slates action 0 |Action a
slates action 1 |Action b
slates action 0 |Action c
slates slot 1:0.8,0:0.2 |Slot top
slates slot 0:1 |Slot side

slates shared |User user=Tom
slates action 0 |Action a
slates slot |Slot top
"""
SLATES_EVENTS = [
    {
        '_label_cost': -0.5,
        'c': {
            'User': {'user': 'Tom'},
            '_multi': [
                {'_slot_id': 0, 'Action': {'a': True}},
                {'_slot_id': 1, 'Action': {'b': True}},
                {'_slot_id': 0, 'Action': {'c': True}},
            ],
            '_slots': [{'Slot': {'top': True}}, {'Slot': {'side': True}}],
        },
        '_outcomes': [{'_a': [1, 0], '_p': [0.8, 0.2]}, {'_a': 0, '_p': 1}],
    },
    {'c': {'_multi': [{'_slot_id': 0}], '_slots': [{}]}},
]
MAP = """
action = {kind = 'integer', high = 2}
reward = 'reward'
propensity = 'probability'
longest = 2
[observation]
user = {column = 'shared', kind = 'features'}
items = {column = 'actions', kind = 'features', length = 3, values = ['Action^a', 'Action^b', 'Action^c']}
mask = {kind = 'mask'}
position = {kind = 'integer', high = 1}
slot = {kind = 'features'}
"""


def write(folder, name, text):
    path = folder / name
    path.write_text(text if isinstance(text, str) else ''.join(json.dumps(each) + '\n' for each in text))
    return path


def steps_of(data):
    """Returns what is stored of each step of each slate, by name; the last row of each only ends it."""
    return [{name: values[:-1].tolist() for name, values in each.items()} for each in episodes_of(data)]


@pytest.mark.parametrize(('name', 'text'), [('log.vw', CCB), ('log.dsjson', CCB_EVENTS), ('log.json', CCB_EVENTS[2:])])
def test_slots_are_the_steps_of_a_slate(tmp_path, name, text):
    lines, data = import_logs(tmp_path, write(tmp_path, name, text), mapped=MAP)
    found = steps_of(data)
    last = found[-1]
    assert last['observation.mask'] == [[1, 1, 0], [0, 1, 0]] and last['action'] == [0, 1]
    assert last['reward'] == [-0.5, 2.0] and last['observation.position'] == [0, 1]
    np.testing.assert_allclose(np.exp(last['policy_info.log_probability']), [1.0, 0.75], rtol=1e-6)
    assert columns.read_metadata(data)['stated'] == {'longest': 2}
    if name != 'log.json':
        assert 'decisions without a cost: 1' in lines and len(found) == 2
        first = found[0]
        assert read_json(data / 'vocabularies.json')['observation.slot'] == ['Slot^side', 'Slot^size', 'Slot^top']
        assert first['observation.slot'] == [[0, 0, 1], [1, 2, 0]]
        assert first['observation.items'] == [[[1, 0, 0], [0, 1, 0], [0, 0, 1]]] * 2
        assert first['observation.mask'] == [[1, 1, 1], [1, 1, 0]] and first['action'] == [2, 0]
        assert first['reward'] == [1, 0]
        np.testing.assert_allclose(np.exp(first['policy_info.log_probability']), [0.5, 0.25], rtol=1e-6)


@pytest.mark.parametrize(('name', 'text'), [('log.vw', SLATES), ('log.dsjson', SLATES_EVENTS)])
def test_the_last_slot_has_the_cost_of_a_slate(tmp_path, name, text):
    lines, data = import_logs(tmp_path, write(tmp_path, name, text), mapped=MAP)
    (found,) = steps_of(data)
    assert found['observation.items'] == [[[1, 0, 0], [0, 0, 1], [0, 0, 0]], [[0, 1, 0], [0, 0, 0], [0, 0, 0]]]
    assert found['observation.mask'] == [[1, 1, 0], [1, 0, 0]] and found['action'] == [1, 0]
    assert found['reward'] == [0, 0.5] and 'decisions without a cost: 1' in lines
    np.testing.assert_allclose(np.exp(found['policy_info.log_probability']), [0.8, 1.0], rtol=1e-6)


@pytest.mark.parametrize('keys', ["id = 'id'", "id = 'id'\ntime = 'time'", "time = 'time'"])
def test_the_same_event_twice_is_one_slate_of_all_its_slots(tmp_path, keys):
    # Nothing that is read tells its slots apart.
    items = [{'_slot_id': slot, 'Action': {name: True}} for slot in (0, 1) for name in 'ab']
    context = {'User': {'user': 'Tom'}, '_multi': items, '_slots': [{}, {}]}
    event = {'_label_cost': 0, 'c': context, '_outcomes': [{'_a': [1], '_p': [0.5]}] * 2}
    event |= {'EventId': 'e', 'Timestamp': '2026-01-01T00:00:00Z'}
    other = {**event, 'EventId': 'f'}
    path = write(tmp_path, 'log.dsjson', [event, other, *([event] if 'id' in keys else [])])
    lines, data = import_logs(tmp_path, path, mapped=f'{keys}\n{MAP.partition("position = ")[0]}')
    assert [each['action'] for each in steps_of(data)] == [[1, 1], [1, 1]]
    assert ('duplicate: rows: 2' in lines) == ('id = ' in keys)


WRONG_LINES = {
    'no slots': ('ccb shared | a\nccb action | b\n', 'got the lines shared, action; need ccb shared, then'),
    'other lines': ('ccb shared | a\n| b\nccb slot 0:1:1 | c\n', 'got the lines shared, none, slot'),
    'both kinds': ('ccb shared | a\nslates action 0 | b\nccb slot 0:1:1 | c\n', 'got the lines shared, none, slot'),
    'one label': ('ccb shared | a\nccb action | b\nccb action | c\nccb slot 0:1:1 |\nccb slot |\n', 'got 1 labelled'),
    'taken': ('ccb shared | a\nccb action | b\nccb action | c\nccb slot 0:1:1 |\nccb slot 0:1:1 |\n', 'got the item 0'),
    'not included': ('ccb shared | a\nccb action | b\nccb action | c\nccb slot 0:1:1 1 |\n', 'in slot 0, of [1]'),
    'no item': ('ccb shared | a\nccb action | b\nccb slot 1:1:1 |\n', 'got the item 1 in slot 0, of [0]'),
    'no cost': ('ccb shared | a\nccb action | b\nccb slot 0:1 |\n', 'got the label 0:1; need item:cost:probability'),
    'no number': ('ccb shared | a\nccb action | b\nccb slot x:1:1 |\n', 'got x as the number of the item'),
    'probability': ('ccb shared | a\nccb action | b\nccb action | c\nccb slot 0:1:1 |\nccb slot 1:1:0 |\n', 'prob'),
    'cost of a slot': ('slates shared 1 | a\nslates action 0 | b\nslates slot 0:1:1 |\n', 'need item:probability'),
    'no cost of a slate': ('slates shared | a\nslates action 0 | b\nslates slot 0:1 |\n', 'got 0 costs of a slate'),
    'no slot of an item': ('slates shared 1 | a\nslates action | b\nslates slot 0:1 |\n', 'got nothing as the number'),
    'item of another slot': ('slates shared 1 | a\nslates action 1 | b\nslates slot 0:1 |\n', 'item 0 in slot 0'),
}  # fmt: skip


@pytest.mark.parametrize('name', WRONG_LINES)
def test_a_wrong_slate_is_a_bad_row_by_name(tmp_path, caplog, name):
    text, got = WRONG_LINES[name]
    path = write(tmp_path, 'log.vw', f'{text}\n{SLATES}')
    _, data = import_logs(tmp_path, path, mapped=MAP, max_bad_rows=1)
    assert [each['action'] for each in steps_of(data)] == [[1, 0]]
    (message,) = [each.getMessage() for each in caplog.records if 'left out a row' in each.getMessage()]
    assert got in message and 'log.vw, row 1' in message


def test_wrong_events_of_slots_are_bad_rows_by_name(tmp_path, caplog):
    good = CCB_EVENTS[2]
    one, two = good['_outcomes']
    wrong = [
        [one],
        [one, 7],
        [one, {'_a': [1], '_p': [0.5]}],
        [one, {**two, '_a': [0]}],
        [one, {**two, '_a': []}],
        [one, {**two, '_a': 2}],
        [one, {**two, '_label_cost': 'x'}],
    ]
    skipped = [{**good, '_skipLearn': True}, {**good, '_outcomes': [one, {**two, '_skipLearn': True}]}]
    events = [*({**good, '_outcomes': outcomes} for outcomes in wrong), *skipped, good]
    lines, data = import_logs(tmp_path, write(tmp_path, 'log.dsjson', events), mapped=MAP, max_bad_rows=7)
    assert [each['action'] for each in steps_of(data)] == [[0, 1]]
    assert {'bad rows: 7', 'bad rows that need a decision of DSJSON: 7'} <= {*lines}
    assert 'decisions that were never activated: 2' in lines
    assert 'got 1 outcomes of 2 slots; need one for each' in caplog.text
