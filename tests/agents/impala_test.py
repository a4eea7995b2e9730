import dataclasses
import functools

import numpy as np
import pytest
import tensorflow as tf
from tf_agents.specs import tensor_spec
from tf_agents.trajectories import time_step as ts

from tests.agents import example_data
from tests.testing import experiences
from tflearn.agents import appo, impala
from tflearn.core.experience import Experience, Prioritized
from tflearn.core.train_step import create_train_step
from tflearn.core.types import EnvironmentSpecs, zeros
from tflearn.networks.networks import NetworkOptions
from tflearn.optimization import schedules, vtrace
from tflearn.optimization.impala_loss import ImpalaLoss
from tflearn.optimization.optimizers import OptimizerOptions

# TF-Agents' CategoricalProjectionNetwork makes an array of one element a number.
pytestmark = pytest.mark.filterwarnings('ignore:Conversion of an array with ndim > 0:DeprecationWarning')
SMALL = NetworkOptions(fc_layer_params=(16,))
RECURRENT = NetworkOptions(fc_layer_params=(8,), lstm_size=(6,))
SEVERAL = EnvironmentSpecs(
    example_data.CONTINUOUS.observation, tensor_spec.BoundedTensorSpec((3,), tf.int64, 0, 1, 'action')
)
MAKE = {'impala': impala.make_agent, 'appo': appo.make_agent}


@pytest.fixture(params=MAKE)
def make(request):
    return functools.partial(_agent, MAKE[request.param])


def _agent(factory, specs=example_data.DISCRETE, experience=impala.EXPERIENCE, network=SMALL, **changes):
    agent = factory(specs, create_train_step(), experience, network=network, **changes)
    agent.initialize()
    return agent


def _impala(**changes):
    return _agent(impala.make_agent, **changes)


def _collected(agent, size=4, length=9, seed=0):
    """Sequences whose actions were drawn by the agent itself."""
    data = example_data.sequences(agent, size, length, seed)
    flat = tf.nest.map_structure(lambda leaf: tf.reshape(leaf, [-1, *leaf.shape[2:]]), data)
    tf.random.set_seed(seed)
    step = agent.collect_policy.action(ts.TimeStep(flat.step_type, flat.reward, flat.discount, flat.observation))
    again = lambda leaf: tf.reshape(leaf, [size, length, *leaf.shape[1:]])  # noqa: E731
    return data._replace(action=again(step.action), policy_info=tf.nest.map_structure(again, step.info))


def test_loss_equals_the_papers():
    options = ImpalaLoss(gamma=0.9, rho_bar=1.1, policy_coefficient=0.7, value_coefficient=0.3, lambda_=0.95)
    agent = _impala(loss=options)
    data = example_data.sequences(agent, 4, 9)
    data = data._replace(action=tf.cast(data.observation[..., 0] > 0, tf.int64))
    (distribution, values), _ = agent._network(data.observation)
    log_probs = np.log(
        np.take_along_axis(tf.nn.softmax(distribution.logits).numpy(), data.action.numpy()[..., None], -1)
    )[..., 0]
    behaviour = tf.nn.log_softmax(data.policy_info['dist_params']['logits']).numpy()
    log_ratios = (log_probs - np.take_along_axis(behaviour, data.action.numpy()[..., None], -1)[..., 0])[:, :-1]
    targets, advantages = vtrace.targets(
        tf.constant(log_ratios), data.reward[:, :-1], 0.9 * data.discount[:, :-1], values, rho_bar=1.1, lambda_=0.95
    )
    policy_loss = -np.mean(advantages * log_probs[:, :-1])
    value_loss = 0.5 * np.mean(np.square(targets - values[:, :-1]))
    entropy = np.mean(distribution.entropy()[:, :-1])
    loss, metrics = agent.loss(data)
    assert float(loss) == pytest.approx(0.7 * policy_loss + 0.3 * value_loss - 0.01 * entropy, rel=1e-4)
    expected = {
        'policy_loss': policy_loss,
        'value_loss': value_loss,
        'entropy': entropy,
        'mean_rho': np.minimum(np.exp(log_ratios), 1.1).mean(),
        'clipped_share': (np.exp(log_ratios) > 1.1).mean(),
        'mean_abs_log_rho': np.abs(log_ratios).mean(),
        'explained_variance': 1 - np.var(targets - values[:, :-1]) / np.var(targets),
        'valid_share': 1.0,
    }
    assert {name: float(metrics[name]) for name in expected} == pytest.approx(expected, rel=1e-3)
    assert float(metrics['kl_to_behaviour']) > 0
    summed = _impala(loss=dataclasses.replace(options, reduction='sum'))
    for ours, theirs in zip(summed._network.variables, agent._network.variables, strict=True):
        ours.assign(theirs)
    assert float(summed.loss(data).loss) == pytest.approx(32 * float(loss), rel=1e-4)


