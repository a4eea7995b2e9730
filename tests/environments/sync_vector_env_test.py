import functools

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import SyncVectorEnv

from tests.environments import conformance, example_environments
from tflearn.environments import sync_vector_env, vector_env

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
