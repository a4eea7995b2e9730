import dataclasses

import numpy as np
import pytest
import tensorflow as tf
from tf_agents.trajectories import time_step as ts

from tests.agents import example_data
from tests.testing import experiences, lanes, structured
from tflearn.actors.actor import Actor
from tflearn.agents import ppo
from tflearn.agents.ppo import PPOLoss
from tflearn.core.experience import Iteration
from tflearn.core.train_step import create_train_step
from tflearn.networks.networks import NetworkOptions
from tflearn.optimization import schedules
from tflearn.optimization.optimizers import OptimizerOptions

SMALL = NetworkOptions(fc_layer_params=(16,))
PLAIN = {'normalize_observations': False, 'normalize_rewards': False}


def _agent(specs=example_data.CONTINUOUS, **changes):
    agent = ppo.make_agent(specs, create_train_step(), ppo.EXPERIENCE, network=SMALL, **changes)
    agent.initialize()
    return agent


def _flat(nest):
    return tf.nest.map_structure(lambda leaf: tf.reshape(leaf, [-1, *leaf.shape[2:]]), nest)


def _with_episodes(data, next_types, discounts=None):
    """Returns the sequences with other next step types, [T] for all of them."""
    size, types = data.reward.shape[0], np.array(next_types, np.int32)
    starts = np.concatenate([[ts.StepType.MID], types[:-1]])
    tile = lambda row: tf.constant(np.tile(row, (size, 1)))  # noqa: E731
    discounts = np.ones(len(types), np.float32) if discounts is None else np.float32(discounts)
    return data._replace(step_type=tile(starts), next_step_type=tile(types), discount=tile(discounts))


MID, LAST, FIRST = (int(kind) for kind in (ts.StepType.MID, ts.StepType.LAST, ts.StepType.FIRST))


@pytest.mark.parametrize(
    ('discounts', 'next_types'),
    [
        ([1, 1, 1, 1, 1], [MID, MID, MID, MID, MID]),
        ([1, 0, 1, 1, 1], [MID, LAST, FIRST, MID, MID]),  # a termination
        ([1, 1, 1, 1, 1], [MID, LAST, FIRST, MID, MID]),  # a time limit: the last observation's value is used
        ([1, 1, 1, 1, 1], [MID, FIRST, MID, MID, MID]),  # a failed environment
        ([1, 1, 1, 0, 1], [MID, MID, MID, LAST, FIRST]),
    ],
)
def test_advantages(discounts, next_types):
    """The definition, step by step: sums of errors until the episode ends."""
    rewards, values = np.array([1.0, -2.0, 3.0, 0.5, 0.7]), np.array([0.3, -0.4, 0.5, 0.7, -1.1, 0.2])
    expected, following = np.zeros(5), 0.0
    for t in reversed(range(5)):
        delta = rewards[t] + 0.9 * discounts[t] * values[t + 1] - values[t]
        following = delta + 0.9 * 0.8 * discounts[t] * following * (next_types[t] != LAST)
        expected[t] = following = 0.0 if next_types[t] == FIRST else following
    kinds = np.array([next_types])
    got = ppo.generalized_advantages(
        tf.constant(np.float32([rewards])),
        tf.constant(np.float32([discounts])) * 0.9,
        tf.constant(np.float32([values])),
        tf.constant(kinds == LAST),
        tf.constant(kinds != FIRST),
        0.8,
    )
    np.testing.assert_allclose(got[0], expected, rtol=1e-5, atol=1e-6)