def test_uncorrected_loss_is_that_of_lambda_returns():
    """In float64: the policy that acted, and the bounds of the ratios, have no effect."""
    options = ImpalaLoss(gamma=0.9, lambda_=0.8, rho_bar=0.5, c_bar=0.5, pg_rho_bar=0.5)
    agent = _impala(loss=options, off_policy_correction=False)
    data = example_data.sequences(agent, 4, 9)
    (distribution, values), _ = agent._network(data.observation)
    logits, values = np.float64(distribution.logits), np.float64(values)
    log_probs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    entropy = -(np.exp(log_probs) * log_probs).sum(-1)[:, :-1]
    taken = np.take_along_axis(log_probs, data.action.numpy()[..., None], -1)[:, :-1, 0]
    rewards, discounts = np.float64(data.reward)[:, :-1], 0.9 * np.float64(data.discount)[:, :-1]
    returns = np.concatenate([np.zeros((4, 8)), values[:, -1:]], axis=1)  # lambda-returns, the last is the bootstrap
    for t in reversed(range(8)):
        following = 0.2 * values[:, t + 1] + 0.8 * returns[:, t + 1]
        returns[:, t] = rewards[:, t] + discounts[:, t] * following
    errors = returns[:, :-1] - values[:, :-1]
    # The advantage of step t follows the policy's return with lambda-returns after it, as V-trace's does.
    advantages = rewards + discounts * returns[:, 1:] - values[:, :-1]
    expected = np.mean(-advantages * taken + 0.25 * np.square(errors) - 0.01 * entropy)
    info = agent.loss(data)
    assert float(info.loss) == pytest.approx(expected, rel=1e-4)
    assert float(info.extra['mean_abs_log_rho']) > 0, 'it still shows how old the policy is'


@pytest.mark.parametrize(
    'specs', [example_data.DISCRETE, example_data.CONTINUOUS, SEVERAL], ids=['one', 'floats', 'many']
)
def test_on_its_own_data_all_ratios_are_one(make, specs):
    agent = make(specs)
    loss, metrics = agent.loss(_collected(agent))
    assert np.isfinite(loss)
    assert float(metrics['mean_rho']) == pytest.approx(1.0, abs=1e-4)
    assert float(metrics['mean_abs_log_rho']) == pytest.approx(0.0, abs=1e-4)
    assert float(metrics['kl_to_behaviour']) == pytest.approx(0.0, abs=1e-4)


@pytest.mark.parametrize('zeros_after', [False, True])
def test_padding_changes_nothing(make, zeros_after):
    """A sequence that ends early, padded with its last row or with zeros, trains as one without padding."""
    agent = make(specs=example_data.CONTINUOUS)
    kept = example_data.sequences(agent, 1, 6)
    losses, gradients = [], []
    for padding in (0, 4):
        index = np.arange(6 + padding)
        fill = lambda value: tf.concat([value, (1 - zeros_after) * tf.repeat(value[:, -1:], padding, axis=1)], axis=1)  # noqa: E731, B023
        types = np.select([index < 4, index == 4], [ts.StepType.MID, ts.StepType.LAST], ts.StepType.FIRST)
        step_types = np.where(index < 5, ts.StepType.MID, ts.StepType.LAST)
        if zeros_after:
            step_types[6:] = ts.StepType.FIRST
        data = tf.nest.map_structure(fill, kept)._replace(
            step_type=tf.constant(step_types[np.newaxis], tf.int32),
            next_step_type=tf.constant(types[np.newaxis], tf.int32),
        )
        with tf.GradientTape() as tape:
            info = agent.loss(data)
        losses.append(float(info.loss))
        gradients.append(tf.linalg.global_norm(tape.gradient(info.loss, agent._network.trainable_variables)).numpy())
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)
    assert gradients[1] == pytest.approx(gradients[0], rel=1e-4)
    assert float(info.extra['valid_share']) == pytest.approx(5 / 9)


