"""Decisions among items that vary by request: Vowpal Wabbit's files, DSJSON, and what a server logs itself."""

import itertools
import json
import re
import time
import zlib

import numpy as np
import pytest
import tensorflow as tf

from tests.extensions.product.log_import_test import episodes_of, import_logs
from tflearn.agents import linear_bandit
from tflearn.agents.value_exploration import SquareCB
from tflearn.core.errors import UserError
from tflearn.core.train_step import create_train_step
from tflearn.data import columns
from tflearn.data.reader import Dataset, EpisodeReader
from tflearn.extensions.product import data_evaluation, log_files, promotion
from tflearn.extensions.product.scaled_log import GateOptions
from tflearn.files.run_dir import RunDir, read_json
from tflearn.policies.exporter import PolicyExporter

pytest.importorskip('pyarrow', reason='needs pip install ".[product]"')
from tflearn.extensions.product import log_rows

# As on https://vowpalwabbit.org/docs: a line for each action, one of which has action:cost:probability.
TEXT = """\
shared |User user=Tom time_of_day=morning age:34
|Action article=politics
0:-1.0:0.85 |Action article=sports |Price:0.5 eur:3 sale

shared 'second|User user=Anna
1:0.0:0.25 |Action article=politics
|Action article=music
|Action article=sports |Price:0.5 eur:1

shared |User user=Tom
|Action article=music
|Action article=sports


| article=plain
0:2.5:0.5 | article=plain price:2 price:0.5
"""
MAP = """
action = {kind = 'integer', high = 2}
reward = 'reward'
propensity = 'probability'
[observation]
user = {column = 'shared', kind = 'features'}
items = {column = 'actions', kind = 'features', length = 3}
mask = {kind = 'mask'}
"""
USER = ['User^age', 'User^time_of_day=morning', 'User^user=Anna', 'User^user=Tom']
ITEMS = [
    'Action^article=music',
    'Action^article=politics',
    'Action^article=sports',
    'Price^eur',
    'Price^sale',
    'article=plain',
    'price',
]


def write(folder, name, text):
    path = folder / name
    path.write_text(text)
    return path


def arrays_of(data):
    """Returns the parts of all decisions by name, in the order of the file."""
    episodes = episodes_of(data)
    return {name: np.stack([each[name][0] for each in episodes]) for name in episodes[0]}


@pytest.mark.parametrize('name', ['log.vw', 'log.dat', 'log.txt'])
def test_vowpal_wabbits_text_is_read_as_it_is(tmp_path, name):
    text = TEXT.replace(' :3', '')
    lines, data = import_logs(
        tmp_path, write(tmp_path, name, text), mapped=MAP + 'tag = {column = "id", kind = "category"}'
    )
    found = arrays_of(data)
    assert read_json(data / 'vocabularies.json') == {
        'observation.user': USER, 'observation.items': ITEMS, 'observation.tag': ['second']
    }  # fmt: skip
    assert found['observation.user'].tolist() == [[34, 1, 0, 1], [0, 0, 1, 0], [0, 0, 0, 0]]
    assert found['observation.items'].tolist() == [
        [[0, 1, 0, 0, 0, 0, 0], [0, 0, 1, 1.5, 0.5, 0, 0], [0] * 7],
        [[0, 1, 0, 0, 0, 0, 0], [1, 0, 0, 0, 0, 0, 0], [0, 0, 1, 0.5, 0, 0, 0]],
        [[0, 0, 0, 0, 0, 1, 0], [0, 0, 0, 0, 0, 1, 2.5], [0] * 7],
    ]
    assert found['observation.mask'].tolist() == [[1, 1, 0], [1, 1, 1], [1, 1, 0]]
    assert found['action'].tolist() == [1, 0, 1] and found['reward'].tolist() == [1, 0, -2.5]
    assert found['observation.tag'].tolist() == [0, 1, 0]
    np.testing.assert_allclose(np.exp(found['policy_info.log_probability']), [0.85, 0.25, 0.5], rtol=1e-6)
    counts = columns.read_metadata(data)['import']
    assert (counts['rows'], counts['steps'], counts['decisions without a cost']) == (4, 3, 1)
    assert 'decisions without a cost: 1' in lines