def test_loss_equals_the_papers():
    options = PPOLoss(
        gamma=0.9, lambda_=0.8, clip_epsilon=0.1, value_coefficient=0.3, value_clipping=0.05, entropy_coefficient=0.02
    )
    agent = _agent(example_data.DISCRETE, loss=dataclasses.replace(options, kl_coefficient=0.7), **PLAIN)
    data = example_data.sequences(agent, 4, 9)
    samples, counts = agent.prepare(data)
    (_, before), _ = agent._network(data.observation)
    raw = ppo.generalized_advantages(
        data.reward[:, :-1], 0.9 * tf.ones((4, 8)), before, counts < 0, counts > 0, 0.8
    ).numpy()
    np.testing.assert_allclose(samples.target, raw + before[:, :-1], rtol=1e-5)
    advantages = (raw - raw.mean()) / raw.std()
    np.testing.assert_allclose(samples.advantage, advantages, rtol=1e-4, atol=1e-5)
    for variable in agent._network.trainable_variables:  # as an earlier epoch may have changed them
        variable.assign_add(0.05 * tf.random.stateless_normal(variable.shape, (1, 2)))
    (distribution, values), _ = agent._network(samples.observation)
    logits = tf.nn.log_softmax(distribution.logits).numpy()
    acted = tf.nn.log_softmax(samples.behaviour['dist_params']['logits']).numpy()
    pick = lambda table: np.take_along_axis(table, samples.action.numpy()[..., None], -1)[..., 0]  # noqa: E731
    ratios = np.exp(pick(logits) - pick(acted))
    policy_loss = -np.minimum(ratios * advantages, np.clip(ratios, 0.9, 1.1) * advantages).mean()
    held = before[:, :-1] + np.clip(values - before[:, :-1], -0.05, 0.05)
    value_loss = np.maximum(np.square(values - samples.target), np.square(held - samples.target)).mean()
    entropy = -(np.exp(logits) * logits).sum(-1).mean()
    divergence = (np.exp(acted) * (acted - logits)).sum(-1).mean()
    loss, metrics = agent.loss(_flat(samples), _flat(counts))
    expected = policy_loss + 0.3 * value_loss - 0.02 * entropy + 0.7 * divergence
    assert float(loss) == pytest.approx(expected, rel=1e-4)
    expected = {
        'policy_loss': policy_loss,
        'value_loss': value_loss,
        'entropy': entropy,
        'kl_to_behaviour': divergence,
        'clipped_share': (np.abs(ratios - 1) > 0.1).mean(),
        'explained_variance': 1 - np.var(samples.target - values) / np.var(samples.target),
        'kl_coefficient': 0.7,
        'valid_share': 1.0,
    }
    assert {name: float(value) for name, value in metrics.items()} == pytest.approx(expected, rel=1e-3)


def test_rows_between_two_episodes_count_nothing():
    """Their rewards, even if not finite, change neither loss nor gradients nor normalizers."""
    agent = _agent()
    types = [MID, MID, LAST, FIRST, MID, MID, MID]
    losses, gradients = [], []
    for poison in (0.0, np.nan):
        data = _with_episodes(example_data.sequences(agent, 3, 7), types, [1, 1, 0, 1, 1, 1, 1])
        between = np.arange(7) == 3
        data = data._replace(reward=tf.where(between, tf.constant(poison), data.reward))
        samples, counts = agent.prepare(data)
        np.testing.assert_array_equal(counts, np.tile(~between[:-1], (3, 1)))
        with tf.GradientTape() as tape:
            info = agent.loss(_flat(samples), _flat(counts))
        losses.append(float(info.loss))
        gradients.append(tf.linalg.global_norm(tape.gradient(info.loss, agent._network.trainable_variables)).numpy())
        assert float(info.extra['valid_share']) == pytest.approx(5 / 6)
        agent = _agent_like(agent)
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)
    assert gradients[1] == pytest.approx(gradients[0], rel=1e-5)


def _agent_like(agent):
    """An agent with the same weights, and normalizers without data."""
    other = _agent()
    for ours, theirs in zip(other._network.variables, agent._network.variables, strict=True):
        ours.assign(theirs)
    return other


def test_advantages_stop_at_the_end_of_an_episode():
    """Two episodes in one sequence have the advantages of separate sequences."""
    agent = _agent(**PLAIN)
    sequences = _with_episodes(example_data.sequences(agent, 2, 8), [MID, MID, LAST, FIRST, MID, MID, MID, MID])
    samples, _ = agent.prepare(sequences)
    for begin, end in ((0, 4), (4, 8)):
        part = tf.nest.map_structure(lambda leaf, b=begin, e=end: leaf[:, b:e], sequences)
        own, _ = agent.prepare(part)
        np.testing.assert_allclose(own.target, samples.target[:, begin : end - 1], rtol=1e-5)


