import numpy as np
import pytest

from tests.environments import conformance
from tflearn.environments import envpool_env

pytest.importorskip('envpool', reason='needs envpool; pip install ".[envpool]"')
pytestmark = pytest.mark.filterwarnings('ignore:.*precision lowered:UserWarning')


def test_termination_and_truncation():
    environment = envpool_env.make('Pendulum-v1', 2, seed=0, max_episode_steps=5)
    environment.reset()
    time_steps = [environment.step(np.zeros((2, 1), np.float32)) for _ in range(6)]
    environment.close()
    assert [t.step_type[0] for t in time_steps] == [conformance.MID] * 4 + [conformance.LAST, conformance.FIRST]
    assert (time_steps[4].discount == 1).all()

    environment = envpool_env.make('CartPole-v1', 1, seed=0)
    environment.reset()
    while (time_step := environment.step(np.ones(1, np.int64))).step_type != conformance.LAST:
        pass
    environment.close()
    assert time_step.discount == 0
    assert environment.info['elapsed_step'].tolist() == [8] or environment.info['elapsed_step'][0] < 15


def test_without_a_seed_environments_differ():
    some, others = (
        conformance.rollout(
            lambda num_environments, seed: envpool_env.make('CartPole-v1', num_environments, seed), None, 1
        )
        for _ in range(2)
    )
    assert not np.array_equal(some[0].observation, others[0].observation)


def test_rejects_invalid_arguments():
    with pytest.raises(ValueError, match="got name='CartPol-v1'; need an environment of EnvPool; nearest: CartPole-v1"):
        envpool_env.make('CartPol-v1', 1, seed=0)
