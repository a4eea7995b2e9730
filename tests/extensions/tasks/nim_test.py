import numpy as np
import pytest

from tflearn.extensions.tasks import nim


def play(environment, choose, num_games):
    """Plays games; returns the rewards at their ends. `choose` takes (heaps, legal)."""
    time_step, ends = environment.reset(), []
    while len(ends) < num_games:
        observation = time_step.observation
        actions = [choose(*state) for state in zip(observation['heaps'], observation['legal'], strict=True)]
        time_step = environment.step(np.array(actions))
        ends += time_step.reward[time_step.is_last()].tolist()
    return ends


def best(heaps, legal):
    for action in np.flatnonzero(legal):
        heap, number = divmod(action, 5)
        after = heaps - (np.arange(3) == heap) * (number + 1)
        if not nim.nim_sum(after):
            return action
    return 0


def test_the_best_moves_always_win():
    for skill in (0.0, 1.0):
        environment = nim.make(8, seed=1, skill=skill)
        assert set(play(environment, best, 50)) == {1.0}
        environment.close()


def test_random_moves_lose_against_skill():
    random = np.random.default_rng(1)
    wins = []

    def choose(heaps, legal):
        return random.choice(np.flatnonzero(legal)) if legal.any() else 0

    for skill in (0.0, 1.0):
        environment = nim.make(8, seed=1, skill=skill)
        wins.append(np.mean(play(environment, choose, 300)))
        environment.close()
    assert -0.4 < wins[0] < 0.4 and wins[1] < -0.8


def test_illegal_moves_lose():
    environment = nim.make(1, seed=1, heaps=(1, 3))
    observation = environment.reset().observation
    assert observation['legal'].tolist() == [[1, 0, 0, 1, 1, 1]] and observation['heaps'].tolist() == [[1, 3]]
    time_step = environment.step(np.array([2]))
    assert (time_step.reward.item(), time_step.discount.item(), environment.info['illegal'].item()) == (-1, 0, 1)
    environment.step(np.array([2]))
    time_step = environment.step(np.array([4]))  # two of the second heap leave (1, 1)
    assert time_step.reward.item() == environment.info['illegal'].item() == 0
    assert time_step.observation['heaps'].sum() == 1
    environment.close()


@pytest.mark.parametrize('heaps', [(0, 1), ()])
def test_rejects_other_games(heaps):
    with pytest.raises(ValueError, match='^got heaps=.*; need one or more, each of 1 or more'):
        nim.make(1, seed=0, heaps=heaps)