def test_prepare_normalizes_as_the_policy_did_and_updates_once():
    agent = _agent()
    first, second = (example_data.sequences(agent, 4, 9, seed) for seed in (0, 1))
    first = _with_episodes(first, [MID, LAST, FIRST, MID, MID, MID, MID, MID, MID])
    samples, counts = agent.prepare(first)
    np.testing.assert_array_equal(samples.observation, first.observation[:, :-1])  # not normalized at first
    for _ in range(3):
        agent.train(_flat(samples), _flat(counts))
    taken = first.observation.numpy()[:, :-1][counts.numpy() > 0]
    count, mean, variance = agent._observation_normalizer.statistics
    assert count.numpy() == agent._reward_normalizer.count.numpy() == 28
    np.testing.assert_allclose(mean, taken.mean(axis=0), rtol=1e-4)
    np.testing.assert_allclose(variance, taken.var(axis=0), rtol=1e-4)
    samples, _ = agent.prepare(second)
    expected = (second.observation[:, :-1] - taken.mean(axis=0)) / taken.std(axis=0)
    np.testing.assert_allclose(samples.observation, expected, rtol=1e-3, atol=1e-4)
    assert count.numpy() == 28 + 32
    time_step = ts.restart(second.observation[:, 0], 4)
    ours = agent.collect_policy.distribution(time_step).action
    (theirs, _), _ = agent._network(agent._observation_normalizer(second.observation[:, 0]))
    np.testing.assert_allclose(ours.mean(), theirs.mean(), rtol=1e-5)


def test_trains_on_sequences_without_prepare():
    """`train` prepares them itself; `loss` does not update normalizers."""
    agent = _agent(normalize_rewards=False)
    scaled = _agent()
    data = example_data.sequences(agent, 4, 9)
    loss = agent.loss(data)
    assert agent._observation_normalizer.count.numpy() == 0
    before = [variable.numpy() for variable in agent._network.trainable_variables]
    np.testing.assert_allclose(agent.train(data).loss, loss.loss, rtol=1e-5)
    assert agent.train_step_counter.numpy() == 1
    assert agent._observation_normalizer.count.numpy() == 32
    scaled.train(data)
    assert scaled._observation_normalizer.count.numpy() == scaled._reward_normalizer.count.numpy() == 32
    changed = [(a != b.numpy()).any() for a, b in zip(before, agent._network.trainable_variables, strict=True)]
    assert all(changed)


def test_without_clipping_the_first_step_is_the_advantage_actor_critics():
    agent = _agent(example_data.DISCRETE, loss=PPOLoss(clip_epsilon=None, normalize_advantages=False), **PLAIN)
    data = example_data.sequences(agent, 4, 9)
    flat = _flat(data)
    step = agent.collect_policy.action(ts.TimeStep(flat.step_type, flat.reward, flat.discount, flat.observation))
    again = lambda leaf: tf.reshape(leaf, [4, 9, *leaf.shape[1:]])  # noqa: E731
    data = data._replace(action=again(step.action), policy_info=tf.nest.map_structure(again, step.info))
    samples, counts = agent.prepare(data)
    variables = agent._network.trainable_variables
    with tf.GradientTape(persistent=True) as tape:
        loss = agent.loss(_flat(samples), _flat(counts)).loss
        (distribution, values), _ = agent._network(samples.observation)
        log_probs = distribution.log_prob(samples.action)
        expected = tf.reduce_mean(-log_probs * samples.advantage + 0.5 * tf.square(values - samples.target))
    for ours, theirs in zip(tape.gradient(loss, variables), tape.gradient(expected, variables), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-6)


def test_the_clip_and_the_penalty_follow_their_schedules():
    loss = PPOLoss(clip_epsilon=schedules.linear(0.2, 0.0, 10), kl_coefficient=1.0, kl_target=1e-6)
    agent = _agent(optimizer=OptimizerOptions(1e-2), loss=loss)
    data = example_data.sequences(agent, 4, 9)
    assert float(schedules.at(loss.clip_epsilon, agent.train_step_counter)) == pytest.approx(0.2)
    samples, counts = agent.prepare(data)
    assert agent._kl_coefficient.numpy() == 1.0
    for _ in range(5):
        agent.train(_flat(samples), _flat(counts))
    assert float(schedules.at(loss.clip_epsilon, agent.train_step_counter)) == pytest.approx(0.1)
    agent.prepare(data)
    assert agent._kl_coefficient.numpy() == pytest.approx(2.0)
    next_coefficient = ppo.next_kl_coefficient(tf.constant(1.0), tf.constant([0.4, 0.6, 1.4, 1.6]), 1.0)
    np.testing.assert_allclose(next_coefficient, [0.5, 0.5, 1.0, 2.0])


