import functools
import sys
import threading
import warnings
from concurrent import futures

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import SyncVectorEnv

from tests import fakes
from tests.environments import conformance, example_environments
from tests.testing import lanes, two_rewards
from tflearn.core import life
from tflearn.core.errors import UserTypeError, UserValueError
from tflearn.core.waiting import wait_until
from tflearn.environments import sync_vector_env, vector_env

TwoStates = example_environments.TwoStates
BOTH = pytest.mark.parametrize('vectorize', [vector_env.in_process, vector_env.in_worker_processes])


def test_the_fake_environment_conforms():
    conformance.check(fakes.make_environment, num_steps=30, seeded=False)


@BOTH
def test_nested_spaces_conform(vectorize):
    conformance.check(functools.partial(vectorize, example_environments.Rover), num_steps=100)


def test_a_native_vector_environment_conforms():
    def make(num_environments, seed):
        return vector_env.native(lambda: SyncVectorEnv([example_environments.Rover] * num_environments), seed)

    conformance.check(make, num_steps=100)


@BOTH
def test_two_states_conform(vectorize):
    conformance.check(functools.partial(vectorize, TwoStates), num_steps=20, seeded=False)


@BOTH
def test_known_termination_and_truncation(vectorize):
    environment = vectorize(TwoStates, 2, seed=0)
    # Environment 0 ends in state 1 and terminates; environment 1 ends in state 0 at the time limit.
    actions = [[1, 1], [0, 1], [0, 0], [1, 1], [0, 0]]
    time_steps = [environment.reset()] + [environment.step(np.array(action)) for action in actions]
    environment.close()
    np.testing.assert_array_equal([t.step_type for t in time_steps], [[0, 0], [1, 1], [1, 1], [2, 2], [0, 0], [1, 1]])
    np.testing.assert_array_equal([t.observation for t in time_steps], [[0, 0], [1, 1], [1, 0], [1, 0], [0, 0], [0, 0]])
    np.testing.assert_array_equal([t.reward for t in time_steps], [[0, 0], [1, 1], [0, 1], [0, 0], [0, 0], [0, 0]])
    np.testing.assert_array_equal([t.discount for t in time_steps], [[1, 1], [1, 1], [1, 1], [0, 1], [1, 1], [1, 1]])


def test_a_second_close_calls_no_close_of_an_environment():
    closed = []

    class Driver(TwoStates):
        def close(self):
            closed.append(1)

    environment = vector_env.in_process(Driver, 2, seed=0)
    environment.reset()
    environment.close()
    environment.close()
    assert len(closed) == 2, 'each of the two environments once'


@BOTH
def test_a_vector_environment_is_not_taken_for_one(vectorize):
    with pytest.raises(UserTypeError, match=r'got CartPole-v1, a vector environment, .*; or vector_env.native'):
        vectorize(functools.partial(gymnasium.make_vec, 'CartPole-v1', 3), 2, seed=0)


def test_one_environment_is_not_taken_for_a_vector_environment():
    with pytest.raises(UserTypeError, match='got TwoStates, one environment, .*; or vector_env.in_process'):
        vector_env.native(TwoStates, seed=0)


@BOTH
@pytest.mark.parametrize('part', ['observation', 'action'])
def test_spaces_of_the_package_gym_are_called_so(vectorize, part):
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')  # the package's own
        from gym import spaces  # TF-Agents brings it

    class Old(TwoStates):
        pass

    setattr(Old, f'{part}_space', spaces.Discrete(2))
    with pytest.raises(UserValueError, match=rf'got the {part} space Discrete\(2\) of the package gym; need gymnasium'):
        vectorize(Old, 2, seed=0)


def test_rejects_categories_out_of_bounds():
    class Wrong(TwoStates):
        observation_space = gymnasium.spaces.Discrete(500)

        def __init__(self, first, later):
            super().__init__()
            self._first, self._later = first, later

        def reset(self, **_):
            return self._first, {}

        def step(self, action):
            return self._later, 0.0, False, False, {}

    message = 'got {} in observation of the environment; need values from 0 to 499, as its space has'
    environment = vector_env.in_process(functools.partial(Wrong, 999, 0), 2, seed=0)
    with pytest.raises(ValueError, match=message.format(999)):
        environment.reset()
    environment.close()
    environment = vector_env.in_process(functools.partial(Wrong, 499, -1), 2, seed=0)
    environment.reset()
    with pytest.raises(ValueError, match=message.format(-1)):
        environment.step(np.array([0, 0]))
    environment.close()


