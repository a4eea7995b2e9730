import copy

import numpy as np
import pytest
import tensorflow as tf
from tf_agents.agents.ddpg import critic_network
from tf_agents.agents.sac import sac_agent
from tf_agents.specs import tensor_spec
from tf_agents.utils import common

from tests.agents import example_data, oracles
from tflearn.agents import sac
from tflearn.core.experience import Experience, Queue, Slicing
from tflearn.core.train_step import create_train_step
from tflearn.core.types import EnvironmentSpecs, zeros
from tflearn.networks import heads, networks
from tflearn.networks.networks import NetworkOptions
from tflearn.optimization.optimizers import OptimizerOptions

SPECS = example_data.CONTINUOUS
LOSSES = ('critic_loss', 'actor_loss', 'alpha_loss')
SMALL = {'network': NetworkOptions(fc_layer_params=(16,), critic_fc_layer_params=(16,))}


def _agent(specs=SPECS, **changes):
    agent = sac.make_agent(specs, create_train_step(), sac.EXPERIENCE, **SMALL | changes)
    agent.initialize()
    return agent


def test_actions_are_within_their_bounds():
    agent = _agent()
    steps = zeros(SPECS.time_step, (500,))
    actions = agent.collect_policy.action(steps).action.numpy()
    assert actions.shape == (500, 2)
    assert (np.abs(actions) <= 1).all()
    assert actions.std() > 0.3
    greedy = agent.policy.action(steps).action.numpy()
    assert (greedy == greedy[0]).all()


def test_the_temperature_is_learned_for_the_papers_entropy():
    """-dim(A): the temperature falls while the entropy is above it, and rises while it is below."""
    falling, rising = (
        _agent(optimizer=OptimizerOptions({'alpha': 0.1})),
        _agent(optimizer=OptimizerOptions({'alpha': 0.1}), loss=sac.SACLoss(target_entropy=50.0)),
    )
    for agent in (falling, rising):
        agent.train(example_data.sequences(agent, 32, 2))
    assert falling._target_entropy == -2.0
    assert float(falling._log_alpha) < 0.0 < float(rising._log_alpha)


def test_each_optimizer_clips_on_its_own():
    agent = _agent(optimizer=OptimizerOptions(gradient_clipping=1e-3))
    agent.train(example_data.sequences(agent, 8, 2))
    assert agent._optimizers.keys() == {'actor', 'critic', 'alpha'}
    for optimizer in agent._optimizers.values():
        # After one step of Adam with beta_1 = 0.9.
        slots = [slot.numpy() for slot in optimizer.keras.variables if '/m/' in slot.name or slot.name.startswith('m/')]
        assert np.sqrt(sum(np.square(slot).sum() for slot in slots)) == pytest.approx(0.1 * 1e-3, rel=1e-3)


class _TheirAgent(sac_agent.SacAgent):
    """TF-Agents', with our agent's draws; the temperature's loss has those of the actor."""

    def _actions_and_log_probs(self, time_steps, training=False):
        distribution = self._train_policy.distribution(time_steps, ()).action
        if self.next_draw < 2:
            actions = heads.sample(distribution, self.draws)
            self.drawn = actions, common.log_probability(distribution, actions, self.action_spec)
        self.next_draw += 1
        return self.drawn


def _their_agent(ours):
    """TF-Agents' agent with our weights, whose critics' squares have the factor 1."""
    step = create_train_step()
    critic = critic_network.CriticNetwork(
        (SPECS.observation, SPECS.action), joint_fc_layer_params=(16,), last_kernel_initializer='glorot_uniform'
    )
    theirs = _TheirAgent(
        SPECS.time_step,
        SPECS.action,
        critic_network=critic,
        actor_network=networks.actor(
            SPECS.observation, SPECS.action, NetworkOptions((16,)), continuous=heads.tanh_normal
        ),
        **OptimizerOptions().make(step, 8, {f'{name}_optimizer': 3e-4 for name in ('actor', 'critic', 'alpha')}),
        critic_loss_weight=1.0,
        target_update_tau=0.5,
        gamma=0.99,
        target_entropy=-2.0,
        train_step_counter=step,
    )
    theirs.draws = copy.copy(ours._draws)
    theirs.draws._train_step = step
    theirs.initialize()
    for mine, other in _pairs(ours, theirs):
        other.assign(mine)
    return theirs


