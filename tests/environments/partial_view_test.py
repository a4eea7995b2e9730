import functools

import numpy as np
import pytest

from tflearn.environments import gymnasium_env, partial_view

CARTPOLE = functools.partial(gymnasium_env.make, 'CartPole-v1')


def test_shows_a_part_of_the_observation():
    full, part = CARTPOLE(2, 0), partial_view.make(2, 0, CARTPOLE, (0, 2))
    try:
        assert part.specs.observation.shape == (2,)
        np.testing.assert_array_equal(part.specs.observation.maximum, full.specs.observation.maximum[[0, 2]])
        np.testing.assert_array_equal(part.reset().observation, full.reset().observation[:, [0, 2]])
        action = np.array([0, 1])
        np.testing.assert_array_equal(part.step(action).observation, full.step(action).observation[:, [0, 2]])
    finally:
        full.close()
        part.close()


@pytest.mark.parametrize('visible', [(), (4,), (-1,)])
def test_rejects_indices_out_of_range(visible):
    with pytest.raises(ValueError, match='need indices of a vector'):
        partial_view.make(2, 0, CARTPOLE, visible)
