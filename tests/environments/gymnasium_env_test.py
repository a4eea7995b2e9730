import contextlib
import functools
import importlib.util

import gymnasium
import numpy as np
import pytest
import tensorflow as tf
from gymnasium import spaces

from tests.environments import conformance, example_environments
from tflearn.environments import gymnasium_env, sync_vector_env, vector_env, wrappers

BOTH = pytest.mark.parametrize('vectorization', ['in_process', 'worker_processes'])


@BOTH
@pytest.mark.parametrize('name', ['CartPole-v1', 'Acrobot-v1', 'Pendulum-v1'])
def test_conforms(name, vectorization):
    conformance.check(
        functools.partial(gymnasium_env.make, name, vectorization=vectorization, max_episode_steps=50), num_steps=120
    )


def test_both_vectorizations_play_the_same_episodes():
    some, others = (
        conformance.rollout(
            functools.partial(gymnasium_env.make, 'CartPole-v1', vectorization=vectorization), seed=5, num_steps=100
        )
        for vectorization in ('in_process', 'worker_processes')
    )
    conformance.assert_equal(some, others)


def test_the_native_vector_environment_conforms():
    make = functools.partial(gymnasium_env.make, 'CartPole-v1', vectorization='native', max_episode_steps=50)
    conformance.check(make, num_steps=120, own_seeds=False)


def test_native_and_single_environments_are_the_same_task():
    """From the same state and with the same actions both give the same observations, rewards and ends."""
    native, plain = (
        gymnasium_env.make('CartPole-v1', 1, seed=5, vectorization=vectorization, max_episode_steps=60)
        for vectorization in ('native', 'in_process')
    )
    observation = native.reset().observation
    np.testing.assert_array_equal(observation, plain.reset().observation)  # one environment has the same seed in both
    rng = np.random.default_rng(0)
    for _ in range(60):  # some pushes until the pole falls, or balanced until the time limit
        action = np.array([rng.integers(2)]) if rng.random() < 0.3 else (observation[:, 2:].sum(1) > 0).astype(np.int64)
        some, others = native.step(action), plain.step(action)
        for name in ('step_type', 'reward', 'discount'):
            np.testing.assert_array_equal(getattr(some, name), getattr(others, name), name)
        np.testing.assert_allclose(some.observation, others.observation, atol=1e-5)
        observation = some.observation
        if some.step_type == conformance.LAST:
            break
    again = native.step(action), plain.step(action)
    native.close()
    plain.close()
    assert some.step_type == conformance.LAST
    assert [(t.step_type[0], t.reward[0], t.discount[0]) for t in again] == [(conformance.FIRST, 0, 1)] * 2


@pytest.mark.parametrize(
    ('name', 'arguments', 'kind'),
    [
        ('CartPole-v1', {}, vector_env.NativeVectorEnv),
        ('CartPole-v1', {'max_episode_steps': 9}, sync_vector_env.SyncVectorEnv),
        ('CartPole-v1', {'kwargs': {'sutton_barto_reward': True}}, sync_vector_env.SyncVectorEnv),
        ('Acrobot-v1', {}, sync_vector_env.SyncVectorEnv),
        ('tests.environments.example_environments:tflearn_tests/OtherNative-v0', {}, sync_vector_env.SyncVectorEnv),
    ],
)
def test_auto_chooses_native_where_it_is_the_same_task(name, arguments, kind):
    environment = gymnasium_env.make(name, 2, seed=0, **arguments)
    environment.close()
    assert type(environment._vector_env) is kind


def test_rejects_native_where_none_is_registered():
    with pytest.raises(ValueError, match="got vectorization='native' of name='Acrobot-v1', which has none registered"):
        gymnasium_env.make('Acrobot-v1', 2, seed=0, vectorization='native')


def test_specs_of_cartpole():
    environment = gymnasium_env.make('CartPole-v1', 1, seed=0)
    environment.close()
    assert environment.specs.observation.shape == (4,)
    assert environment.specs.observation.dtype == tf.float32
    assert environment.specs.action.dtype == tf.int64
    assert (environment.specs.action.minimum, environment.specs.action.maximum) == (0, 1)


def test_max_episode_steps_truncates():
    environment = gymnasium_env.make('Pendulum-v1', 2, seed=0, max_episode_steps=2)
    environment.reset()
    time_steps = [environment.step(np.zeros((2, 1), np.float32)) for _ in range(3)]
    environment.close()
    np.testing.assert_array_equal([t.step_type for t in time_steps], [[1, 1], [2, 2], [0, 0]])
    assert (time_steps[1].discount == 1).all()


