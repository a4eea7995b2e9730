import numpy as np
import tensorflow as tf

from tflearn.environments import gymnasium_env
from tflearn.extensions.tasks import dict_cartpole


def test_has_the_numbers_of_cartpole():
    plain, parts = gymnasium_env.make('CartPole-v1', 2, 3, vectorization='in_process'), dict_cartpole.make(2, 3)
    expected, got = plain.reset(), parts.reset()
    for _ in range(30):
        np.testing.assert_array_equal(np.stack(tf.nest.flatten(got.observation), axis=1), expected.observation)
        np.testing.assert_array_equal(got.step_type, expected.step_type)
        expected, got = plain.step(np.array([0, 1])), parts.step(np.array([0, 1]))
    assert got.observation.keys() == {'cart', 'pole'} and got.observation['pole'].keys() == {'angle', 'velocity'}
    for environment in (plain, parts):
        environment.close()