def test_loss_changes_nothing_and_equals_the_train_loss(make):
    agent = make()
    data = example_data.sequences(agent, 4, 9)
    loss = agent.loss(data)
    before = [variable.numpy() for variable in agent.collect_policy.variables()]
    np.testing.assert_allclose(agent.train(data).loss, loss.loss, rtol=1e-5)
    assert agent.train_step_counter.numpy() == 1
    assert any((a != b.numpy()).any() for a, b in zip(before, agent.collect_policy.variables(), strict=True))


def test_it_compiles_with_xla(make):
    agent, other = make(), make()
    for ours, theirs in zip(other._network.variables, agent._network.variables, strict=True):
        ours.assign(theirs)
    other.initialize()
    data = example_data.sequences(agent, 4, 9)
    compiled = tf.function(agent.train, autograph=False, jit_compile=True)
    for _ in range(3):
        assert float(compiled(data).loss) == pytest.approx(float(other.train(data).loss), rel=1e-3)


def test_the_value_may_have_its_own_optimizer():
    agent = _impala(optimizer=OptimizerOptions({'value': 0.0, 'policy': 1e-2}))
    own = {variable.ref() for variable in agent._network.value_variables}
    before = [variable.numpy() for variable in agent._network.trainable_variables]
    agent.train(example_data.sequences(agent, 4, 9))
    for variable, old in zip(agent._network.trainable_variables, before, strict=True):
        assert (variable.numpy() == old).all() == (variable.ref() in own)


def test_shared_layers_are_trained_by_both():
    agent = _impala(network=dataclasses.replace(SMALL, shared=True))
    assert len(agent._network.trainable_variables) == 6  # a layer and two heads
    agent.train(example_data.sequences(agent, 4, 9))


def test_rates_and_coefficients_follow_schedules():
    agent = _impala(
        optimizer=OptimizerOptions(
            schedules.linear(1e-2, 0.0, 10), kind='rmsprop', arguments={'rho': 0.99, 'epsilon': 0.1}
        ),
        loss=ImpalaLoss(entropy_coefficient=schedules.linear(1.0, 0.0, 10)),
    )
    data = example_data.sequences(agent, 4, 9)
    assert isinstance(agent._optimizers['policy'].keras, tf.keras.optimizers.RMSprop)
    loss, metrics = agent.loss(data)
    without = float(metrics['policy_loss']) + 0.5 * float(metrics['value_loss'])
    assert float(loss) == pytest.approx(without - float(metrics['entropy']), rel=1e-4)
    agent.train_step_counter.assign(10)
    assert float(agent.loss(data).loss) == pytest.approx(without, rel=1e-4)


def test_rewards_are_clipped():
    rewards = tf.constant([-10.0, -0.5, 0.0, 0.5, 10.0])
    np.testing.assert_allclose(ImpalaLoss(reward_clipping=1.0).clip(rewards), [-1, -0.5, 0, 0.5, 1])
    soft = ImpalaLoss(reward_clipping='soft_asymmetric').clip(rewards)
    np.testing.assert_allclose(
        soft, [-1.5 * np.tanh(2), -1.5 * np.tanh(0.1), 0, 5 * np.tanh(0.1), 5 * np.tanh(2)], 1e-6
    )


