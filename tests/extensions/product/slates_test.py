"""Decisions for several slots: Vowpal Wabbit's ccb and slates, their estimates, and what serves them."""

import itertools
import json
import time

import numpy as np
import pytest
import tensorflow as tf
from tf_agents.trajectories import time_step as ts

from tests.extensions.product.log_import_test import episodes_of, import_logs
from tflearn.agents import dqn, linear_bandit
from tflearn.core.errors import UserError
from tflearn.core.train_step import create_train_step
from tflearn.data import columns
from tflearn.data.reader import Dataset, EpisodeReader
from tflearn.extensions.product import data_evaluation, estimators, log_files, promotion
from tflearn.extensions.product.estimators import Episodes
from tflearn.extensions.product.gate import GateOptions
from tflearn.files.run_dir import RunDir, read_json
from tflearn.networks.action_embeddings import ActionEmbeddings
from tflearn.networks.networks import NetworkOptions
from tflearn.optimization.optimizers import OptimizerOptions
from tflearn.policies.exporter import PolicyExporter

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
    assert {'bad rows: 7', 'bad rows that need a decision of DSJSON: 7', 'decisions without a cost: 2'} <= {*lines}
    assert 'got 1 outcomes of 2 slots; need one for each' in caplog.text


# Two slots of three items. The log and the policy choose them independently, or each in what the slots before left.
SLATES_OF = {
    'independent': list(itertools.product(range(3), repeat=2)),
    'ranking': list(itertools.permutations(range(3), 2)),
}
SHARES = np.array([[0.5, 0.3, 0.2], [0.2, 0.2, 0.6]]), np.array([[0.1, 0.7, 0.2], [0.4, 0.5, 0.1]])  # log, policy
OWN = np.array([[0.2, 0.5, 0.9], [0.1, 0.6, 0.3]])  # what an item is worth in a slot


def expected(kind, rewards_of):
    """Returns the expectation of each estimator and the policy's value, over all slates.

    Args:
      kind: of `SLATES_OF`.
      rewards_of: the expected rewards of a slate's slots.
    """
    ratios, rewards, chances = [], [], []
    for slate in SLATES_OF[kind]:
        both = []
        for shares in SHARES:
            free = np.ones(3)
            each = []
            for slot, item in enumerate(slate):
                each.append(shares[slot, item] / (shares[slot] @ free))
                free[item] = 0.0 if kind == 'ranking' else 1.0
            both.append(each)
        ratios.append(np.log(np.divide(both[1], both[0])))
        chances.append(np.prod(both, axis=1))
        rewards.append(rewards_of(slate))
    logged, policy = np.transpose(chances)
    assert logged.sum() == pytest.approx(1) and policy.sum() == pytest.approx(1)
    episodes = Episodes(np.array(rewards), np.array(ratios), 1.0)
    names = 'importance_sampling', 'per_decision', 'independent_slots', 'pseudo_inverse'
    found = {name: float(getattr(estimators, name)(episodes)(logged[np.newaxis])[0]) for name in names}
    return found, float(policy @ np.sum(rewards, axis=1))


# Which estimators are exact, by how the slots are chosen and what they are worth.
EXACT = {
    'own rewards': (
        'independent',
        lambda slate: [OWN[0, slate[0]], OWN[1, slate[1]]],
        ['importance_sampling', 'per_decision', 'independent_slots', 'pseudo_inverse'],
    ),
    'a sum, known at the end': (
        'independent',
        lambda slate: [0.0, OWN[0, slate[0]] + OWN[1, slate[1]]],
        ['importance_sampling', 'per_decision', 'pseudo_inverse'],
    ),
    'a sum, known at the begin': (
        'independent',
        lambda slate: [OWN[0, slate[0]] + OWN[1, slate[1]], 0.0],
        ['importance_sampling', 'pseudo_inverse'],
    ),
    'the first item takes clicks from the second': (
        'independent',
        lambda slate: [OWN[0, slate[0]], OWN[1, slate[1]] * (1 - OWN[0, slate[0]])],
        ['importance_sampling', 'per_decision'],
    ),
    'without replacement': (
        'ranking',
        lambda slate: [OWN[0, slate[0]], OWN[1, slate[1]]],
        ['importance_sampling', 'per_decision'],
    ),
}


@pytest.mark.parametrize('name', EXACT)
def test_an_estimator_of_slates_is_exact_where_what_it_assumes_holds(name):
    kind, rewards_of, exact = EXACT[name]
    found, value = expected(kind, rewards_of)
    assert [each for each in found if abs(found[each] - value) < 1e-12] == exact
    assert all(abs(found[each] - value) > 1e-3 for each in found if each not in exact)