def test_kwargs_reach_the_environment():
    make = functools.partial(gymnasium_env.make, 'tests.environments.example_environments:tflearn_tests/TwoStates-v0')
    environment = make(1, seed=0, kwargs={'length': 1})
    environment.reset()
    time_step = environment.step(np.ones(1, np.int64))
    environment.close()
    assert time_step.step_type == conformance.LAST
    assert time_step.discount == 0


@BOTH
def test_names_with_a_module_work_in_workers(vectorization):
    name = 'tests.environments.example_environments:tflearn_tests/Rover-v0'
    environment = gymnasium_env.make(name, 2, seed=0, vectorization=vectorization)
    time_step = environment.reset()
    environment.close()
    assert time_step.observation['camera'].shape == (2, 4, 4, 1)


@BOTH
def test_register_function_is_called(vectorization):
    calls = []

    def register():
        calls.append(1)
        gymnasium.register('tflearn_tests/ByFunction-v0', 'tests.environments.example_environments:TwoStates')

    try:
        for _ in range(2):
            environment = gymnasium_env.make(
                'tflearn_tests/ByFunction-v0', 2, seed=0, vectorization=vectorization, register=register
            )
            assert environment.reset().reward.shape == (2,)
            environment.close()
    finally:
        gymnasium.registry.pop('tflearn_tests/ByFunction-v0', None)
    assert calls == [1], 'gymnasium warns of what is registered again'


@pytest.mark.parametrize(
    ('name', 'message'),
    [
        ('CartPol-v1', "got name='CartPol-v1'; need a registered gymnasium environment, or 'module:Name-v0' "),
        ('CartPole-v9', 'nearest: CartPole-v1, '),
        ('CartPole', 'nearest: CartPole-v1, '),
        ('%$', 'nearest: none'),
        (
            'no_such_module:Foo-v0',
            "got name='no_such_module:Foo-v0', whose module no_such_module is not there; need it in",
        ),
    ],
)
def test_rejects_unknown_names(name, message):
    with pytest.raises(ValueError) as raised:
        gymnasium_env.make(name, 1, seed=0)
    assert message in str(raised.value)
    assert '\n' not in str(raised.value)


@BOTH
@pytest.mark.parametrize(
    ('name', 'module', 'remedy'),
    [
        ('HalfCheetah-v5', 'mujoco', "pip install 'gymnasium[mujoco]' 'mujoco>=3,<4' (the extra mujoco)"),
        ('ALE/Pong-v5', 'ale_py', "pip install 'ale-py>=0.11' (the extra atari)"),
        ('LunarLander-v3', 'Box2D', "pip install 'box2d>=2.3.10,<3' (the extra box2d)"),
    ],
)
def test_missing_package_error_names_the_install_command(name, module, remedy, vectorization):
    if importlib.util.find_spec(module):
        pytest.skip(f'{module} is installed')
    with pytest.raises(ValueError) as raised:
        gymnasium_env.make(name, 1, seed=0, vectorization=vectorization)
    assert f"got name='{name}', which needs {module}; need that installed; {remedy}" in str(raised.value)
    assert '\n' not in str(raised.value)


@BOTH
@pytest.mark.parametrize(
    ('arguments', 'message'),
    [
        ({'kwargs': {'gravitas': 9.81}}, "unexpected keyword argument 'gravitas'"),
        ({'kwargs': {'max_episode_steps': 9}}, "multiple values for keyword argument 'max_episode_steps'"),
    ],
)
def test_rejects_invalid_arguments(arguments, message, vectorization):
    with pytest.raises(ValueError) as raised:
        gymnasium_env.make(
            'CartPole-v1', **{'num_environments': 1, 'seed': 0, 'vectorization': vectorization} | arguments
        )
    assert message in str(raised.value)


@pytest.mark.parametrize('vectorization', ['auto', 'worker_processes'])
def test_a_mask_in_info_becomes_a_part_of_the_observation(vectorization):
    """Taxi's: which moves no wall stops, and whether a passenger may enter or leave."""
    with contextlib.closing(
        gymnasium_env.make('Taxi-v4', 2, seed=1, vectorization=vectorization, mask_in_info='action_mask')
    ) as environment:
        spec = environment.specs.observation
        assert spec['action_mask'].shape == (6,) and spec['observation'].maximum == 499
        masks = [environment.reset().observation['action_mask']]
        masks += [environment.step(np.array([i % 4, 0])).observation['action_mask'] for i in range(8)]
        assert {mask.dtype for mask in masks} == {np.dtype(np.int64)}
        assert 0 < np.mean(masks) < 1


