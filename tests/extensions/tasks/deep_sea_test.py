import numpy as np

from tests.environments import conformance
from tflearn.extensions.tasks import deep_sea


def _cells(time_step, size=4):
    return [np.argwhere(cells.reshape(size, size)).tolist() for cells in time_step.observation]


def test_only_the_way_to_the_right_leads_to_the_treasure():
    environments, right = deep_sea.make(2, seed=0, size=4), deep_sea.DeepSea(4).right
    time_step = environments.reset()
    returns, columns = np.zeros(2), [0, 0]
    for row in range(4):
        assert _cells(time_step) == [[[row, column]] for column in columns]
        actions = [right[row, column] for column in columns]
        if row == 1:
            actions[1] = 1 - actions[1]
        time_step = environments.step(np.array(actions))
        columns = [column + 1 if i == 0 or row != 1 else column - 1 for i, column in enumerate(columns)]
        returns += time_step.reward
    assert (time_step.step_type == 2).all() and (time_step.discount == 0).all()
    assert _cells(time_step) == [[], []]
    np.testing.assert_allclose(returns, [deep_sea.BEST_RETURN, -0.0075], rtol=1e-5)


def test_left_is_free_and_stays_at_the_wall():
    environments, right = deep_sea.make(1, seed=0, size=3), deep_sea.DeepSea(3).right
    environments.reset()
    steps = [environments.step(np.array([1 - right[row, 0]])) for row in range(3)]
    assert [step.reward[0] for step in steps] == [0, 0, 0]
    assert _cells(steps[1], 3) == [[[2, 0]]]


def test_actions_differ_by_cell_but_not_by_seed():
    right = deep_sea.DeepSea(15).right
    assert 0.4 < right.mean() < 0.6
    np.testing.assert_array_equal(right, deep_sea.DeepSea(15).right)


def test_conforms():
    conformance.check(lambda num_environments, seed: deep_sea.make(num_environments, seed, 5), seeded=False)