def test_the_scale_of_a_namespace_multiplies_its_numbers(tmp_path):
    """As `vw --audit` (9.11) prints them."""
    text = write(tmp_path, 'log.vw', 'shared |User:0.5 age:34 Tom city:paris\n0:-1:0.85 |Action a:2 b\n')
    _, data = import_logs(tmp_path, text, mapped=MAP)
    assert read_json(data / 'vocabularies.json')['observation.user'] == ['User^Tom', 'User^age', 'User^city:paris']
    assert arrays_of(data)['observation.user'].tolist() == [[0.5, 17, 1]]


# The decisions of TEXT, as Personalizer logs them.
CONTEXTS = [
    {
        'User': {'user': 'Tom', 'time_of_day': 'morning', 'age': 34, 'nobody': None, 'is_new': False},
        '_multi': [
            {'_tag': 'x', 'Action': {'article': 'politics'}},
            {'Action': [{'article': 'sports'}], 'Price': {'eur': 1.5, 'sale': 0.5}},
        ],
    },
    {
        'User': [{'user': 'Anna'}],
        '_multi': [
            {'Action': {'article': 'politics'}},
            {'Action': {'article': 'music'}},
            {'Action': {'article': 'sports'}, 'Price': {'eur': 0.5}},
        ],
    },
    {'User': {'user': 'Tom'}, '_multi': [{'Action': {'article': 'music'}}, {'Action': {'article': 'sports'}}]},
    {'_multi': [{'article': 'plain'}, {'article': 'plain', 'price': 2.5}]},
]
LABELS = [(-1.0, 0.85, 1), (0.0, 0.25, 0), None, (2.5, 0.5, 1)]


def events(**more):
    """Returns the lines of DSJSON."""
    for i, (context, label) in enumerate(zip(CONTEXTS, LABELS, strict=True)):
        cost, probability, index = label or (0.0, 0.5, 0)
        # Nothing was shown without a label.
        skipped = {} if label else {'_skipLearn': True}
        found = {'_label_cost': cost, '_label_probability': probability, '_label_Action': index + 1}
        found |= {'_labelIndex': index} if i else {}
        time = {'Timestamp': f'2026-01-01T00:00:0{i}.2500000Z', 'EventId': f'e{i}'}
        yield json.dumps({**found, **skipped, **time, 'c': context, 'VWState': {'m': 'x'}, **more}) + '\n'


@pytest.mark.parametrize('name', ['log.dsjson', 'log.json'])
def test_dsjson_is_read_as_it_is(tmp_path, name):
    text = write(tmp_path, 'log.vw', TEXT)
    mapped = MAP + "id = {kind = 'category'}"
    _, ours = import_logs(tmp_path, text, output='ours', mapped=MAP)
    _, data = import_logs(tmp_path, write(tmp_path, name, ''.join(events())), mapped='time = "time"' + mapped)
    found, expected = arrays_of(data), arrays_of(ours)
    assert found['policy_info.time'].tolist() == [1767225600.25 + i for i in (0, 1, 3)]
    assert read_json(data / 'vocabularies.json')['observation.id'] == ['e0', 'e1', 'e3']
    for name, values in expected.items():
        np.testing.assert_array_equal(found[name], values)
    assert columns.read_metadata(data)['import']['decisions that were never activated'] == 1
    same = [read_json(each / 'vocabularies.json') for each in (ours, data)]
    assert {**same[0], 'observation.id': ['e0', 'e1', 'e3']} == same[1]


WRONG = {
    'two labels': ('1:0:0.5 | a\n2:1:0.5 | b\n', "b'1:0:0.5 | a' (got 2 labelled actions of 2"),
    'no bar': ('shared | a\n0:1:0.5\n', "b'shared | a' (got '0:1:0.5' without |"),
    'a weight': ('shared | a\n0:1:0.5 2.0 | b\n', 'got 1 labelled actions of 1'),
    'no probability': ('shared | a\n0:1 | b\n', "got the label '0:1'"),
    'probability 0': ('shared | a\n0:1:0 | b\n', 'probability = 0'),
    'no name': ('shared | :3\n0:1:0.5 | b\n', "shared = ':3'"),
    'not finite': ('shared | a:nan\n0:1:0.5 | b\n', "shared = 'a:nan'"),
    'many items': ('0:1:0.5 | a\n| b\n| c\n| d\n', "actions = ['a', 'b', 'c', 'd']"),
    'no UTF-8': ('shared | \xff\n0:1:0.5 | b\n', 'invalid start byte'),
}


