"""What an algorithm cannot learn from is refused when its agent is made, in one line that says what to do."""

import numpy as np
import pytest
import tensorflow as tf
from tf_agents.specs import tensor_spec

from tests.agents import example_data
from tflearn.agents import appo, dqn, impala, ppo, reinforce, sac
from tflearn.agents.actor_value import NetworkOptions
from tflearn.train_step import create_train_step
from tflearn.types import EnvironmentSpecs


def bounded(shape, dtype, low, high):
    return tensor_spec.BoundedTensorSpec(shape, dtype, low, high, 'leaf')


AGENTS = {'dqn': dqn, 'sac': sac, 'ppo': ppo, 'impala': impala, 'appo': appo, 'reinforce': reinforce}
OBSERVATION = example_data.DISCRETE.observation
DISCRETE, CONTINUOUS = example_data.DISCRETE.action, example_data.CONTINUOUS.action
UNEQUAL = bounded((2,), tf.int64, [0, 0], [1, 2])
FROM_1 = bounded((), tf.int64, 1, 3)
UNBOUNDED = bounded((2,), tf.float32, -np.inf, np.inf)
TOO_WIDE = bounded((2,), tf.float32, np.finfo(np.float32).min, np.finfo(np.float32).max)
POLICY_GRADIENT = ('ppo', 'impala', 'appo', 'reinforce')


def make(name, observation, action, **changes):
    module = AGENTS[name]
    return module.make_agent(EnvironmentSpecs(observation, action), create_train_step(), module.EXPERIENCE, **changes)


@pytest.mark.parametrize(
    ('names', 'action', 'need'),
    [
        (('dqn',), UNEQUAL, 'DQN needs one discrete action, counted from 0; '),
        (('dqn',), FROM_1, 'DQN needs one discrete action, counted from 0; '),
        (('dqn',), {'a': DISCRETE}, 'DQN needs one discrete action, counted from 0; '),
        (('dqn',), (DISCRETE, DISCRETE), 'DQN needs one discrete action, counted from 0; '),
        (('dqn',), CONTINUOUS, 'DQN needs one discrete action, counted from 0; '),
        (('sac',), DISCRETE, 'SAC needs one vector of continuous actions; '),
        (('sac',), {'a': CONTINUOUS, 'b': CONTINUOUS}, 'SAC needs one vector of continuous actions; '),
        (('sac',), bounded((), tf.float32, -1, 1), 'SAC needs one vector of continuous actions; '),
        (('sac',), bounded((2, 2), tf.float32, -1, 1), 'SAC needs one vector of continuous actions; '),
        (('sac', *POLICY_GRADIENT), UNBOUNDED, 'needs bounded actions; rescale them'),
        (('sac', *POLICY_GRADIENT), TOO_WIDE, 'needs bounded actions; rescale them'),
        (POLICY_GRADIENT, UNEQUAL, 'with 2, 3 choices; .* needs equally many in each dimension; wrap the environment'),
        (POLICY_GRADIENT, FROM_1, 'needs discrete actions counted from 0; wrap the environment'),
        (
            ('ppo', 'impala', 'appo'),
            (DISCRETE, DISCRETE),
            'a tuple; .* needs one tensor or a dict; wrap the environment',
        ),
    ],
)
def test_rejects_actions(names, action, need):
    for name in names:
        with pytest.raises(ValueError, match=f'(?s)^got the action .*{need}') as error:
            make(name, OBSERVATION, action)
        assert '\n' not in str(error.value).strip().partition('  In call to configurable')[0].strip()


@pytest.mark.parametrize('observation', [{'a': OBSERVATION}, (OBSERVATION, OBSERVATION)])
@pytest.mark.parametrize('name', ['dqn', 'sac', 'reinforce'])
def test_rejects_nested_observations(name, observation):
    with pytest.raises(ValueError, match='^got the nested observation .* needs one tensor; join its parts .*Flatten'):
        make(name, observation, CONTINUOUS if name == 'sac' else DISCRETE)


@pytest.mark.parametrize(
    'observation', [OBSERVATION, {'a': bounded((8, 8, 1), tf.uint8, 0, 255)}, bounded((8, 8, 1), tf.int64, 0, 9)]
)
@pytest.mark.parametrize('name', ['dqn', 'ppo', 'impala', 'appo'])
def test_rejects_convolutions_of_what_is_no_image(name, observation):
    if name == 'dqn':
        if isinstance(observation, dict):
            return
        changes = {'conv_layer_params': ((4, 3, 1),)}
    else:
        changes = {'network': NetworkOptions(conv_layer_params=((4, 3, 1),))}
    with pytest.raises(ValueError, match=r'^got conv_layer_params for .*; need images \[height, width, channels\]'):
        make(name, observation, DISCRETE, **changes)
