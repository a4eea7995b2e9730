import functools
import pickle
import runpy

import gymnasium
import numpy as np
import pytest
from gymnasium.experimental.functional import FuncEnv

from tests.environments import conformance
from tests.testing import docs_blocks
from tflearn.extensions.tasks import jax_env
from tflearn.files.run_dir import RunDir, read_json

pytest.importorskip('jax', reason='needs jax; pip install ".[tasks]"')


class Walk(FuncEnv):
    """Five steps to the right end an episode; its first place is -1, 0 or 1."""

    observation_space = gymnasium.spaces.Dict(place=gymnasium.spaces.Box(-100, 100, (1,), np.float32))
    action_space = gymnasium.spaces.Discrete(2)

    def initial(self, rng, params=None):
        import jax

        return jax.random.randint(rng, (), -1, 2)

    def transition(self, state, action, rng, params=None):
        return state + 2 * action - 1

    def observation(self, state, rng, params=None):
        return {'place': state[None] * 1.0}

    def reward(self, state, action, next_state, rng, params=None):
        return next_state - state

    def terminal(self, state, rng, params=None):
        return state >= 5


@pytest.mark.parametrize('num_environments', [3, 100])  # fewer and more than begin at once
def test_episodes_end_and_begin(num_environments):
    environment = jax_env.from_functions(Walk, num_environments, seed=0, max_episode_steps=7)
    right = np.arange(num_environments) % 2
    first = time_step = environment.reset()
    place = first.observation['place'][:, 0]
    assert set(place) <= {-1, 0, 1} and (num_environments < 100 or len(set(place)) == 3)
    steps, seen = np.zeros(num_environments, int), {'terminated': 0, 'truncated': 0}
    for _ in range(30):
        before, time_step = time_step, environment.step(right)
        began = before.step_type == conformance.LAST
        steps = np.where(began, 0, steps + 1)
        place = np.where(began, time_step.observation['place'][:, 0], place + 2 * right - 1)
        np.testing.assert_array_equal(time_step.observation['place'][:, 0], place)
        assert (np.abs(place[began]) <= 1).all()
        np.testing.assert_array_equal(time_step.reward, np.where(began, 0, 2 * right - 1))
        np.testing.assert_array_equal(time_step.discount, np.where(~began & (place >= 5), 0, 1))
        ends = ~began & ((place >= 5) | (steps >= 7))
        np.testing.assert_array_equal(time_step.step_type == conformance.LAST, ends)
        seen['terminated'] += int((place[ends] >= 5).sum())
        seen['truncated'] += int((place[ends] < 5).sum())
    environment.close()
    assert min(seen.values()) >= num_environments // 2


def test_a_limit_of_gymnax_is_a_truncation():
    environment = jax_env.make('gymnax/Pendulum-v1', 2, seed=0)
    environment.reset()
    time_steps = [environment.step(np.zeros((2, 1), np.float32)) for _ in range(200)]
    assert [time_step.step_type[0] for time_step in time_steps[-2:]] == [conformance.MID, conformance.LAST]
    assert (time_steps[-1].discount == 1).all()
    environment.close()


def test_content_goes_on_where_it_was():
    make = functools.partial(jax_env.make, 'gymnax/CartPole-v1')
    first, second = make(num_environments=4, seed=3), make(num_environments=4, seed=8)
    first.reset()
    actions = np.random.default_rng(0).integers(0, 2, (80, 4))
    for action in actions[:40]:
        first.step(action)
    second.reset()
    second.set_content(pickle.loads(pickle.dumps(first.content())))
    for action in actions[40:]:
        conformance.assert_equal([first.step(action)], [second.step(action)])


def test_the_page_s_program(tmp_path, monkeypatch):
    (program,) = (block.text for block in docs_blocks.of('py') if 'jax_env.from_functions' in block.text)
    program = program.replace('max_env_steps=20_000', 'max_env_steps=8_500, num_episodes=2')
    monkeypatch.chdir(tmp_path)
    (tmp_path / 'program.py').write_text(program)
    runpy.run_path('program.py', run_name='__main__')
    assert read_json(RunDir('runs/functions').train_result)['env_steps'] >= 8_500


def test_rejects_invalid_arguments():
    with pytest.raises(ValueError, match="got name='CartPole-v1'; need 'brax/NAME' or 'gymnax/NAME'"):
        jax_env.make('CartPole-v1', 1, seed=0)
    with pytest.raises(ValueError, match='need an environment of gymnax; nearest: gymnax/CartPole-v1'):
        jax_env.make('gymnax/CartPol-v1', 1, seed=0)
    with pytest.raises(TypeError, match='got <built-in function len>; need a gymnasium.experimental'):
        jax_env.from_functions(lambda: len, 1, seed=0)


@pytest.mark.slow  # half a minute of compilation
@pytest.mark.filterwarnings('ignore::UserWarning', 'ignore::DeprecationWarning', 'ignore::FutureWarning')  # Brax's own
def test_brax_conforms():
    conformance.check(
        functools.partial(jax_env.make, 'brax/inverted_pendulum', kwargs={'backend': 'spring'}), num_steps=50
    )
    with pytest.raises(ValueError, match='need an environment of Brax; nearest: brax/ant'):
        jax_env.make('brax/ants', 1, seed=0)