def test_an_iteration_ends_at_a_divergence():
    """The step that finds it is the last that changes the network, until the next iteration."""
    agent = _agent(example_data.DISCRETE, optimizer=OptimizerOptions(1e-2), max_kl=1e-4, **PLAIN)
    data, weights = example_data.sequences(agent, 4, 9), agent._network.trainable_variables
    for _ in range(2):
        samples, counts = agent.prepare(data)
        (distribution, _), _ = agent._network(samples.observation)
        samples = samples._replace(behaviour=agent._network.parameters(distribution))  # as if it had acted
        changes, found = [], []
        for _ in range(5):
            before = [weight.numpy() for weight in weights]
            found.append(float(agent.train(_flat(samples), _flat(counts)).extra['kl_to_behaviour']))
            changes.append(any((weight.numpy() != old).any() for weight, old in zip(weights, before, strict=True)))
        assert found[0] <= 1e-4 < found[-1]
        last = next(i for i, divergence in enumerate(found) if divergence > 1e-4)
        assert changes == [True] * (last + 1) + [False] * (4 - last)
    assert int(agent.train_step_counter) == 10, 'steps that change nothing count, so schedules go on'


def test_the_value_alone_is_trained_at_first():
    loss = PPOLoss(value_warmup_steps=2, entropy_coefficient=0.1, kl_coefficient=0.1)
    agent = _agent(example_data.DISCRETE, loss=loss, **PLAIN)
    samples, counts = agent.prepare(example_data.sequences(agent, 4, 9))
    value = {variable.ref() for variable in agent._network.value_variables}
    parts = {
        True: [variable for variable in agent._network.trainable_variables if variable.ref() in value],
        False: [variable for variable in agent._network.trainable_variables if variable.ref() not in value],
    }
    assert parts[True] and parts[False]
    for trains_policy in (False, False, True):
        before = {which: [variable.numpy() for variable in part] for which, part in parts.items()}
        agent.train(_flat(samples), _flat(counts))
        changed = {
            which: any((a != b.numpy()).any() for a, b in zip(before[which], part, strict=True))
            for which, part in parts.items()
        }
        assert changed == {True: True, False: trains_policy}


@pytest.mark.parametrize(
    ('changes', 'message'),
    [
        ({'gamma': 1.1}, 'got PPOLoss.gamma=1.1; need a number of at least 0 and at most 1'),
        ({'clip_epsilon': 0.0}, 'got PPOLoss.clip_epsilon=0.0; need a number above 0, or a function, or None'),
        ({'entropy_coefficient': -0.1}, 'got PPOLoss.entropy_coefficient=-0.1; need'),
    ],
)
def test_rejects_invalid_loss_options(changes, message):
    with pytest.raises(ValueError, match=message):
        PPOLoss(**changes)


# PPO with memory computes for a sequence what the collector computed step by step, also across episodes.

LENGTH, SIZE = 12, 4
RECURRENT = NetworkOptions(fc_layer_params=(8,), lstm_size=(6,))
EXPERIENCE = experiences.changed(
    ppo.EXPERIENCE, sequence_length=LENGTH, stride=LENGTH - 1, cross_episodes=True, store_policy_state=True
)


@pytest.fixture(
    scope='module',
    params=[{}, {'shared': True}, {'memory': 'gru'}, {'memory': 'gtrxl', 'lstm_size': (8,), 'shared': True}],
    ids=['separate', 'shared', 'gru', 'gtrxl'],
)
def collected(request):
    """An agent, and the second sequence of rows of each environment that its policy collects."""
    environment = structured.make_environment('dict of vectors', SIZE)
    options = dataclasses.replace(RECURRENT, **request.param)
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
    assert float(agent.train(samples, counts).loss) == pytest.approx(float(prepared.loss), rel=1e-4)
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
    environment = structured.make_environment('dict of vectors', 1)
    environment.close()
    with pytest.raises(ValueError, match=message):
        ppo.make_agent(
            environment.specs,
            create_train_step(),
            experiences.changed(EXPERIENCE, **changes),
            network=RECURRENT,
        )