def _pairs(ours, theirs):
    """Our values, and the variables of TF-Agents' agent."""
    pairs = list(zip(ours._actor.variables, theirs._actor_network.variables, strict=True))
    for mine, others in (
        (ours._critics, (theirs._critic_network_1, theirs._critic_network_2)),
        (ours._target_critics, (theirs._target_critic_network_1, theirs._target_critic_network_2)),
    ):
        for member, other in zip(oracles.members(mine), others, strict=True):
            pairs += zip(member.variables, other.variables, strict=True)
    return [*pairs, (ours._log_alpha, theirs._log_alpha)]


def test_losses_and_train_steps_are_nearly_tf_agents():
    """The products of the critics' layers are added in another order, so they round otherwise."""
    ours = _agent(target_update_tau=0.5)  # so that a missing update of the targets shows
    theirs = _their_agent(ours)
    for seed in range(4):
        found = []
        for agent in (ours, theirs):
            theirs.next_draw = 0
            theirs.draws.restart()
            data = example_data.sequences(agent, 8, 2, seed)
            extra = agent.loss(data).extra
            theirs.next_draw = 0
            theirs.draws.restart()
            agent.train(data)
            found.append([extra[name] if agent is ours else getattr(extra, name) for name in LOSSES])
        np.testing.assert_allclose(*found, rtol=1e-4, atol=1e-5)
        for mine, other in _pairs(ours, theirs):
            np.testing.assert_allclose(mine.numpy(), other.numpy(), rtol=1e-3, atol=1e-5)


def test_an_item_s_error_is_that_of_its_values():
    agent = _agent(loss=sac.SACLoss(gamma=0.0, reward_scale=2.0))
    data = example_data.sequences(agent, 8, 2)
    values = agent._critics(data.observation[:, 0], data.action[:, 0])[..., 0]
    expected = np.abs(2.0 * data.reward.numpy()[:, :1] - values.numpy()).mean(axis=1)
    np.testing.assert_allclose(agent.train(data).extra['td_error'], expected, rtol=1e-4)


def test_target_networks_are_updated():
    agent = _agent(target_update_tau=1.0, target_update_period=2)
    data = example_data.sequences(agent, 8, 2)
    first = agent._target_critics.variables[0].numpy()
    agent.train(data)
    np.testing.assert_array_equal(agent._target_critics.variables[0].numpy(), first)
    agent.train(data)
    for critic, target in zip(agent._critics.variables, agent._target_critics.variables, strict=True):
        np.testing.assert_array_equal(critic.numpy(), target.numpy())


def test_it_learns_a_bandit():
    """Episodes of one step, whose reward is minus the distance of the first action from 0.5."""
    agent = _agent(
        optimizer=OptimizerOptions({'actor': 1e-2, 'critic': 1e-2, 'alpha': 1e-2}),
        loss=sac.SACLoss(gamma=0.9),
        target_update_tau=0.1,
    )
    train = tf.function(agent.train, autograph=False)
    data = example_data.sequences(agent, 64, 2)
    data = data._replace(
        discount=tf.zeros_like(data.discount),
        reward=-4 * tf.abs(2 * data.action[..., 0] - 1.0),
        observation=tf.zeros_like(data.observation),
    )
    for _ in range(500):
        train(data)
    action = agent.policy.distribution(zeros(SPECS.time_step, (1,))).action.mode()  # what is drawn has a spread
    assert action.numpy()[0, 0] == pytest.approx(0.5, abs=0.15)
    assert int(agent.train_step_counter) == 500


@pytest.mark.parametrize(
    ('action', 'experience', 'message'),
    [
        (example_data.DISCRETE.action, Experience(), 'SAC needs one vector of continuous actions'),
        ((SPECS.action, SPECS.action), Experience(), 'SAC needs one vector of continuous actions'),
        (
            SPECS.action,
            Experience(replay=Queue()),
            'got a Queue as Experience.replay; SAC needs Uniform or Prioritized',
        ),
        (SPECS.action, Experience(slicing=Slicing(store_policy_state=True)), 'SAC needs False: it has no memory'),
        (
            tensor_spec.BoundedTensorSpec((1,), tf.float32, -np.inf, np.inf),
            Experience(),
            'SAC needs bounded actions',
        ),
    ],
)
def test_rejects_what_it_cannot_learn(action, experience, message):
    with pytest.raises(ValueError, match=message):
        sac.make_agent(EnvironmentSpecs(SPECS.observation, action), create_train_step(), experience)