def test_rejects_a_mask_that_is_not_in_info():
    with pytest.raises(ValueError, match="got mask_in_info='legal' for the actions Box.*; need Discrete or Multi"):
        gymnasium_env.make('Pendulum-v1', 1, seed=1, mask_in_info='legal')
    with pytest.raises(ValueError, match="vectorization='native' with mask_in_info; choose"):
        gymnasium_env.make('CartPole-v1', 1, seed=1, vectorization='native', mask_in_info='legal')


class Goals(gymnasium.Env):
    observation_space = action_space = gymnasium.spaces.Discrete(2)

    def compute_reward(self, achieved_goal, desired_goal, info):
        return -np.linalg.norm(achieved_goal - desired_goal, axis=-1)


class GoalByNorm(Goals):
    """Its reward is of one goal: of an array of them it is that of all together."""

    def compute_reward(self, achieved_goal, desired_goal, info):
        return -np.linalg.norm(achieved_goal - desired_goal)


class GoalByIf(Goals):
    """Its reward is of one goal: an array of them has no truth value."""

    def compute_reward(self, achieved_goal, desired_goal, info):
        return -float(np.linalg.norm(achieved_goal - desired_goal)) if (achieved_goal != desired_goal)[0] else 0.0


@pytest.mark.parametrize('made', [GoalByNorm, GoalByIf])
def test_goal_reward_takes_one_goal_at_a_time_if_the_environment_does(made):
    name = f'{made.__name__}-v0'
    reward = gymnasium_env.goal_reward(name, register=lambda: gymnasium.register(name, made))
    achieved = np.array([[[1.0, 2.0], [0.0, 0.0]], [[4.0, 0.0], [0.0, 0.0]]], np.float32)
    np.testing.assert_allclose(reward(achieved, np.zeros_like(achieved)), [[-(5**0.5), 0.0], [-4.0, 0.0]], rtol=1e-6)


def test_goal_reward_is_that_of_the_environment():
    reward = gymnasium_env.goal_reward('Goals-v0', register=lambda: gymnasium.register('Goals-v0', Goals))
    achieved, desired = tf.constant([[[3.0, 4.0], [0.0, 1.0]]]), tf.zeros((1, 2, 2))
    np.testing.assert_allclose(tf.function(reward)(achieved, desired), [[-5.0, -1.0]])
    with pytest.raises(ValueError, match='no compute_reward; need a goal environment'):
        gymnasium_env.goal_reward('CartPole-v1')


def test_one_step_is_several_of_the_environment():
    once = gymnasium.make('Pendulum-v1')
    repeated = gymnasium_env.ActionRepeat(lambda: gymnasium.make('Pendulum-v1'), 3)
    np.testing.assert_array_equal(once.reset(seed=1)[0], repeated.reset(seed=1)[0])
    for _ in range(5):
        action = np.float32([1.5])
        steps = [once.step(action) for _ in range(3)]
        observation, reward, terminated, truncated, _ = repeated.step(action)
        np.testing.assert_array_equal(observation, steps[-1][0])
        assert reward == pytest.approx(sum(float(step[1]) for step in steps))
        assert not terminated and not truncated


def test_an_episode_ends_in_between():
    environment = gymnasium_env.make('CartPole-v1', 2, 0, max_episode_steps=10, action_repeat=4)
    environment.reset()
    rewards = [environment.step(np.int64([0, 1])) for _ in range(3)]
    ends = [time_step for time_step in rewards if (time_step.step_type == 2).any()]
    assert ends and sum(time_step.reward[0] for time_step in rewards) in (9.0, 10.0)
    environment.close()


@pytest.mark.parametrize(
    ('settings', 'message'),
    [
        ({'action_repeat': 2, 'vectorization': 'native'}, "'native' with action_repeat; choose"),
    ],
)
def test_refuses_action_repeats(settings, message):
    with pytest.raises(ValueError, match=message):
        gymnasium_env.make('CartPole-v1', 2, 0, **settings)