@pytest.mark.parametrize('name', WRONG)
def test_a_wrong_decision_is_a_bad_row_by_name(tmp_path, caplog, name):
    text, got = WRONG[name]
    path = tmp_path / 'log.vw'
    path.write_bytes(f'{text}\nshared | a\n0:-1:0.5 | b\n'.encode('latin1'))
    _, data = import_logs(tmp_path, path, mapped=MAP, max_bad_rows=1)
    assert len(episodes_of(data)) == 1
    (message,) = [each.getMessage() for each in caplog.records if 'left out a row' in each.getMessage()]
    assert got in message and 'log.vw, row 1' in message


def test_wrong_events_are_bad_rows_by_name(tmp_path, caplog):
    lines = ['{"_label_cost": 1, "c": {"_multi": [{}]}}\n', '7\n', '{\n']
    path = write(tmp_path, 'log.dsjson', ''.join([*events(), *lines]))
    _, data = import_logs(tmp_path, path, mapped=MAP, max_bad_rows=3)
    assert len(episodes_of(data)) == 3
    messages = [each.getMessage() for each in caplog.records if 'left out a row' in each.getMessage()]
    assert len(messages) == 3 and all('need a decision' in each for each in messages)


NESTED = """
action = {kind = 'integer', high = 2}
reward = 'reward'
[observation]
items = {length = 3, width = 2, missing = 0}
mask = {kind = 'mask'}
"""
ITEMS_OF = [[[1.0, 2.0], [3.0, 4.5]], [[5.0, 6.0], [7.0, 8.0], [9.0, 0.5]], [[-1.0, 0.0]]]


@pytest.mark.parametrize('kind', ['jsonl', 'parquet', 'arrow', 'csv'])
def test_lists_of_lists_are_items(tmp_path, kind):
    pa = pytest.importorskip('pyarrow')
    from pyarrow import feather, parquet

    rows = [
        {'items': items, 'mask': list(range(len(items))), 'action': len(items) - 1, 'reward': float(i)}
        for i, items in enumerate([*ITEMS_OF, [[1.0, 2.0], [3.0]], [[0.0, 0.0]] * 4])
    ]
    path = tmp_path / f'log.{kind}'
    if kind == 'jsonl':
        write(tmp_path, path.name, ''.join(json.dumps(row) + '\n' for row in rows))
    elif kind == 'csv':
        lines = [','.join(f'"{json.dumps(value)}"' for value in row.values()) for row in rows]
        write(tmp_path, path.name, '\n'.join(['items,mask,action,reward', *lines]) + '\n')
    else:
        table = pa.Table.from_pylist(rows)
        (feather.write_feather if kind == 'arrow' else parquet.write_table)(table, path)
    lines, data = import_logs(tmp_path, path, mapped=NESTED, max_bad_rows=2)
    found = arrays_of(data)
    assert found['observation.items'].shape == (3, 3, 2) and 'bad rows: 2' in lines
    for items, got in zip(ITEMS_OF, found['observation.items'].tolist(), strict=True):
        assert got == items + [[0.0, 0.0]] * (3 - len(items))
    assert found['observation.mask'].tolist() == [[1, 1, 0], [1, 1, 1], [1, 0, 0]]
    with pytest.raises(UserError, match=r'got items = .*; need a list in JSON|got items = .*; need a list of numbers'):
        import_logs(tmp_path, path, output='flat', mapped=NESTED.replace('width = 2, ', ''))
    with pytest.raises(UserError, match='need numbers, and a length; correct'):
        import_logs(tmp_path, path, output='flat', mapped=NESTED.replace('length = 3, ', ''))


