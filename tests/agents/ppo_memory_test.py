"""PPO with memory computes for a sequence what the collector computed step by step, also across episodes."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from tests.testing import experiences, lanes
from tflearn.actors.actor import Actor
from tflearn.agents import ppo
from tflearn.core.experience import Iteration
from tflearn.core.train_step import create_train_step
from tflearn.environments.tasks import t_maze
from tflearn.networks.networks import NetworkOptions

# TF-Agents' CategoricalProjectionNetwork makes an array of one element a number.
pytestmark = pytest.mark.filterwarnings('ignore:Conversion of an array with ndim > 0:DeprecationWarning')
LENGTH, SIZE = 10, 4
RECURRENT = NetworkOptions(fc_layer_params=(8,), lstm_size=(6,))
EXPERIENCE = experiences.changed(
    ppo.EXPERIENCE, sequence_length=LENGTH, stride=LENGTH - 1, cross_episodes=True, store_policy_state=True
)


@pytest.fixture(scope='module', params=[False, True], ids=['separate', 'shared'])
def collected(request):
    """An agent, and the second sequence of rows of each environment that its policy collects."""
    environment = t_maze.make(SIZE, 0, length=2, max_episode_steps=5)
    options = dataclasses.replace(RECURRENT, shared=request.param)
    agent = ppo.make_agent(
        environment.specs,
        create_train_step(),
        EXPERIENCE,
        network=options,
        normalize_observations=False,  # `prepare` is called more than once
        normalize_rewards=False,
    )
    for i, variable in enumerate(agent._network.trainable_variables):  # so that the state has an effect
        variable.assign(tf.random.stateless_normal(variable.shape, (i, 3)))
    tf.random.set_seed(0)
    rows = []
    actor = Actor(environment, agent.collect_policy, [rows.append], stores_policy_state=True)
    actor.run(2 * LENGTH - 1)
    environment.close()
    stack = lambda *steps: tf.constant(np.stack(steps, axis=1))  # noqa: E731
    return agent, tf.nest.map_structure(stack, *rows[LENGTH - 1 :])


def _without_state(sequences):
    state = tf.nest.map_structure(tf.zeros_like, sequences.policy_info['policy_state'])
    return sequences._replace(policy_info={**sequences.policy_info, 'policy_state': state})


def _divergence(agent, sequences):
    samples, counts = agent.prepare(sequences)
    return float(agent.loss(samples, counts).extra['kl_to_behaviour'])


def test_the_policy_of_a_sequence_is_the_one_that_acted(collected):
    agent, sequences = collected
    assert (sequences.step_type[:, 0] != 0).numpy().any(), 'some begin within an episode'
    assert (sequences.step_type[:, 1:] == 0).numpy().any(), 'another one begins within a sequence'
    assert _divergence(agent, sequences) == pytest.approx(0.0, abs=1e-5 if lanes.IS_CURRENT else 1e-6)
    assert _divergence(agent, _without_state(sequences)) > 1e-3, 'else this test shows nothing'


def test_memory_ends_with_the_episode(collected):
    """After the first step of an episode the samples do not depend on what was before."""
    agent, sequences = collected
    with_state, _ = agent.prepare(sequences)
    without, _ = agent.prepare(_without_state(sequences))
    started = np.cumsum(sequences.step_type.numpy()[:, :-1] == 0, axis=1) > 0
    differs = np.abs(with_state.value - without.value) > 1e-6
    assert not differs[started].any()
    assert differs[~started].any()


def test_a_train_step_on_sequences_is_one_on_their_samples(collected):
    agent, sequences = collected
    samples, counts = agent.prepare(sequences)
    direct = agent.loss(sequences)
    prepared = agent.loss(samples, counts)
    assert float(direct.loss) == pytest.approx(float(prepared.loss), rel=1e-5)
    assert agent.trains_on_sequences
    assert samples.step_type.shape == (SIZE, LENGTH - 1)
    before = [variable.numpy() for variable in agent._network.trainable_variables]
    compiled = tf.function(agent.train, autograph=False)
    assert float(compiled(samples, counts).loss) == pytest.approx(float(prepared.loss), rel=1e-4)
    changed = [(a != b.numpy()).any() for a, b in zip(before, agent._network.trainable_variables, strict=True)]
    assert all(changed)


@pytest.mark.parametrize(
    ('changes', 'message'),
    [
        ({'store_policy_state': False}, 'got a network with memory and Slicing.store_policy_state=False; need True'),
        ({'training': Iteration(1, LENGTH - 2)}, f'minibatch_steps={LENGTH - 2} .* need at least {LENGTH - 1}'),
    ],
)
def test_rejects_an_experience_without_states_or_sequences(changes, message):
    environment = t_maze.make(1, 0)
    environment.close()
    with pytest.raises(ValueError, match=message):
        ppo.make_agent(
            environment.specs,
            create_train_step(),
            experiences.changed(EXPERIENCE, **changes),
            network=RECURRENT,
        )
