import numpy as np
import pytest

from tflearn.extensions.tasks import minatar_env

pytest.importorskip('minatar', reason='needs minatar; pip install ".[minatar]"')


@pytest.mark.parametrize('game', minatar_env.GAMES)
def test_observations_are_those_of_the_game(game):
    import minatar

    games = minatar_env.make(game, 1, seed=3)
    one = minatar.Environment(game)
    one.seed(3)
    one.reset()
    actions = one.minimal_action_set()
    assert games.specs.action.maximum == len(actions) - 1
    np.testing.assert_array_equal(games.reset().observation[0], one.state() * 255)
    rng = np.random.default_rng(0)
    for _ in range(30):
        action = rng.integers(len(actions), size=1)
        time_step, (reward, is_over) = games.step(action), one.act(actions[action[0]])
        assert (time_step.reward[0], bool(time_step.is_last()[0])) == (reward, is_over)
        np.testing.assert_array_equal(time_step.observation[0], one.state() * 255)
        if is_over:
            break
    games.close()


@pytest.mark.parametrize(
    ('arguments', 'expected'),
    [
        ({'game': 'brekout'}, 'breakout'),
        ({'repeat_action_probability': 1.0}, 'below 1'),
        ({'num_environments': 0}, '1'),
    ],
)
def test_rejects_invalid_arguments(arguments, expected):
    with pytest.raises(ValueError, match=expected):
        minatar_env.make(**{'game': 'breakout', 'num_environments': 1, 'seed': 0} | arguments)
