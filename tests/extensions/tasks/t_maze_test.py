import itertools

import numpy as np
import pytest

from tflearn.extensions.tasks import t_maze
from tflearn.extensions.tasks.t_maze import EAST, NORTH, SOUTH, WEST

LENGTH, LIMIT = 3, 12
START, CORRIDOR, JUNCTION = {(0, 1, 1): NORTH, (1, 1, 0): SOUTH}, (1, 0, 1), (0, 1, 0)


def _episode(environment, act):
    """Returns the observations, as tuples, and the return of an episode in which `act(observation)` acts."""
    time_step = environment.reset()
    seen, total = [], 0.0
    while True:
        seen.append(tuple(int(number) for number in time_step.observation[0]))
        if time_step.step_type[0] == 2:
            return seen, total, time_step.discount[0]
        time_step = environment.step(np.array([act(seen[-1])]))
        total += float(time_step.reward[0])


def _by_signal(environment, act):
    """Returns the returns of an episode with each signal; `act(seen)` is given what was seen so far."""
    returns = {}
    while len(returns) < 2:
        history = []
        seen, total, _ = _episode(environment, lambda now, history=history: history.append(now) or act(history))
        returns[START[seen[0]]] = total
    return returns


@pytest.fixture(scope='module')
def environment():
    made = t_maze.make(1, 0, LENGTH, LIMIT)
    yield made
    made.close()


def test_a_policy_with_memory_gets_the_best_return(environment):
    returns = _by_signal(environment, lambda seen: START[seen[0]] if seen[-1] == JUNCTION else EAST)
    assert returns == {NORTH: t_maze.BEST_RETURN, SOUTH: t_maze.BEST_RETURN}


def test_every_policy_without_memory_gets_at_most_half_of_it(environment):
    """Of all deterministic ones; the value of one that draws its actions is no more than the best of these."""
    kinds = [*START, CORRIDOR, JUNCTION]
    means = []
    for actions in itertools.product(range(4), repeat=len(kinds)):
        choice = dict(zip(kinds, actions, strict=True))
        means.append(np.mean(list(_by_signal(environment, lambda seen, choice=choice: choice[seen[-1]]).values())))
    assert len(means) == 4**4
    assert max(means) <= t_maze.BEST_RETURN / 2
    assert max(means) == pytest.approx((4.0 - 0.1) / 2), 'always the same turn'


def test_what_it_shows_and_charges(environment):
    path = [NORTH, EAST, WEST, WEST, EAST, EAST, EAST, EAST]
    time_step = environment.reset()
    signal, seen, rewards = time_step.observation[0], [], []
    for action in path:
        time_step = environment.step(np.array([action]))
        seen.append(time_step.observation[0])
        rewards.append(float(time_step.reward[0]))
    np.testing.assert_array_equal(
        seen, [signal, CORRIDOR, signal, signal, CORRIDOR, CORRIDOR, JUNCTION, JUNCTION], 'the signal is at the start'
    )
    np.testing.assert_allclose(rewards, [-0.1, 0, 0, -0.1, 0, 0, 0, -0.1], rtol=1e-6, err_msg='walls cost')


def test_it_is_truncated(environment):
    seen, total, discount = _episode(environment, lambda _: WEST)
    assert len(seen) == LIMIT + 1
    assert total == pytest.approx(-0.1 * LIMIT)
    assert discount == 1.0, 'not terminated'


def test_a_turn_terminates_it(environment):
    *_, discount = _episode(environment, lambda now: NORTH if now == JUNCTION else EAST)
    assert discount == 0.0


def test_the_seed_decides_the_signals():
    def signals(seed):
        made = t_maze.make(20, seed, LENGTH)
        try:
            return made.reset().observation
        finally:
            made.close()

    np.testing.assert_array_equal(signals(1), signals(1))
    assert (signals(1) != signals(2)).any()
    assert 3 <= sum(signals(1)[:, 0]) <= 17, 'both occur'


@pytest.mark.parametrize('name', ['length', 'max_episode_steps'])
def test_rejects_numbers_below_one(name):
    with pytest.raises(ValueError, match=f'got {name}=0; need'):
        t_maze.make(1, 0, **{name: 0})
