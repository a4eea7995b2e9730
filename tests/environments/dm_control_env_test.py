import os

import pytest

os.environ.setdefault('MUJOCO_GL', 'disable')  # there may be no display, and nothing is rendered
pytest.importorskip('dm_control', reason='needs dm_control; pip install ".[dm-control]"')

from tflearn.environments import dm_control_env

pytestmark = pytest.mark.filterwarnings('ignore::UserWarning')  # about the missing display


def test_observations_are_one_vector_or_a_dict():
    for flatten in (True, False):
        environment = dm_control_env.make('humanoid', 'walk', 1, seed=0, flatten_observations=flatten)
        observation = environment.reset().observation
        environment.close()
        if flatten:
            assert observation.shape == (1, 67)
        else:
            assert {key: value.shape for key, value in observation.items()} == {
                'joint_angles': (1, 21),
                'head_height': (1,),
                'extremities': (1, 12),
                'torso_vertical': (1, 3),
                'com_velocity': (1, 3),
                'velocity': (1, 27),
            }


def test_rejects_invalid_arguments():
    with pytest.raises(ValueError, match="got domain='cartpole', task='fly'; .*choose from cartpole-balance, cartpole"):
        dm_control_env.make('cartpole', 'fly', 1, seed=0)
    with pytest.raises(ValueError, match="got domain='kite', task='fly'; .*choose from acrobot, "):
        dm_control_env.make('kite', 'fly', 1, seed=0)
