"""What an algorithm cannot learn from is refused in one line that says what it needs."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf
from tf_agents.specs import tensor_spec

from tests.agents import example_data
from tests.testing.algorithms import ALGORITHMS
from tflearn.agents import bc, r2d2, sac
from tflearn.core.experience import Prioritized, Queue, Uniform
from tflearn.core.types import EnvironmentSpecs
from tflearn.optimization.optimizers import OptimizerOptions

KINDS = {'uniform': Uniform(), 'prioritized': Prioritized(), 'queue': Queue()}
FLOATS, CHOICE = example_data.CONTINUOUS.action, example_data.DISCRETE.action
ACTIONS = {
    'discrete': CHOICE,
    'continuous': FLOATS,
    'multi-discrete': tensor_spec.BoundedTensorSpec((2,), tf.int64, 0, 1),
    'nested': (CHOICE, FLOATS),
}
UNBOUNDED = tensor_spec.BoundedTensorSpec((1,), tf.float32, -np.inf, 1)
UNBOUNDED_CHOICE = tensor_spec.BoundedTensorSpec((), tf.int64, tf.int64.min, tf.int64.max)
MEMORY, SHARED = {'lstm_size': (4,)}, {'shared': True}


@pytest.mark.parametrize('name', ALGORITHMS)
def test_items_and_actions_that_are_not_of_the_example_are_refused(name):
    algorithm = ALGORITHMS[name]
    own = algorithm.experience
    changes = [
        {'experience': dataclasses.replace(own, replay=replay)}
        for kind, replay in KINDS.items()
        if kind not in algorithm.example.data
    ]
    changes += [
        {'specs': EnvironmentSpecs(algorithm.specs.observation, action)}
        for kind, action in ACTIONS.items()
        if kind not in algorithm.example.actions
    ]
    for change in changes:
        with pytest.raises(ValueError, match='^got .*need') as error:
            algorithm.make(**change)
        assert '\n' not in str(error.value)


@pytest.mark.parametrize(
    ('names', 'changes', 'message'),
    [
        ('sac td3 iql awac', {'action': UNBOUNDED}, 'needs bounded actions'),
        ('iql awac', {'action': UNBOUNDED_CHOICE}, 'needs one discrete action with bounds'),
        ('bc', {'action': UNBOUNDED_CHOICE}, 'needs bounded discrete actions'),
        ('sac iql awac bc', {'items': {'store_policy_state': True}}, 'got Slicing.store_policy_state=True'),
        ('reinforce', {'items': {'store_policy_state': True}}, 'needs False: its sequences start with their episodes'),
        ('ppo', {'observation': tf.TensorSpec((4,), tf.uint8)}, 'need floats, or normalize_observations=False'),
        ('ppo', {'layers': MEMORY}, 'got a network with memory and Slicing.store_policy_state=False; need True'),
        ('impala appo', {'optimizer': OptimizerOptions({'value': 1e-3}), 'layers': SHARED}, 'need shared=False'),
        ('iql', {'layers': SHARED}, 'got NetworkOptions..*; IQL has no use for it'),
        ('iql', {'layers': MEMORY}, 'got NetworkOptions..*; IQL has no use for it'),
        ('iql awac', {'target_update_tau': 0.0}, 'target_update_tau=0.0; need'),
        ('r2d2', {'target_update_period': 0}, 'got target_update_period=0; need an integer of at least 1'),
        ('r2d2', {'action_mask': 'mask'}, "got action_mask='mask'"),
        ('r2d2', {'loss': r2d2.R2D2Loss(burn_in_steps=4)}, 'need at least .*, so that'),
        ('td3', {'action': ()}, 'needs continuous actions'),
        ('recurrent_sac', {'loss': sac.SACLoss(burn_in_steps=6)}, 'sequence_length=5 with burn_in_steps=6; need at '),
        ('recurrent_sac', {'actor_network': object()}, 'got actor_network with lstm_size; need one of them'),
        ('bc', {'loss': bc.BCLoss(kind='mse')}, "got kind='mse' for the action .*; need actions of floats"),
        ('bc', {'layers': MEMORY}, 'got Slicing.sequence_length=2 for a network with memory; need at least 3'),
        ('td3', {'exploration_noise': -0.1}, 'got exploration_noise=-0.1; need a number of at least 0'),
        ('ppo', {'max_kl': 0.0}, 'got max_kl=0.0; need a number above 0'),
        ('ddpg', {'gamma': 1.1}, '^got gamma=1.1; need a number of at least 0 and at most 1$'),
    ],
)
def test_what_does_not_fit_together_is_refused(names, changes, message):
    for name in names.split():
        given, algorithm = {**changes}, ALGORITHMS[name]
        specs = {each: given.pop(each, getattr(algorithm.specs, each)) for each in ('observation', 'action')}
        slicing = dataclasses.replace(algorithm.experience.slicing, **given.pop('items', {}))
        experience = dataclasses.replace(algorithm.experience, slicing=slicing)
        with pytest.raises(ValueError, match=message) as error:
            algorithm.make(EnvironmentSpecs(**specs), experience, **given)
        assert '\n' not in str(error.value)


@pytest.mark.parametrize(
    ('loss', 'message'),
    [
        ({'weight': 'quality'}, "got weight='quality'; need one of episode_return, return_to_go, .*reward"),
        ({'weight_temperature': 2.0}, 'got weight_temperature=2.0 without a weight'),
    ],
)
def test_weights_of_cloning_that_do_not_fit_are_refused(loss, message):
    with pytest.raises(ValueError, match=message):
        ALGORITHMS['bc'].make(loss=bc.BCLoss(**loss))