def test_names_are_hashed_where_a_vocabulary_would_be_too_large(tmp_path, monkeypatch):
    hashed = re.sub("'features'", "'features', hashed = 8", MAP)
    _, data = import_logs(tmp_path, write(tmp_path, 'log.vw', TEXT), mapped=hashed)
    found = arrays_of(data)
    user = np.zeros(8)
    for name, value in (('User^user=Tom', 1), ('User^time_of_day=morning', 1), ('User^age', 34)):
        user[zlib.crc32(name.encode()) % 8] += value
    assert found['observation.user'][0].tolist() == user.tolist()
    assert found['observation.items'].shape == (3, 3, 8) and read_json(data / 'vocabularies.json') == {}
    monkeypatch.setattr(log_rows, '_MAX_NUMBERS', 20)
    with pytest.raises(UserError, match=r'got observation.items of \(3, 7\) numbers; need at most 20; hash them'):
        import_logs(tmp_path, write(tmp_path, 'log.vw', TEXT), output='large', mapped=MAP)


# Two kinds of readers, with two or three articles each, of whom a click is known exactly.
READERS = {'a': (3, {'p': (2, 8), 'q': (6, 8)}), 'b': (1, {'p': (4, 8), 'q': (2, 8), 'r': (8, 8)})}
LOGGED = {'a': (3, 1), 'b': (2, 1, 1)}  # of 4
GAMMA = 6.0
SERVED = [('greedy_policy', 0.0), ('greedy_policy', 0.2), ('collect_policy', 0.1)]


@pytest.fixture(scope='module')
def enumerated(tmp_path_factory):
    """A log that has each decision as often as it is likely, in VW's text; its data set, and two policies of it."""
    folder, lines = tmp_path_factory.mktemp('enumerated'), []
    for reader, (often, articles) in READERS.items():
        for index, (clicks, of) in enumerate(articles.values()):
            for i in range(often * LOGGED[reader][index] * of):
                label = f'0:{-float(i % of < clicks)}:{LOGGED[reader][index] / 4} '
                items = [f'{label if k == index else ""}|Article {name}' for k, name in enumerate(articles)]
                lines += [f'shared |User {reader}', *items, '']
    mapped = 'reward_range = [0, 1]\n' + MAP
    _, data = import_logs(folder, write(folder, 'log.vw', '\n'.join(lines)), mapped=mapped)
    specs = columns.read_specs(data)
    options = linear_bandit.LinearOptions(SquareCB(GAMMA), prior_precision=1e-6)
    agent = linear_bandit.make_agent(
        specs, create_train_step(), linear_bandit.EXPERIENCE, options=options, arm_features='items', action_mask='mask'
    )
    spec = columns.data_spec(specs)
    batch = EpisodeReader(Dataset([str(data)]), spec).episodes()
    agent.train(tf.nest.map_structure(lambda *leaves: tf.constant(np.stack(leaves)), *batch))
    run_dir = RunDir(folder / 'run')
    for name, policy in (('greedy_policy', agent.policy), ('collect_policy', agent.collect_policy)):
        PolicyExporter(policy, run_dir.policy(name)).export(1, {})
    return run_dir, data


def inverse_gaps(rates):
    """Returns the probabilities with which SquareCB draws articles of these rates."""
    others = 1 / (len(rates) + GAMMA * (rates.max() - rates))
    others[rates.argmax()] = 0
    return others + (1 - others.sum()) * (np.arange(len(rates)) == rates.argmax())


def exact(policy, epsilon):
    """Returns the values of the best policy, or of SquareCB, mixed with random actions, and of what logged."""
    both = np.zeros(2)
    for reader, (often, articles) in READERS.items():
        rates = np.array([clicks / of for clicks, of in articles.values()])
        own = rates.max() if policy == 'greedy_policy' else inverse_gaps(rates) @ rates
        best = (1 - epsilon) * own + epsilon * rates.mean()
        both += often / 4 * np.array([best, np.array(LOGGED[reader]) @ rates / 4])
    return both