@pytest.mark.parametrize('shared', [False, True])
def test_memory_continues_from_the_stored_state(shared):
    """The second half of an episode, from the state stored before it, equals that of the full episode."""
    experience = experiences.changed(impala.EXPERIENCE, store_policy_state=True)
    agent = _impala(network=dataclasses.replace(RECURRENT, shared=shared), experience=experience)
    data = example_data.sequences(agent, 2, 12)
    states, state = [], agent.collect_policy.get_initial_state(2)
    for t in range(12):
        states.append(state)
        row = tf.nest.map_structure(lambda leaf: leaf[:, t], data)  # noqa: B023
        step = agent.collect_policy.action(ts.TimeStep(row.step_type, row.reward, row.discount, row.observation), state)
        state = step.state
    stored = tf.nest.map_structure(lambda *leaves: tf.stack(leaves, axis=1), *states)
    data = data._replace(policy_info={**data.policy_info, 'policy_state': stored})
    full, half = (
        agent._unroll(data, False),
        agent._unroll(tf.nest.map_structure(lambda leaf: leaf[:, 6:], data), False),
    )
    np.testing.assert_allclose(half.log_probs, full.log_probs[:, 6:], rtol=1e-4)
    np.testing.assert_allclose(half.values, full.values[:, 6:], rtol=1e-4, atol=1e-6)
    assert np.isfinite(agent.train(data).loss)


def _bandit(agent, specs, size=64):
    """Episodes of one step, whose reward is the action's first number."""
    train, act = tf.function(agent.train, autograph=False), tf.function(agent.collect_policy.action, autograph=False)
    for _ in range(100):
        step = act(zeros(specs.time_step, (size,)))
        reward = tf.cast(tf.reshape(step.action, (size, -1))[:, 0], tf.float32)
        pair = lambda value: tf.stack([value, value], axis=1)  # noqa: E731
        data = example_data.sequences(agent, size, 2)
        data = data._replace(
            action=pair(step.action),
            policy_info=tf.nest.map_structure(pair, step.info),
            reward=pair(reward),
            discount=tf.zeros((size, 2)),
            next_step_type=tf.fill((size, 2), tf.constant(ts.StepType.LAST)),
            observation=tf.zeros_like(data.observation),
        )
        train(data)
    return float(tf.reduce_mean(reward))


BANDITS = pytest.mark.parametrize(
    ('specs', 'least'),
    [(example_data.DISCRETE, 0.85), (example_data.CONTINUOUS, 0.25), (SEVERAL, 0.85)],
    ids=['one', 'floats', 'many'],
)


@BANDITS
@pytest.mark.parametrize('corrects', [True, pytest.param(False, marks=pytest.mark.slow)])
def test_impala_learns(specs, least, corrects):
    assert (
        _bandit(_impala(specs=specs, optimizer=OptimizerOptions(1e-2), off_policy_correction=corrects), specs) > least
    )


@pytest.mark.slow
@BANDITS
def test_appo_learns(specs, least):
    assert _bandit(_agent(appo.make_agent, specs, optimizer=OptimizerOptions(1e-2)), specs) > least


@pytest.mark.parametrize(
    ('changes', 'message'),
    [
        ({'experience': Experience(replay=Prioritized())}, 'need Queue or Uniform'),
        (
            {'optimizer': OptimizerOptions({'value': 1e-3}), 'network': dataclasses.replace(SMALL, shared=True)},
            'need shared=False',
        ),
        ({'network': dataclasses.replace(SMALL, conv_layer_params=((8, 3, 2),))}, 'need images'),
    ],
)
def test_rejects_what_it_cannot_learn(make, changes, message):
    with pytest.raises(ValueError, match=message):
        make(**changes)


@pytest.mark.parametrize(
    'changes',
    [{'gamma': 1.1}, {'rho_bar': 0.0}, {'value_coefficient': -1.0}, {'reward_clipping': 'soft'}, {'reduction': 'max'}],
    ids=str,
)
def test_rejects_invalid_options(changes):
    name, value = next(iter(changes.items()))
    with pytest.raises(ValueError, match=f'got ImpalaLoss.{name}={value!r}; need'):
        ImpalaLoss(**changes)


def test_learns_from_images():
    specs = EnvironmentSpecs(tensor_spec.BoundedTensorSpec((24, 24, 2), tf.uint8, 0, 255), example_data.DISCRETE.action)
    network = NetworkOptions(conv_layer_params=((8, 8, 4), (8, 4, 2)), fc_layer_params=(16,), shared=True)
    agent = _impala(specs=specs, network=network)
    assert np.isfinite(agent.train(_collected(agent, 2, 3)).loss)