@BOTH
def test_executed_action_is_the_unclipped_action_unless_it_differs(vectorize):
    environment = vectorize(example_environments.Forward, 2, seed=0)
    environment.reset()
    time_step = environment.step(np.array([[3.0, 0.5], [-3.0, 2.0]], np.float32))
    environment.close()
    np.testing.assert_array_equal(time_step.observation, [[1.0, 0.5], [0.0, 1.0]])
    np.testing.assert_array_equal(environment.info['executed_action'], [[3.0, 0.5], [0.0, 1.0]])


@BOTH
def test_reset_in_the_middle_starts_other_episodes(vectorize):
    environment = vectorize(functools.partial(gymnasium.make, 'CartPole-v1'), 2, seed=3)
    first = environment.reset()
    environment.step(np.array([0, 1]))
    again = environment.reset()
    environment.close()
    assert (again.step_type == conformance.FIRST).all()
    assert not np.array_equal(first.observation, again.observation)


@BOTH
def test_without_a_seed_environments_differ(vectorize):
    make = functools.partial(vectorize, functools.partial(gymnasium.make, 'CartPole-v1'))
    some, others = (conformance.rollout(make, seed=None, num_steps=1)[0].observation for _ in range(2))
    assert not np.array_equal(some, others)


def test_without_a_seed_environments_are_given_different_ones():
    """A simulator may have a constant seed of its own."""

    class Seeded(gymnasium.Wrapper):
        def reset(self, *, seed=None, options=None):
            seeds.append(seed)
            return super().reset(seed=seed, options=options)

    seeds: list[int | None] = []
    for _ in range(2):
        environment = vector_env.in_process(lambda: Seeded(gymnasium.make('CartPole-v1')), 2, seed=None)
        environment.reset()
        environment.close()
    assert None not in seeds and len(set(seeds)) == 4


@BOTH
def test_step_requires_a_reset(vectorize):
    environment = vectorize(TwoStates, 2, seed=0)
    with pytest.raises(RuntimeError, match='need a reset'):
        environment.step(np.zeros(2, np.int64))
    environment.reset()
    environment.close()
    with pytest.raises(RuntimeError, match='after close'):
        environment.step(np.zeros(2, np.int64))


@pytest.mark.parametrize('worker_processes', [False, True])
@lanes.classic
def test_several_rewards(worker_processes):
    """As the environment's `reward_space` says; all are 0 in the first step of an episode."""
    environments = two_rewards.make(2, 0, worker_processes)
    assert environments.specs.reward.shape == (2,)
    time_steps = [environments.reset(), *(environments.step(np.int64([0, 1])) for _ in range(5))]
    environments.close()
    rewards = np.stack([time_step.reward for time_step in time_steps])
    assert rewards.dtype == np.float32
    np.testing.assert_array_equal(rewards[:, 0], [[0, 0], *[[1, 0]] * 4, [0, 0]])
    np.testing.assert_array_equal(rewards[:, 1], [[0, 0], *[[0, 1]] * 4, [0, 0]])


FIRST, MID = conformance.FIRST, conformance.MID
TROUBLED = functools.partial(example_environments.Troubled, 'raise')


def test_an_environment_that_raises_is_rebuilt(caplog):
    environment = vector_env.in_process(TROUBLED, 2, seed=0)
    environment.reset()
    for count in (1, 2, 3):
        assert environment.step(np.array([0, 0])).step_type.tolist() == [MID, MID]
        time_step = environment.step(np.array([0, 1]))
        assert time_step.step_type.tolist() == [MID, FIRST]
        assert time_step.reward.tolist() == [0, 0]
        assert time_step.discount.tolist() == [1, 1]
        assert time_step.observation.tolist() == [0, 0]
        assert environment.num_rebuilt == count
        assert 'rebuilding environment 1 (failure 1 in a row): ZeroDivisionError: the physics broke' in caplog.text
    environment.close()


