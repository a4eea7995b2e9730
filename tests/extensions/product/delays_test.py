"""A training set may have decisions whose windows are open, weighed by the delays of outcomes; the gate has none."""

import numpy as np
import pytest

from tests.extensions.product.outcomes_test import MANY as MANY_DECISIONS
from tests.extensions.product.outcomes_test import decisions, join, outcomes
from tflearn.core.errors import UserError
from tflearn.data import conversion, metadata
from tflearn.data.reader import Dataset, EpisodeReader
from tflearn.extensions.product import data_evaluation
from tflearn.extensions.product.delays import Delays
from tflearn.extensions.product.split import split

pytest.importorskip('pyarrow', reason='needs pip install ".[product]"')

BEGIN, SECS, WINDOW_SECS, MANY = 1e6, 20_000.0, 4_000.0, 10_000
OPTIONS = {'window_secs': WINDOW_SECS, 'until': BEGIN + SECS, 'combine': 'first', 'default_reward': 0.0}


class World:
    """Decisions of two actions. Late and large outcomes of one are slow, and its rewards rise towards the end."""

    def __init__(self, seed=0):
        random = np.random.default_rng(seed)
        self.times = BEGIN + np.sort(random.uniform(0, SECS, MANY))
        self.actions = random.integers(0, 2, MANY)
        drift = np.clip((self.times - BEGIN) / SECS - 0.5, 0, None)
        has_outcome = random.random(MANY) < np.where(self.actions == 1, 0.2 + drift, 0.3)
        size = random.choice([1.0, 3.0], MANY)
        mean_secs = np.where(self.actions == 1, 1_200, 400) * np.where(size == 3, 1.3, 1.0)
        # What would come after the window is spread over it.
        delays = random.exponential(mean_secs)
        self.delays = np.where(delays < WINDOW_SECS, delays, random.uniform(0, WINDOW_SECS, MANY))
        self.rewards = np.where(has_outcome, size, 0.0)

    def write(self, folder):
        decisions(folder, [(f'd{i}', at, int(self.actions[i])) for i, at in enumerate(self.times)])
        reported = np.flatnonzero(self.rewards)
        outcomes(folder, [(f'd{i}', self.times[i] + self.delays[i], self.rewards[i]) for i in reported])


@pytest.fixture(scope='module')
def joined(tmp_path_factory):
    """The world, and the rows of its data sets: with weights and without."""
    folder, world = tmp_path_factory.mktemp('delays'), World()
    world.write(folder)
    join(folder, 'plain', **OPTIONS)
    join(folder, 'weighed', weigh_delays=True, **OPTIONS)
    return world, rows_of(folder / 'weighed'), rows_of(folder / 'plain')


def rows_of(directory):
    """Returns the times of decisions, their actions and their rewards."""
    groups = list(EpisodeReader(Dataset([str(directory)])).joined())
    step_type, *found = (
        np.concatenate([each[name] for each in groups])
        for name in ('step_type', 'policy_info.time', 'action', 'reward')
    )
    assert (step_type.reshape(-1, 2) == [0, 2]).all()  # episodes of one decision
    return [each[::2] for each in found]


def test_weights_lower_the_bias_of_early_outcomes_where_delays_depend_on_action_and_reward(joined):
    world, (at, actions, rewards), (old_at, old_actions, old_rewards) = joined
    recent = lambda times: (times > BEGIN + SECS - WINDOW_SECS) & (times < BEGIN + SECS - 0.3 * WINDOW_SECS)  # noqa: E731
    assert old_at.max() <= BEGIN + SECS - WINDOW_SECS and len(np.unique(old_at)) == len(old_at)
    has_come = world.times + world.delays <= BEGIN + SECS
    for action in (0, 1):
        mine = recent(world.times) & (world.actions == action)
        truth = world.rewards[mine].mean()
        bias = {
            'weighed': rewards[recent(at) & (actions == action)].mean() - truth,
            'only closed': old_rewards[old_actions == action].mean() - truth,
            'zero until it comes': np.where(has_come, world.rewards, 0.0)[mine].mean() - truth,
            'only what has come': world.rewards[mine & has_come & (world.rewards > 0)].mean() - truth,
        }
        assert abs(bias['weighed']) < 0.06, bias
        if action == 1:  # slow, and with drift
            assert all(abs(bias[name]) > 2 * abs(bias['weighed']) for name in bias if name != 'weighed'), bias