def test_slots_that_are_not_there_change_no_estimate_of_slates():
    """A slate with fewer slots than others is filled up, with ratios of 1."""
    short = Episodes(np.array([[1.0], [0.5]]), np.log([[2.0], [0.5]]), 1.0)
    filled = Episodes(np.pad(short.rewards, ((0, 0), (0, 2))), np.pad(short.log_ratios, ((0, 0), (0, 2))), 1.0)
    for make in (estimators.independent_slots, estimators.pseudo_inverse):
        assert make(filled)(np.ones((1, 2)))[0] == pytest.approx(make(short)(np.ones((1, 2)))[0], abs=1e-12)


# Readers and their articles, of whom a click in each of two slots is known exactly, in 8: what an article is worth to a
# reader, and in a slot. The second slot has another article than the first.
READERS = {'a': (3, {'p': 4, 'q': 3, 'r': 3}), 'b': (1, {'p': 2, 'q': 6})}
PLACES = {'p': (2, -2), 'q': (-1, 2), 'r': (0, 0)}
LOGGED = {3: (2, 1, 1), 2: (3, 1), 1: (4,)}  # by how many articles are left, in 4


def slates_of(reader):
    """Yields all slates of a reader: their articles, the logged probabilities, in 4, and the clicks of each, in 8."""
    for slate in itertools.permutations(READERS[reader][1], 2):
        left, chances = list(READERS[reader][1]), []
        for article in slate:
            chances.append(LOGGED[len(left)][left.index(article)])
            left.remove(article)
        yield slate, chances, [READERS[reader][1][article] + PLACES[article][k] for k, article in enumerate(slate)]


def all_rows(data):
    """Returns the rows of all slates, a trajectory of arrays [N, 3, ...]."""
    episodes = EpisodeReader(Dataset([str(data)]), columns.data_spec(columns.read_specs(data))).episodes()
    return tf.nest.map_structure(lambda *leaves: np.stack(leaves), *episodes)


@pytest.fixture(scope='module')
def enumerated(tmp_path_factory):
    """A log that has each slate as often as it is likely, in VW's text; its data set, and a policy of it."""
    folder, lines = tmp_path_factory.mktemp('enumerated'), []
    for reader, (often, articles) in READERS.items():
        for slate, chances, clicks in slates_of(reader):
            for i in range(often * chances[0] * chances[1] * 8):
                lines += [f'ccb shared |User {reader}', *(f'ccb action |Article {each}' for each in articles)]
                for article, chance, of in zip(slate, chances, clicks, strict=True):
                    label = f'{list(articles).index(article)}:{-float(i % 8 < of)}:{chance / 4}'
                    lines.append(f'ccb slot {label} |Slot x')
                lines.append('')
    mapped = f'reward_range = [0, 1]\n{MAP.replace("Action^a", "Article^p").replace("Action^b", "Article^q")}'
    mapped = mapped.replace('Action^c', 'Article^r')
    _, data = import_logs(folder, write(folder, 'log.vw', '\n'.join(lines)), mapped=mapped)
    specs = columns.read_specs(data)
    options = linear_bandit.LinearOptions(prior_precision=1e-3)
    agent = linear_bandit.make_agent(
        specs, create_train_step(), linear_bandit.EXPERIENCE, options=options, arm_features='items', action_mask='mask'
    )
    agent.train(tf.nest.map_structure(tf.constant, all_rows(data)))
    path = PolicyExporter(agent.policy, folder / 'run' / 'policies' / 'greedy_policy').export(1, {})
    return RunDir(folder / 'run'), data, path


def exact_values(epsilon):
    """Returns the clicks of a slate of the policy that takes the best article of each slot, and of the log."""
    both = np.zeros(2)
    for reader, (often, articles) in READERS.items():
        for slate, chances, clicks in slates_of(reader):
            policy, left = 1.0, set(articles)
            for k, article in enumerate(slate):
                best = max(left, key=lambda each: articles[each] + PLACES[each][k])
                policy *= (1 - epsilon) * (article == best) + epsilon / len(left)
                left.remove(article)
            both += often / 4 * sum(clicks) / 8 * np.array([policy, chances[0] * chances[1] / 16])
    return both


