import gymnasium
import numpy as np
import pytest

from tests.environments import conformance
from tflearn.environments import atari

pytest.importorskip('ale_py', reason='needs ale_py; pip install ".[atari]"')


def test_specs():
    environment = atari.make('pong', 1, seed=0)
    environment.close()
    assert environment.specs.observation.shape == (84, 84, 4)
    assert environment.specs.observation.dtype.name == 'uint8'
    assert environment.specs.action.maximum == 5


def test_frames_are_those_of_gymnasium_s_preprocessing():
    pytest.importorskip('cv2', reason='needs cv2, which gymnasium resizes with')
    import ale_py

    gymnasium.register_envs(ale_py)
    one = gymnasium.make('ALE/Pong-v5', frameskip=1, repeat_action_probability=0.0)
    one = gymnasium.wrappers.AtariPreprocessing(one, noop_max=0)
    one = gymnasium.wrappers.FrameStackObservation(one, 4, padding_type='zero')
    games = atari.make('pong', 1, seed=3, repeat_action_probability=0.0)
    np.testing.assert_array_equal(games.reset().observation[0], np.moveaxis(one.reset(seed=3)[0], 0, -1))
    rng = np.random.default_rng(0)
    for _ in range(300):
        action = rng.integers(6, size=1)
        time_step, (observation, reward, *_) = games.step(action), one.step(action[0])
        np.testing.assert_array_equal(time_step.observation[0], np.moveaxis(observation, 0, -1))
        assert time_step.reward[0] == reward
    games.close()


def test_game_i_is_seeded_with_seed_plus_i():
    def play(num_environments, seed):
        games = atari.make('breakout', num_environments, seed=seed)
        games.reset()
        rng = np.random.default_rng(0)
        screens = []
        for _ in range(60):  # the same actions in all games; the repeated ones differ
            screens.append(games.step(np.full(num_environments, rng.integers(4))).observation[..., -1])
        games.close()
        return np.stack(screens)

    three = play(3, seed=3)
    np.testing.assert_array_equal(three, play(3, seed=3))
    np.testing.assert_array_equal(three[:, 1], play(1, seed=4)[:, 0])
    assert not np.array_equal(three[:, 0], three[:, 1])
    assert not np.array_equal(three[:, 1], three[:, 2])


def test_time_limit_truncates_and_info_has_lives():
    games = atari.make('breakout', 2, seed=0, max_episode_steps=10)
    games.reset()
    time_steps = [games.step(np.zeros(2, np.int64)) for _ in range(11)]
    games.close()
    assert [t.step_type[0] for t in time_steps] == [conformance.MID] * 9 + [conformance.LAST, conformance.FIRST]
    assert (time_steps[9].discount == 1).all()
    assert games.info['lives'].tolist() == [5, 5]


def test_a_lost_life_ends_an_episode_only_on_request():
    discounts = {}
    for end_with_life in (True, False):
        games = atari.make('breakout', 1, seed=0, end_with_life=end_with_life)
        games.reset()
        for _ in range(60):  # fire, then let the ball pass
            time_step = games.step(np.ones(1, np.int64))
            if time_step.step_type == conformance.LAST:
                break
        games.close()
        discounts[end_with_life] = (int(time_step.step_type[0]), float(time_step.discount[0]))
    assert discounts == {True: (conformance.LAST, 0.0), False: (conformance.MID, 1.0)}


def test_the_game_goes_on_after_a_lost_life():
    games = atari.make('breakout', 2, seed=0, end_with_life=True)
    games.reset()
    left = {0: [], 1: []}  # the lives that are left at the start of each episode, by game
    for _ in range(600):
        time_step = games.step(np.ones(2, np.int64))
        for i in np.flatnonzero(time_step.step_type == conformance.FIRST):
            assert (games.info['episode_frame_number'][i] > 0) == (games.info['lives'][i] < 5)
            left[i].append(int(games.info['lives'][i]))
    games.close()
    for of_game in left.values():
        assert of_game[:6] == [4, 3, 2, 1, 5, 4]


@pytest.mark.parametrize(
    ('arguments', 'message'),
    [
        ({'game': 'Pong'}, "got game='Pong'; need one of ALE's; nearest: pong"),
    ],
)
def test_rejects_invalid_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        atari.make(**{'game': 'pong', 'num_environments': 1, 'seed': 0} | arguments)