@pytest.mark.parametrize(('policy', 'epsilon'), SERVED)
def test_estimates_on_items_are_exact_where_all_decisions_are_enumerated(enumerated, policy, epsilon):
    run_dir, data = enumerated
    found, _ = data_evaluation.evaluate_on_data(run_dir, [str(data)], {}, policy, epsilon=epsilon)
    value, logged = exact(policy, epsilon)
    assert found.estimates['behaviour policy (mean return)'] == pytest.approx(logged, rel=1e-6)
    for name in ('importance sampling', 'weighted IS', 'per-decision IS', 'weighted per-decision IS'):
        assert found.estimates[name] == pytest.approx(value, rel=1e-6), name
    low, high = found.intervals['the policy']
    assert low < value < high


def test_baselines_on_items_are_exact_where_all_decisions_are_enumerated(enumerated):
    """A place that a decision does not have is even chance among its items."""
    run_dir, data = enumerated
    values = {f'always {place}': 0.0 for place in range(3)} | {'uniform': 0.0}
    for often, articles in READERS.values():
        rates = np.array([clicks / of for clicks, of in articles.values()])
        values['uniform'] += often / 4 * rates.mean()
        for place in range(3):
            values[f'always {place}'] += often / 4 * (rates[place] if place < len(rates) else rates.mean())
    for place in range(3):
        found, facts = data_evaluation.evaluate_on_data(run_dir, [str(data)], {}, baseline_action=str(place))
        for name in ('uniform', f'always {place}'):
            assert found.baselines[name].estimates['importance sampling'] == pytest.approx(values[name], rel=1e-6)
            low, high = found.baselines[name].interval
            assert low < values[name] < high
            assert facts['baselines'][name]['interval'] == [low, high]


def events_of_readers():
    """Yields ten times the decisions above as events: a tenth of those without a click, and as many never activated."""
    numbers, taken = itertools.count(), {'o': [{'EventId': 'x', 'ActionTaken': True}]}
    for reader, (often, articles) in READERS.items():
        items = [{'Article': {name: True}} for name in articles]
        for index, (clicks, of) in enumerate(articles.values()):
            for i in range(10 * often * LOGGED[reader][index] * of):
                event = {'_label_cost': -float(i % of < clicks), '_label_probability': LOGGED[reader][index] / 4}
                event |= {'_labelIndex': index, 'c': {'User': {reader: True}, '_multi': items}}
                shown = {'DeferredAction': True, **taken} if i % 2 else {}
                if i % of < clicks:
                    yield {**event, **shown}
                elif next(numbers) % 10 == 0:
                    yield {**event, 'pdrop': 0.9, **shown}
                # Nobody has seen it: it has the default cost.
                hidden = {'o': [{'EventId': 'x', 'ActionTaken': False}]} if i % 2 else {}
                yield {**event, '_label_cost': 0.0, 'DeferredAction': True, **hidden}


def test_what_was_not_shown_is_no_evidence_and_what_was_dropped_counts(enumerated, tmp_path):
    run_dir, data = enumerated
    events = [*events_of_readers()]
    path = write(tmp_path, 'log.dsjson', ''.join(map('{}\n'.format, map(json.dumps, events))))
    with pytest.raises(UserError, match="got pdrop = 0.9 in log.dsjson, row .*; need drop_probability = 'pdrop' in"):
        import_logs(tmp_path, path, 'refused', MAP)
    mapped = "drop_probability = 'pdrop'\n" + MAP
    words = {'vocabularies': data}
    lines, found = import_logs(tmp_path, path, 'events', mapped, **words)
    assert {'decisions that were never activated: 1280', f'rows: {len(events)}'} <= {*lines}
    value, logged = exact('greedy_policy', 0.2)
    estimates = data_evaluation.evaluate_on_data(run_dir, [str(found)], {}, epsilon=0.2)[0].estimates
    assert estimates['behaviour policy (mean return)'] == pytest.approx(logged, rel=1e-6)
    assert estimates['importance sampling'] == pytest.approx(value, rel=1e-6)
    # A naive reading takes half of all decisions for failures.
    naive = [{key: each[key] for key in each if key != 'DeferredAction'} for each in events]
    write(tmp_path, 'log.dsjson', ''.join(map('{}\n'.format, map(json.dumps, naive))))
    _, found = import_logs(tmp_path, path, 'naive', mapped, **words)
    estimates = data_evaluation.evaluate_on_data(run_dir, [str(found)], {}, epsilon=0.2)[0].estimates
    assert estimates['behaviour policy (mean return)'] == pytest.approx(logged / 2, rel=1e-6)