@pytest.mark.parametrize('epsilon', [0.0, 0.2])
def test_estimates_and_the_gate_are_exact_where_all_slates_are_enumerated(enumerated, epsilon):
    run_dir, data, path = enumerated
    value, logged = exact_values(epsilon)
    found, _ = data_evaluation.evaluate_on_data(run_dir, [str(data)], {}, epsilon=epsilon)
    assert found.estimates['behaviour policy (mean return)'] == pytest.approx(logged, rel=1e-6)
    for name in ('importance sampling', 'weighted IS', 'per-decision IS', 'weighted per-decision IS'):
        assert found.estimates[name] == pytest.approx(value, rel=1e-6), name
    assert 'pseudo-inverse' not in found.estimates  # a slot does not have what another one has
    low, high = found.intervals['the policy']
    assert low < value < high
    served = data_evaluation.Served(epsilon=epsilon)
    verdict = promotion.judge(path, None, Dataset([str(data)]), GateOptions(margin=0.1), served)
    assert verdict.candidate.value == pytest.approx(value, rel=1e-6)
    assert verdict.incumbent.value == pytest.approx(logged, rel=1e-6)
    assert verdict.candidate.mean_weight == pytest.approx(1.0, abs=1e-6)
    assert verdict.difference.low < value - logged < verdict.difference.high
    assert verdict.units == 'sessions'


def test_estimates_of_independent_slots_are_for_data_that_state_them(enumerated, tmp_path):
    """The log of the articles in slates, each slot with a list of its own."""
    run_dir, _, _ = enumerated
    lines = []
    for one, other in itertools.product(range(2), repeat=2):
        for i in range((3 - 2 * one) * 8):
            lines += [f'slates shared {-float(i % 8 < 2 + 3 * one + other)} |User a']
            lines += [f'slates action {slot} |Article {name}' for slot in range(2) for name in 'pq']
            lines += [f'slates slot {one}:{(3 - 2 * one) / 4} |Slot x', f'slates slot {other}:0.5 |Slot x', '']
    mapped = MAP.replace('Action^a', 'Article^p').replace('Action^b', 'Article^q').replace('Action^c', 'Article^r')
    mapped = mapped.replace("{kind = 'features'}", "{kind = 'features', values = ['Slot^x']}")
    mapped = mapped.replace("column = 'shared', ", "column = 'shared', values = ['User^a', 'User^b'], ")
    log = write(tmp_path, 'log.vw', '\n'.join(lines))
    _, data = import_logs(tmp_path, log, mapped=f'independent_slots = true\nreturn_range = [0, 1]\n{mapped}')
    found, _ = data_evaluation.evaluate_on_data(run_dir, [str(data)], {}, epsilon=0.2)
    # The policy takes p first and q second, each with 0.9; a slate is clicked in 2 + 3 (first is q) + (second is q).
    value = (2 + 3 * 0.1 + 0.9) / 8
    for name in ('importance sampling', 'per-decision IS', 'pseudo-inverse'):
        assert found.estimates[name] == pytest.approx(value, rel=1e-6), name
    # What the first slot adds to the reward of the last one has no weight.
    assert found.estimates['independent slots'] == pytest.approx((2 + 3 * 0.25 + 0.9) / 8, rel=1e-6)
    with pytest.raises(UserError, match='got independent_slots = 1; need true or false'):
        import_logs(tmp_path, log, output='wrong', mapped=f'independent_slots = 1\n{mapped}')


def shown_by(policy, rows):
    """Returns which articles a policy shows to each kind of readers, slot by slot."""
    found = {}
    for reader, (_, articles) in READERS.items():
        first = next(i for i, slate in enumerate(rows.observation['mask'][:, 0].sum(axis=1)) if slate == len(articles))
        seen, items = tf.nest.map_structure(lambda leaf, at=first: leaf[at, :1].copy(), rows.observation), []
        for slot in range(2):
            seen['position'][:] = slot
            items.append(int(policy.action(ts.restart(tf.nest.map_structure(tf.constant, seen), 1)).action[0]))
            seen['mask'][0, items[-1]] = 0
        found[reader] = ''.join([*articles][item] for item in items)
    return found


