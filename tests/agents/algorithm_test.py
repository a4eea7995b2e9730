"""Every algorithm's factory is called with the environment's specs, and takes what all algorithms take."""

import inspect

import pytest

from tests.agents import example_data
from tests.testing.algorithms import ALGORITHMS
from tflearn.agents import cross_q, ddpg
from tflearn.core.train_step import create_train_step
from tflearn.networks.networks import NetworkOptions
from tflearn.optimization.optimizers import OptimizerOptions

GIVEN = {'specs': example_data.CONTINUOUS, 'experience': ddpg.EXPERIENCE, 'network': NetworkOptions((8,))}


@pytest.mark.parametrize('name', ALGORITHMS)
def test_factory_takes_what_all_take(name):
    algorithm = ALGORITHMS[name]
    parameters = list(inspect.signature(algorithm.module.make_agent).parameters)
    assert parameters[:3] == ['specs', 'train_step', 'experience']
    has_networks = algorithm.example.network is not None
    assert [name in parameters for name in ('problem', 'network', 'optimizer')] == [False, has_networks, has_networks]


def test_arguments_can_have_names():
    step = create_train_step()
    agent = ddpg.make_agent(train_step=step, optimizer=OptimizerOptions({'actor': 0.5}), **GIVEN)
    assert agent.train_step_counter is step and agent._optimizers['actor'].learning_rate.numpy() == 0.5
    assert [variable.shape[-1] for variable in agent._actor.variables[:2]] == [8, 8]


def test_an_algorithm_can_have_another_default():
    agent = cross_q.make_agent(train_step=create_train_step(), **GIVEN)
    assert agent._optimizers['critic'].keras.beta_1 == 0.5


def test_rejects_unknown_setting():
    with pytest.raises(TypeError, match='gama'):
        ddpg.make_agent(train_step=create_train_step(), gama=0.9, **GIVEN)