def test_reset_options_and_nonfinite_reach_the_environments():
    gymnasium.register('tflearn_tests/Course-v0', example_environments.Course)
    try:
        environment = gymnasium_env.make('tflearn_tests/Course-v0', 2, 1, reset_options={'level': 3.0})
        assert environment.reset().observation.tolist() == [[0, 0, 3]] * 2
        environment.set_progress(4, 9)
        observations = [environment.step(np.zeros(2, np.int64)).observation[0].tolist() for _ in range(6)]
        assert observations == [[4, 9, 3]] * 6
        assert environment.info['robot/speed'].tolist() == [0.5, 0.5]
        environment.close()
        with pytest.raises(ValueError, match="got vectorization='native' with reset_options; choose 'in_process'"):
            gymnasium_env.make('CartPole-v1', 1, 1, vectorization='native', reset_options={'low': 0.0})
    finally:
        del gymnasium.registry['tflearn_tests/Course-v0']


FIRST, MID, LAST = conformance.FIRST, conformance.MID, conformance.LAST


class Game(gymnasium.Env):
    """Three lives; action 1 loses one, and each reward is 1. The observation counts the steps of the game."""

    observation_space = spaces.Box(0.0, np.inf, (), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, max_steps=1000):
        self._max_steps = max_steps
        self._steps = self._lives = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._steps, self._lives = 0, 3
        return np.float32(0), {'lives': 3}

    def step(self, action):
        if not self.action_space.contains(action) or not self._lives:
            raise ValueError(f'got action {action!r} with {self._lives} lives; need one of {self.action_space}')
        self._steps += 1
        self._lives -= int(action)
        truncated = self._steps == self._max_steps
        return np.float32(self._steps), 1.0, self._lives == 0, truncated, {'lives': self._lives}


def _make(num_environments, seed, **kwargs):
    return wrappers.EpisodicLife(vector_env.in_process(functools.partial(Game, **kwargs), num_environments, seed))


def _rows(environment, actions):
    """Resets, and returns (step type, reward, discount, observation) of each time step of the first environment."""
    time_steps = [environment.reset()] + [environment.step(np.array(action)) for action in actions]
    environment.close()
    return [tuple(float(leaf[0]) for leaf in time_step) for time_step in time_steps]


def test_episodic_life_conforms():
    conformance.check(_make, num_steps=60, seeded=False)


def test_the_game_goes_on_after_a_lost_life():
    # Environment 1 never loses a life. An action at the start of an episode is replaced by action 0.
    actions = [[0, 0], [1, 0], [1, 0], [1, 0], [0, 0], [1, 0], [1, 0], [0, 0], [1, 0]]
    assert _rows(_make(2, seed=0), actions) == [
        (FIRST, 0, 1, 0),
        (MID, 1, 1, 1),
        (LAST, 1, 0, 2),
        (FIRST, 0, 1, 3),
        (LAST, 1, 0, 4),
        (FIRST, 0, 1, 5),
        (LAST, 1, 0, 6),  # the last life: the game is over
        (FIRST, 0, 1, 0),
        (MID, 1, 1, 1),
        (LAST, 1, 0, 2),
    ]


def test_environments_that_lose_no_life_continue():
    environment = _make(2, seed=0)
    environment.reset()
    time_steps = [environment.step(np.array(action)) for action in ([0, 0], [1, 0], [0, 0])]
    environment.close()
    assert [float(time_step.observation[1]) for time_step in time_steps] == [1, 2, 3]
    assert [int(time_step.step_type[1]) for time_step in time_steps] == [MID] * 3
    assert [float(time_step.reward[1]) for time_step in time_steps] == [1] * 3


def test_a_game_that_ends_where_an_episode_begins():
    assert _rows(_make(1, seed=0, max_steps=3), [[0], [1], [0], [0], [0]]) == [
        (FIRST, 0, 1, 0),
        (MID, 1, 1, 1),
        (LAST, 1, 0, 2),
        (FIRST, 0, 1, 3),  # interrupted
        (FIRST, 0, 1, 0),
        (MID, 1, 1, 1),
    ]


def test_a_reset_begins_another_game():
    environment = _make(1, seed=0)
    environment.reset()
    for action in ([0], [1]):
        assert environment.step(np.array(action)).step_type != FIRST
    assert environment.reset().step_type == FIRST
    time_step = environment.step(np.array([0]))
    environment.close()
    assert (time_step.step_type, time_step.observation) == (MID, 1)


def _broken(render_mode):
    raise gymnasium.error.DependencyNotInstalled('MuJoCo is not installed') from ModuleNotFoundError(name='mujoco')


def test_a_missing_package_is_named_also_where_frames_are_shown():
    gymnasium.register('tests/Broken-v0', _broken)
    with gymnasium_env.rendered(lambda env: env), pytest.raises(ValueError, match='which needs mujoco; need that inst'):
        gymnasium_env.make('tests/Broken-v0', 1, None)