@pytest.mark.slow
@pytest.mark.parametrize('is_whole', [False, True])
def test_a_network_learns_by_position_or_the_reward_of_the_whole_slate(enumerated, is_whole):
    """The best first article of the readers b leaves the second slot without a click; the other order does not."""
    _, data, _ = enumerated
    rows, specs = all_rows(data), columns.read_specs(data)
    if is_whole:  # which stands in the row of the last slot
        reward = rows.reward.sum(axis=1, keepdims=True) * np.float32([0, 1, 0])
        rows = rows._replace(reward=reward)
    slots = [tf.nest.map_structure(lambda leaf, at=slot: leaf[:, at : at + 2], rows) for slot in range(2)]
    batch = tf.nest.map_structure(lambda *leaves: tf.constant(np.concatenate(leaves)), *slots)
    tf.keras.utils.set_random_seed(1)
    agent = dqn.make_agent(
        specs,
        create_train_step(),
        dqn.EXPERIENCE,
        network=NetworkOptions((32,)),
        optimizer=OptimizerOptions(1e-2),
        action_embeddings=ActionEmbeddings('items', 16),
        action_mask='mask',
        gamma=float(is_whole),
        target_update_period=10,
        huber=False,
    )
    train = tf.function(agent.train)
    for _ in range(150):
        train(batch)
    assert shown_by(agent.policy, rows) == {'a': 'pq', 'b': 'pq' if is_whole else 'qp'}


def test_what_a_server_decides_for_slots_is_joined(enumerated, tmp_path):
    """A client asks slot by slot; decisions and outcomes become the slates that train and judge the next policy."""
    pytest.importorskip('tensorflow_serving', reason='needs pip install ".[serving]"')
    from tflearn.extensions.serving.client import PolicyClient
    from tflearn.extensions.serving.decision_files import DecisionLogOptions
    from tflearn.extensions.serving.decision_log import DecisionLog
    from tflearn.extensions.serving.exploration import Exploration
    from tflearn.extensions.serving.models import Models
    from tflearn.extensions.serving.served_version import ServedVersion
    from tflearn.extensions.serving.server import PolicyServer
    from tflearn.net.server_options import ServerOptions

    run_dir, data, _ = enumerated
    models = Models(run_dir.root / 'policies', lambda path: ServedVersion(path, exploration=Exploration(0.5)))
    models.refresh()
    log = DecisionLog(DecisionLogOptions(str(tmp_path)), tmp_path / 'spool')
    server = PolicyServer(models, ServerOptions(), log=log)
    parts = 'user', 'items', 'mask', 'position', 'slot'
    asked = {f'observation_{name}': episodes_of(data)[0][f'observation.{name}'][:1] for name in parts}
    try:
        client = PolicyClient(f'localhost:{server.port}')
        shown = [client.slate(asked, 2, f's{i}', 'observation_mask', 'observation_position') for i in range(24)]
        with pytest.raises(UserError, match='got 3 items for 4 slots; need one for each'):
            client.slate(asked, 4, 'long', 'observation_mask')
        client.close()
    finally:
        server.close(0)
        log.close()
    assert all(len({*items}) == 2 for items in shown) and len({*map(tuple, shown)}) > 1
    (decisions,) = log_files.find([tmp_path], 'decisions')
    lines = [json.loads(line) for line in decisions.read_text().splitlines()]
    outcomes = [{'event_id': each['id'], 'reward': k, 'time': each['time']} for k, each in enumerate(lines)]
    paths = [write(tmp_path, 'clicks.jsonl', outcomes)]
    mapped = """
episode = 'arm'
action = {kind = 'integer', high = 2}
longest = 2
[observation]
user = {column = 'observation_user', length = 2}
items = {column = 'observation_items', length = 3, width = 3}
mask = {kind = 'mask'}
position = {column = 'observation_position', kind = 'integer', high = 1}
slot = {column = 'observation_slot', length = 1}
"""
    options = {'paths': paths, 'until': time.time()}
    _, joined = import_logs(tmp_path, decisions, output='joined', mapped=mapped, outcomes=options)
    found = sorted(steps_of(joined), key=lambda each: each['reward'])
    assert [each['action'] for each in found] == shown
    assert [each['reward'] for each in found] == [[k, k + 1] for k in range(0, 48, 2)]
    for each, (first, second) in zip(found, shown, strict=True):
        assert each['observation.position'] == [0, 1]
        assert each['observation.mask'] == [[1, 1, 1], [int(item != first) for item in range(3)]]
        # The policy itself shows a reader of the kind a the items 0 and 1, or 1 and 2; half of its choices are random.
        chances = 0.5 / 3 + 0.5 * (first == 0), 0.25 + 0.5 * (second == (2 if first == 1 else 1))
        np.testing.assert_allclose(np.exp(each['policy_info.log_probability']), chances, rtol=1e-6)
    assert {*columns.read_columns(data)} <= {*columns.read_columns(joined)}
