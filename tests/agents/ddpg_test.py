import numpy as np
import pytest
import tensorflow as tf
from tf_agents.specs import tensor_spec

from tests.agents import example_data
from tests.testing import deterministic_oracle as oracle
from tflearn.agents import ddpg
from tflearn.core.experience import Experience, Queue
from tflearn.core.train_step import create_train_step
from tflearn.core.types import EnvironmentSpecs, zeros
from tflearn.networks.networks import NetworkOptions
from tflearn.optimization.optimizers import OptimizerOptions

SPECS = example_data.CONTINUOUS
SMALL = {'network': NetworkOptions(fc_layer_params=(8,), critic_fc_layer_params=(9,))}


def _agent(**changes):
    agent = ddpg.make_agent(SPECS, create_train_step(), ddpg.EXPERIENCE, **SMALL | changes)
    agent.initialize()
    return agent


def test_losses_are_the_papers():
    agent = _agent(gamma=0.9, reward_scale=2.0)
    for i, variable in enumerate(agent.variables):
        if variable.dtype.is_floating and variable.shape.rank:
            variable.assign(tf.random.stateless_uniform(variable.shape, (i, 3), -0.7, 0.7))
    data = example_data.sequences(agent, 16, 2)
    critic, actor = oracle.Losses(gamma=0.9, reward_scale=2.0, sigma=0.0, clip=0.0, alpha=None)(agent, data, 0.0, 1.0)
    info = agent.loss(data)
    assert float(info.extra['critic_loss']) == pytest.approx(critic, rel=1e-5)
    assert float(info.extra['actor_loss']) == pytest.approx(actor, rel=1e-5)
    assert agent._critics._options.num == 1


def test_all_networks_are_updated_in_each_step():
    agent = _agent(target_update_tau=0.5)
    parts = (agent._actor, agent._target_actor, agent._critics, agent._target_critics)
    variables = [variable for part in parts for variable in part.variables]
    before = [variable.numpy() for variable in variables]
    agent.train(example_data.sequences(agent, 8, 2))
    assert len(variables) == 16
    assert all(np.any(a != b.numpy()) for a, b in zip(before, variables, strict=True))


def test_it_learns_a_bandit():
    """Episodes of one step, whose reward is the first action, which is at most 1."""
    agent = _agent(optimizer=OptimizerOptions({'actor': 1e-2, 'critic': 1e-2}))
    train = tf.function(agent.train, autograph=False)
    data = example_data.sequences(agent, 64, 2)
    action = tensor_spec.sample_spec_nest(SPECS.action, outer_dims=(64, 2))  # all of them, not those of the policy
    data = data._replace(action=action, discount=tf.zeros_like(data.discount), reward=action[..., 0])
    for _ in range(500):
        train(data)
    action = agent.policy.action(zeros(SPECS.time_step, (1,))).action
    assert action.numpy()[0, 0] > 0.75


@pytest.mark.parametrize(
    ('action', 'experience', 'message'),
    [
        (example_data.DISCRETE.action, ddpg.EXPERIENCE, 'DDPG needs continuous actions'),
        (SPECS.action, Experience(replay=Queue()), 'DDPG needs Uniform'),
    ],
)
def test_rejects_what_it_cannot_learn(action, experience, message):
    with pytest.raises(ValueError, match=message):
        ddpg.make_agent(EnvironmentSpecs(SPECS.observation, action), create_train_step(), experience)


def test_rejects_a_discount_by_its_own_name():
    with pytest.raises(ValueError, match='^got gamma=1.1; need a number of at least 0 and at most 1$'):
        _agent(gamma=1.1)