def test_the_weighed_set_has_all_that_the_plain_one_has_once(joined):
    _, (at, _, rewards), (old_at, _, old_rewards) = joined
    closed = at <= BEGIN + SECS - WINDOW_SECS
    one, other = (np.argsort(each) for each in (at[closed], old_at))
    np.testing.assert_array_equal(at[closed][one], old_at[other])
    np.testing.assert_array_equal(rewards[closed][one], old_rewards[other])
    # The weights of all decisions of an age add up to their number.
    recent = (at > BEGIN + SECS - 0.9 * WINDOW_SECS) & (at < BEGIN + SECS - 0.3 * WINDOW_SECS)
    expected = MANY * 0.6 * WINDOW_SECS / SECS
    assert abs(recent.sum() - expected) < 5 * np.sqrt(2 * expected)


def test_what_came_after_the_end_of_the_log_has_not_come_by_it(tmp_path):
    """Else more outcomes would have come than delays say, by the time to settle."""
    decisions(tmp_path, MANY_DECISIONS)
    clicked = MANY_DECISIONS[::2]
    outcomes(tmp_path, [(name, at + 100 + i * 37 % 700, 1.0) for i, (name, at, _) in enumerate(clicked)])
    given = {'window_secs': 1_000.0, 'combine': 'first', 'default_reward': 0.0, 'settle_secs': 900.0}
    join(tmp_path, 'data', weigh_delays=True, **given)
    at, _, rewards = rows_of(tmp_path / 'data')
    # The log ends at 2099, 900 before the newest decision.
    assert 1_850 < at.max() < 2_000 and abs(rewards[at > 1_499].mean() - 0.5) < 0.1


def test_what_is_weighed_is_no_evidence_nor_is_what_is_made_of_it(tmp_path):
    decisions(tmp_path, MANY_DECISIONS[:100])
    outcomes(tmp_path, [(name, at + 5, 1.0) for name, at, _ in MANY_DECISIONS[:100:3]])
    given = {'window_secs': 30.0, 'combine': 'first', 'default_reward': 0.0}
    join(tmp_path, 'plain', **given)
    join(tmp_path, 'weighed', weigh_delays=True, **given)
    conversion.copy(Dataset([str(tmp_path / 'plain'), str(tmp_path / 'weighed')]), tmp_path / 'both')
    split(Dataset([str(tmp_path / 'weighed')]), tmp_path / 'parts', share=0.3)
    for refused in (tmp_path / 'weighed', tmp_path / 'both', tmp_path / 'parts' / 'held_out'):
        with pytest.raises(UserError, match='weighed by the delays of their outcomes, which is a guess; need data'):
            data_evaluation.evidence([tmp_path / 'plain', refused])
    assert data_evaluation.evidence([tmp_path / 'plain']) == metadata.stated([tmp_path / 'plain'])


@pytest.mark.parametrize(
    ('options', 'mapped', 'message'),
    [
        ({'combine': 'last'}, '', 'got --weigh_delays with --window_secs=4000.0 and --combine=last; need a window'),
        ({'window_secs': None}, '', 'got --weigh_delays with --window_secs=None and --combine=first; need a window'),
        ({}, "episode = 'action'\n", 'got --weigh_delays with an `episode` in the column map'),
    ],
)
def test_what_has_no_weights_is_refused(tmp_path, options, mapped, message):
    decisions(tmp_path)
    outcomes(tmp_path)
    mapped += "action = {kind = 'integer', high = 2}\nobservation = {x = 'observation'}"
    with pytest.raises(UserError, match=message):
        join(tmp_path, mapped=mapped, weigh_delays=True, **{**OPTIONS, **options})


def test_weights_are_the_inverse_shares_of_outcomes_that_have_come():
    # Of action 3, ten decisions: four outcomes, two of which come by 5. Of action 4 none is known.
    delays = Delays(np.array([3] * 10 + [1]), np.array([np.inf] * 6 + [9.0, 1.0, 5.0, 20.0, 2.0]))
    weights = delays.weights(
        np.array([3, 3, 3, 4, 1]), np.array([5.0, 5.0, 0.5, 5.0, 30.0]), np.array([1, 0, 1, 1, 1]) > 0
    )
    np.testing.assert_allclose(weights, [4 / 2, 6 / 8, 0, 0, 1])