@pytest.mark.parametrize(
    'vectorize', [vector_env.in_process, pytest.param(vector_env.in_worker_processes, marks=pytest.mark.slow)]
)
def test_an_environment_that_calls_sys_exit_is_rebuilt(vectorize, caplog):
    """It would end the program, with the exit status of a success."""
    environment = vectorize(functools.partial(example_environments.Troubled, 'sys.exit'), 2, seed=0)
    environment.reset()
    assert environment.step(np.array([0, 1])).step_type.tolist() == [MID, FIRST]
    environment.close()
    assert 'rebuilding environment 1 (failure 1 in a row): SystemExit' in caplog.text


def test_an_environment_that_always_calls_sys_exit_is_an_error():
    class Exiting(TwoStates):
        def __init__(self, at_once):
            super().__init__()
            if at_once:
                sys.exit(0)

        def reset(self, **_):
            sys.exit('no display')

    with pytest.raises(RuntimeError, match=r'got 6 failures in a row of environment 0; .*SystemExit: no display'):
        vector_env.in_process(lambda: Exiting(False), 1, seed=0).reset()
    for vectorize in (vector_env.in_process, vector_env.in_worker_processes):
        with pytest.raises(RuntimeError, match=r'got sys.exit\(0\) from a new environment; need one that can be made'):
            vectorize(lambda: Exiting(True), 1, seed=0)


def test_an_environment_that_does_not_answer_is_named(caplog, monkeypatch):
    answers = threading.Event()

    class Silent(TwoStates):
        def step(self, action):
            assert answers.wait(60)
            return super().step(action)

    monkeypatch.setattr(life, '_POLL_SECS', 0.01)
    environment = vector_env.in_process(Silent, 1, None)
    environment.reset()
    with futures.ThreadPoolExecutor() as threads:
        step = threads.submit(environment.step, np.zeros(1, np.int64))
        line = 'environment 0 (Silent) has not answered for 0 s. The run waits for it, and so does a stop (Ctrl-C)'
        try:
            wait_until(lambda: line in caplog.text, 'the warning', 60)
        finally:
            answers.set()
        step.result(60)


def test_what_raises_an_error_when_it_is_closed_is_closed(caplog):
    make_one = functools.partial(example_environments.Troubled, 'close')
    for environment in (
        vector_env.in_process(make_one, 2, seed=0),
        vector_env.native(lambda: SyncVectorEnv([make_one] * 2), seed=0),
    ):
        environment.reset()
        environment.close()
        assert 'OSError: the simulator has ended already' in caplog.text
        caplog.clear()
    environment = vector_env.in_worker_processes(make_one, 1, seed=0)  # one of this process shows the spaces
    assert 'could not close Troubled: OSError: the simulator has ended already' in caplog.text
    environment.reset()
    environment.close()


def test_native_vector_environment_is_rebuilt_as_one(caplog):
    environment = vector_env.native(lambda: SyncVectorEnv([TROUBLED] * 2), seed=0)
    environment.reset()
    time_step = environment.step(np.array([0, 1]))
    assert time_step.step_type.tolist() == [FIRST, FIRST]
    assert time_step.discount.tolist() == [1, 1]
    assert environment.num_rebuilt == 2
    assert environment.step(np.array([0, 0])).step_type.tolist() == [MID, MID]
    environment.close()
    assert 'rebuilding environment 0, 1 (failure 1 in a row): ZeroDivisionError' in caplog.text


@pytest.mark.parametrize('vectorization', ['one by one', 'native'])
def test_an_environment_that_fails_at_each_reset_is_an_error(tmp_path, vectorization):
    make_one = functools.partial(example_environments.Unresettable, tmp_path / 'broken')
    if vectorization == 'native':
        environment = vector_env.native(lambda: SyncVectorEnv([make_one] * 2), seed=0)
    else:
        environment = vector_env.in_process(make_one, 2, seed=0)
    environment.reset()
    (tmp_path / 'broken').touch()
    for call in (environment.reset, lambda: environment.step(np.array([0, 0]))):
        with pytest.raises(RuntimeError, match='got [67] failures in a row of environment 0.*OSError: no licence left'):
            call()
    environment.close()


