import collections

import pytest

from tflearn.core.experience import Reuse
from tflearn.sampling.queue_source import ReusePlan


def run(plan, num_steps):
    """Takes train steps. Returns the new batches' numbers, in the order in which they are trained on."""
    slots, taken, num_fresh = [None] * plan.num_slots, [], 0
    while len(taken) < num_steps:
        slot = plan.next_slot()
        if slot is None:
            for slot in plan.fresh_slots():
                slots[slot] = num_fresh
            num_fresh += 1
            plan.put()
        else:
            taken.append(slots[slot])
    return taken


@pytest.mark.parametrize('num_ahead', [1, 3])
def test_uses_each_batch_once(num_ahead):
    assert run(ReusePlan(None, num_ahead), 6) == [0, 1, 2, 3, 4, 5]


def test_uses_each_batch_several_times_in_a_row():
    assert run(ReusePlan(Reuse(times=3)), 7) == [0, 0, 0, 1, 1, 1, 2]


def test_alternates_between_recent_batches():
    taken = run(ReusePlan(Reuse(times=2, recent_batches=3)), 12)
    assert taken == [0, 1, 2, 0, 1, 2, 3, 4, 5, 3, 4, 5]


@pytest.mark.parametrize('proportion', [0.5, 1.0, 2.0])
def test_adds_replayed_batches(proportion):
    num_steps, kept = 3_000, 4
    taken = run(ReusePlan(Reuse(replay_proportion=proportion, replay_batches=kept), seed=1), num_steps)
    newest, ages = -1, collections.Counter()
    for batch in taken:
        if batch == newest + 1:
            newest = batch
        else:
            ages[newest - batch] += 1
    fresh = newest + 1
    assert (num_steps - fresh) / fresh == pytest.approx(proportion, rel=0.01)
    assert set(ages) == set(range(kept))
    assert min(ages.values()) > 0.8 * max(ages.values()), 'all kept batches have the same probability'


def test_does_not_use_dropped_batches_again():
    plan = ReusePlan(Reuse(times=3))
    assert run(plan, 1) == [0]
    plan.drop(0)
    assert plan.next_slot() is None


@pytest.mark.parametrize(
    ('changes', 'message'),
    [
        ({'recent_batches': 4}, 'got Reuse.recent_batches=4 with times=1'),
        ({'replay_proportion': 1.0}, 'replay_batches=0; need both above 0, or neither'),
        ({'replay_batches': 8}, 'replay_proportion=0.0, replay_batches=8; need both above 0, or neither'),
    ],
)
def test_rejects_invalid_reuse(changes, message):
    with pytest.raises(ValueError, match=message):
        Reuse(**changes)
