import copy

import numpy as np
import pytest
import tensorflow as tf
from tf_agents.agents.sac import sac_agent
from tf_agents.specs import tensor_spec
from tf_agents.utils import common

from tests.agents import example_data
from tflearn.agents import sac
from tflearn.core.experience import Experience, Prioritized, Slicing
from tflearn.core.train_step import create_train_step
from tflearn.core.types import EnvironmentSpecs, zeros
from tflearn.networks import heads, networks
from tflearn.optimization import optimizers

SPECS = example_data.CONTINUOUS
SMALL = {'actor_fc_layer_params': (16,), 'critic_fc_layer_params': (16,)}


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
    falling, rising = _agent(alpha_learning_rate=0.1), _agent(alpha_learning_rate=0.1, target_entropy=50.0)
    for agent in (falling, rising):
        agent.train(example_data.sequences(agent, 32, 2))
    assert falling._target_entropy == -2.0
    assert float(falling._log_alpha) < 0.0 < float(rising._log_alpha)


def test_each_optimizer_clips_on_its_own():
    agent = _agent(gradient_clipping=1e-3)
    agent.train(example_data.sequences(agent, 8, 2))
    for optimizer in (agent._actor_optimizer, agent._critic_optimizer, agent._alpha_optimizer):
        # After one step of Adam with beta_1 = 0.9.
        slots = [slot.numpy() for slot in optimizer.keras.variables if '/m/' in slot.name or slot.name.startswith('m/')]
        assert np.sqrt(sum(np.square(slot).sum() for slot in slots)) == pytest.approx(0.1 * 1e-3, rel=1e-3)
    assert {agent._actor_optimizer.name, agent._critic_optimizer.name} == {'actor', 'critic'}


def test_the_critics_slots_are_in_the_critics_order():
    """A checkpoint stores them by index; TF-Agents' train step would make them in a set's order."""
    agent = _agent(critic_fc_layer_params=(16, 15, 14, 13))
    agent.train(example_data.sequences(agent, 8, 2))
    variables = [*agent._critic_network_1.trainable_weights, *agent._critic_network_2.trainable_weights]
    slots = agent._critic_optimizer.keras.variables[1:]
    assert [slot.shape for slot in slots] == [variable.shape for variable in variables for _ in ('m', 'v')]


class _TheirAgent(sac_agent.SacAgent):
    """TF-Agents', with our agent's draws; the temperature's loss has those of the actor."""

    def _actions_and_log_probs(self, time_steps, training=False):
        distribution = self._train_policy.distribution(time_steps, ()).action
        if self.next_draw < 2:
            actions = heads.sample(distribution, self.draws)
            self.drawn = actions, common.log_probability(distribution, actions, self.action_spec)
        self.next_draw += 1
        return self.drawn


def test_train_steps_equal_tf_agents_bit_for_bit():
    """In eager mode."""
    ours = _agent()
    step = create_train_step()
    theirs = _TheirAgent(
        SPECS.time_step,
        SPECS.action,
        critic_network=ours._critic_network_1.copy(name='CriticNetwork'),
        actor_network=networks.actor(SPECS.observation, SPECS.action, (16,), continuous=heads.tanh_normal),
        **{f'{name}_optimizer': optimizers.make(step, 3e-4, name=name) for name in ('actor', 'critic', 'alpha')},
        target_update_tau=0.005,
        gamma=0.99,
        target_entropy=-2.0,
        train_step_counter=step,
    )
    theirs.draws = copy.copy(ours._draws)
    theirs.draws._train_step = step
    theirs.initialize()
    pairs = list(zip(_networks(ours), _networks(theirs), strict=True))
    for mine, other in pairs:
        for a, b in zip(mine.variables, other.variables, strict=True):
            b.assign(a)
    for seed in range(4):
        infos = []
        for agent in (ours, theirs):
            theirs.next_draw = 0
            theirs.draws.restart()
            infos.append(agent.train(example_data.sequences(agent, 8, 2, seed)))
        for a, b in zip(*map(tf.nest.flatten, infos), strict=True):
            np.testing.assert_array_equal(a, b)
        for mine, other in pairs:
            for a, b in zip(mine.variables, other.variables, strict=True):
                np.testing.assert_array_equal(a.numpy(), b.numpy())
        assert ours._log_alpha.numpy() == theirs._log_alpha.numpy()
    losses = []
    for agent in (ours, theirs):
        theirs.next_draw = 0
        theirs.draws.restart()
        losses.append(agent.loss(example_data.sequences(agent, 8, 2)))
    for a, b in zip(*map(tf.nest.flatten, losses), strict=True):
        np.testing.assert_array_equal(a, b)


def _networks(agent):
    targets = [agent._target_critic_network_1, agent._target_critic_network_2]
    return [agent._actor_network, agent._critic_network_1, agent._critic_network_2, *targets]


def test_target_networks_are_updated():
    agent = _agent(target_update_tau=1.0, target_update_period=2)
    data = example_data.sequences(agent, 8, 2)
    first = agent._target_critic_network_1.variables[0].numpy()
    agent.train(data)
    np.testing.assert_array_equal(agent._target_critic_network_1.variables[0].numpy(), first)
    agent.train(data)
    for critic, target in zip(agent._critic_network_2.variables, agent._target_critic_network_2.variables, strict=True):
        np.testing.assert_array_equal(critic.numpy(), target.numpy())


def test_it_learns_a_bandit():
    """Episodes of one step, whose reward is minus the distance of the first action from 0.5."""
    agent = _agent(
        actor_learning_rate=1e-2, critic_learning_rate=1e-2, alpha_learning_rate=1e-2, gamma=0.9, target_update_tau=0.1
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
        (SPECS.action, Experience(replay=Prioritized()), 'SAC needs Uniform and 2'),
        (SPECS.action, Experience(slicing=Slicing(sequence_length=3)), 'SAC needs Uniform and 2'),
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
