"""Slates, decisions for several slots: their estimates, the gate, what learns from them, and what serves them."""

import itertools
import json
import time

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp
from tf_agents.trajectories import time_step as ts

from tests.extensions.product.log_import_test import episodes_of, import_logs
from tests.extensions.product.vw_slots_test import MAP, steps_of, write
from tflearn.agents import dqn, linear_bandit
from tflearn.agents.value_exploration import Boltzmann
from tflearn.core.errors import UserError
from tflearn.core.train_step import create_train_step
from tflearn.data import columns
from tflearn.data.reader import Dataset, EpisodeReader
from tflearn.extensions.product import data_evaluation, estimators, log_files, promotion
from tflearn.extensions.product.estimators import Episodes
from tflearn.extensions.product.scaled_log import GateOptions
from tflearn.files.run_dir import RunDir
from tflearn.networks.action_embeddings import ActionEmbeddings
from tflearn.networks.networks import NetworkOptions
from tflearn.optimization.optimizers import OptimizerOptions
from tflearn.policies.exporter import PolicyExporter

pytest.importorskip('pyarrow', reason='needs pip install ".[product]"')

# Two slots of three items. The log and the policy choose them independently, or each in what the slots before left.
SLATES_OF = {
    'independent': list(itertools.product(range(3), repeat=2)),
    'ranking': list(itertools.permutations(range(3), 2)),
}
SHARES = np.array([[0.5, 0.3, 0.2], [0.2, 0.2, 0.6]]), np.array([[0.1, 0.7, 0.2], [0.4, 0.5, 0.1]])  # log, policy
OWN = np.array([[0.2, 0.5, 0.9], [0.1, 0.6, 0.3]])  # what an item is worth in a slot


NAMES = 'importance_sampling', 'per_decision', 'independent_slots', 'pseudo_inverse'
# As docs/your-logs.md has it.
SPREAD = {'importance_sampling': 25.4, 'per_decision': 13.4, 'independent_slots': 1.59, 'pseudo_inverse': 5.30}


def chances_of(kind, slate):
    """Returns the probabilities of a slate's items given those before, by the log and by the policy, [2, 2]."""
    both = []
    for shares in SHARES:
        free, each = np.ones(3), []
        for slot, item in enumerate(slate):
            each.append(shares[slot, item] / (shares[slot] @ free))
            free[item] = 0.0 if kind == 'ranking' else 1.0
        both.append(each)
    return np.array(both)


def expected(kind, rewards_of):
    """Returns the expectation of each estimator and the policy's value, over all slates.

    Args:
      kind: of `SLATES_OF`.
      rewards_of: the expected rewards of a slate's slots.
    """
    ratios, rewards, chances = [], [], []
    for slate in SLATES_OF[kind]:
        logged, policy = chances_of(kind, slate)
        ratios.append(np.log(policy / logged))
        chances.append([logged.prod(), policy.prod()])
        rewards.append(rewards_of(slate))
    logged, policy = np.transpose(chances)
    assert logged.sum() == pytest.approx(1) and policy.sum() == pytest.approx(1)
    episodes = Episodes(np.array(rewards), np.array(ratios), 1.0)
    found = {name: float(getattr(estimators, name)(episodes)(logged[np.newaxis])[0]) for name in NAMES}
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


def test_estimates_of_independent_slots_have_less_spread():
    """Three slots of four items, a log of even chance: the exact variances of the estimates from one slate."""
    rates, policy = np.linspace(0.05, 0.3, 12).reshape(3, 4), np.array([0.025, 0.925, 0.025, 0.025])
    slates = np.array(list(itertools.product(range(4), repeat=3)))[:, np.newaxis]
    clicks = np.array(list(itertools.product((0, 1), repeat=3)))
    of = rates[np.arange(3), slates]
    chances = (np.where(clicks, of, 1 - of).prod(axis=2) / 4**3).ravel()
    rewards, ratios = np.broadcast_arrays(clicks, np.log(4 * policy)[slates])
    episodes = Episodes(rewards.reshape(-1, 3), ratios.reshape(-1, 3), 1.0)
    value, found = float((rates @ policy).sum()), {}
    for name in NAMES:
        of_one = getattr(estimators, name)(episodes)(np.eye(len(chances)))
        assert chances @ of_one == pytest.approx(value)
        found[name] = float(chances @ (of_one - value) ** 2)
    assert list(found.values()) == pytest.approx([SPREAD[name] for name in NAMES], rel=0.01)


def test_a_click_that_ends_the_slate_is_estimated_exactly():
    """The reader looks from the top, and stops at a click: what the log has behind it is left out."""
    rewards, ratios, chances, value = [], [], [], 0.0
    for slate in SLATES_OF['ranking']:
        logged, policy = chances_of('ranking', slate)
        first, second = OWN[0, slate[0]], OWN[1, slate[1]]
        value += policy.prod() * (1 - (1 - first) * (1 - second))
        one, other = np.log(policy / logged)
        rewards += [[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]]
        ratios += [[one, 0.0], [one, other], [one, other]]
        chances += [logged.prod() * each for each in (first, (1 - first) * second, (1 - first) * (1 - second))]
    assert sum(chances) == pytest.approx(1)
    episodes = Episodes(np.array(rewards), np.array(ratios), 1.0)
    for make in (estimators.importance_sampling, estimators.per_decision, estimators.weighted_per_decision):
        assert make(episodes)(np.array([chances]))[0] == pytest.approx(value, abs=1e-12)
    for make in (estimators.independent_slots, estimators.pseudo_inverse):
        assert abs(make(episodes)(np.array([chances]))[0] - value) > 1e-3


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


def test_a_ranking_slot_by_slot_is_that_of_plackett_and_luce(enumerated):
    """A policy that draws by scores, asked for one slot after the other, without the items before it."""
    _, data, _ = enumerated
    rows = all_rows(data)
    agent = linear_bandit.make_agent(
        columns.read_specs(data),
        create_train_step(),
        linear_bandit.EXPERIENCE,
        options=linear_bandit.LinearOptions(Boltzmann(0.5), prior_precision=1e-3),
        arm_features='items',
        action_mask='mask',
    )
    agent.train(tf.nest.map_structure(tf.constant, rows))
    reader = int(rows.observation['mask'][:, 0].sum(axis=1).argmax())

    def chances(left):
        seen = tf.nest.map_structure(lambda leaf: leaf[reader, :1].copy(), rows.observation)
        seen['mask'][0] = [item in left for item in range(3)]
        time_step = ts.restart(tf.nest.map_structure(tf.constant, seen), 1)
        return tf.nn.softmax(agent.collect_policy.distribution(time_step).action.logits_parameter()[0]).numpy()

    rankings = list(itertools.permutations(range(3)))
    found = [np.prod([chances(ranking[slot:])[ranking[slot]] for slot in range(3)]) for ranking in rankings]
    whole = tfp.distributions.PlackettLuce(np.tile(chances(range(3)), (6, 1)).astype(np.float64))
    np.testing.assert_allclose(found, whole.prob(np.array(rankings, np.int32)), rtol=1e-4)
    assert sum(found) == pytest.approx(1, abs=1e-5) and max(found) > 1.2 * min(found)


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