def test_environment_that_cannot_be_made_is_an_error():
    made = []

    def make_one():
        if made:
            raise OSError('no licence for a second simulator')
        made.append(example_environments.TwoStates())
        return made[0]

    with pytest.raises(OSError, match='no licence for a second simulator'):
        vector_env.in_process(make_one, 2, seed=0)


def test_a_function_that_makes_no_environment_is_refused():
    with pytest.raises(TypeError, match='got None from the function that makes an environment; need an environment'):
        vector_env.in_process(lambda: None, 2, seed=0)


@pytest.mark.parametrize('wrap', [lambda environment: environment, gymnasium.wrappers.RecordEpisodeStatistics])
def test_one_environment_for_all_copies_is_refused(wrap):
    one = example_environments.TwoStates()
    with pytest.raises(UserValueError, match=r'got the same environment \(TwoStates\) from two calls of its factory'):
        vector_env.in_process(lambda: wrap(one), 2, seed=0)
    first = vector_env.in_process(lambda: wrap(one), 1, seed=0)
    with pytest.raises(UserValueError, match='got the same environment'):  # of another job, such as the evaluation
        vector_env.in_process(lambda: wrap(one), 1, seed=0)
    first.close()
    vector_env.in_process(lambda: wrap(one), 1, seed=0).close()


def test_one_environment_within_a_vector_environment_is_refused():
    one = example_environments.TwoStates()
    made = gymnasium.vector.SyncVectorEnv([lambda: one] * 2)
    with pytest.raises(UserValueError, match='got the same environment'):
        vector_env.native(lambda: made, seed=0)
    first = vector_env.in_process(lambda: one, 1, seed=0)
    with pytest.raises(UserValueError, match='got the same environment'):
        vector_env.native(lambda: gymnasium.vector.SyncVectorEnv([lambda: one]), seed=0)
    first.close()
    vector_env.native(lambda: gymnasium.vector.SyncVectorEnv([lambda: one]), seed=0).close()


def test_an_environment_that_failed_is_not_taken_again():
    one = example_environments.Troubled('raise')
    environment = vector_env.in_process(lambda: one, 1, seed=0)
    environment.reset()
    with pytest.raises(UserValueError, match='got the same environment'):
        environment.step(np.array([1]))


def test_rebuilt_environment_gets_another_seed():
    class Falling(gymnasium.Wrapper):
        def step(self, action):
            raise ArithmeticError('it fell')

    environment = sync_vector_env.SyncVectorEnv(lambda: Falling(gymnasium.make('CartPole-v1')), 2)
    first = environment.reset(3).copy()
    second = environment.step(np.array([0, 1])).observation.copy()
    environment.close()
    assert not np.isin(second, first).any()
    again = sync_vector_env.SyncVectorEnv(lambda: Falling(gymnasium.make('CartPole-v1')), 2)
    again.reset(3)
    np.testing.assert_array_equal(again.step(np.array([0, 1])).observation, second)
    again.close()
    assert not np.array_equal(second[0], second[1])


def test_infos():
    environment = vector_env.in_process(example_environments.Talkative, 2, seed=0)
    environment.reset()
    assert environment.info == {}
    for count in (1, 2, 3):
        environment.step(np.array([0, 1]))
        assert environment.info['count'].tolist() == [count, count]
        assert environment.info['executed_action'].tolist() == [0, 0]
        assert environment.info['executed_action'].dtype == np.int64
    environment.step(np.array([1, 1]))  # starts new episodes, without info
    assert environment.info['count'].tolist() == [0, 0]
    assert np.isnan(environment.info['speed']).all()
    assert environment.info['executed_action'].tolist() == [1, 1]
    environment.reset()
    assert environment.info == {}
    environment.close()


def test_the_executed_action_is_the_environments_as_all_actions_are():
    class Started(example_environments.Talkative):
        action_space = gymnasium.spaces.Discrete(2, start=3)

        def step(self, action):
            *result, info = super().step(action)
            return *result, info | {'executed_action': 4}

    environment = vector_env.in_process(Started, 1, seed=0)
    environment.reset()
    environment.step(np.array([3]))
    assert environment.info['executed_action'].tolist() == [4]
    environment.close()