@pytest.mark.parametrize(('policy', 'epsilon'), SERVED)
def test_the_gate_on_items_is_exact_where_all_decisions_are_enumerated(enumerated, policy, epsilon):
    run_dir, data = enumerated
    served = data_evaluation.Served(epsilon=epsilon)
    path = run_dir.policy(policy) / '1'
    verdict = promotion.judge(path, None, Dataset([str(data)]), GateOptions(margin=0.1), served)
    value, logged = exact(policy, epsilon)
    assert verdict.candidate.value == pytest.approx(value, rel=1e-6)
    assert verdict.incumbent.value == pytest.approx(logged, rel=1e-6)
    assert verdict.candidate.mean_weight == pytest.approx(1.0, abs=1e-6)
    assert verdict.difference.low < value - logged < verdict.difference.high


def test_what_a_server_decides_among_items_is_joined(enumerated, tmp_path):
    """The server's own log of nested lists: from decisions and outcomes to the data that train the next policy."""
    pytest.importorskip('tensorflow_serving', reason='needs pip install ".[serving]"')
    from tflearn.extensions.serving.client import PolicyClient
    from tflearn.extensions.serving.decision_files import DecisionLogOptions
    from tflearn.extensions.serving.decision_log import DecisionLog
    from tflearn.extensions.serving.exploration import Exploration
    from tflearn.extensions.serving.models import Models
    from tflearn.extensions.serving.served_version import ServedVersion
    from tflearn.extensions.serving.server import PolicyServer
    from tflearn.net.server_options import ServerOptions

    run_dir, data = enumerated
    models = Models(run_dir.root / 'policies', lambda path: ServedVersion(path, exploration=Exploration(0.5)))
    models.refresh()
    log = DecisionLog(DecisionLogOptions(str(tmp_path)), tmp_path / 'spool')
    server = PolicyServer(models, ServerOptions(), log=log)
    logged = arrays_of(data)
    given = {name: logged[f'observation.{name}'][-12:] for name in ('user', 'items', 'mask')}
    try:
        inputs = {f'observation_{name}': values for name, values in given.items()}
        answer, _ = PolicyClient(f'localhost:{server.port}').predict(inputs)
    finally:
        server.close(0)
        log.close()
    (decisions,) = log_files.find([tmp_path], 'decisions')
    lines = [json.loads(line) for line in decisions.read_text().splitlines()]
    outcomes = [{'event_id': line['id'], 'reward': i, 'time': line['time']} for i, line in enumerate(lines)]
    paths = [write(tmp_path, 'clicks.jsonl', ''.join(json.dumps(each) + '\n' for each in outcomes))]
    num_items, size = given['items'].shape[1:]
    mapped = f"""
action = {{kind = 'integer', high = {num_items - 1}}}
[observation]
user = {{column = 'observation_user', length = {given['user'].shape[1]}}}
items = {{column = 'observation_items', length = {num_items}, width = {size}}}
mask = {{kind = 'mask'}}
"""
    options = {'paths': paths, 'until': time.time()}
    _, data_of_server = import_logs(tmp_path, decisions, output='joined', mapped=mapped, outcomes=options)
    joined = arrays_of(data_of_server)
    order = np.argsort(joined['reward'])
    assert joined['reward'][order].tolist() == list(range(12))
    for name, values in given.items():
        np.testing.assert_array_equal(joined[f'observation.{name}'][order], values)
    assert joined['action'][order].tolist() == answer['action'].tolist()
    probability = np.exp(joined['policy_info.log_probability'][order])
    np.testing.assert_allclose(probability, [line['probability'] for line in lines], rtol=1e-6)
    # What was trained on VW's file trains on the server's own log.
    assert {*columns.read_columns(data)} <= {*columns.read_columns(data_of_server)}
