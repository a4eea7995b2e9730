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
from tflearn.agents.impala import ImpalaLoss
from tflearn.core.train_step import create_train_step
from tflearn.core.types import EnvironmentSpecs
from tflearn.networks.networks import NetworkOptions
from tflearn.optimization import schedules, vtrace
from tflearn.optimization.optimizers import OptimizerOptions

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


@pytest.mark.parametrize('name', ['appo', pytest.param('impala', marks=pytest.mark.slow)])  # APPO's has IMPALA's
def test_it_compiles_with_xla(name):
    agent, other = (_agent(MAKE[name]) for _ in range(2))
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


# The features that APPO has in addition to IMPALA's; impala_test.py tests both.


def _appo(learning_rate=1e-2, **surrogate):
    agent = appo.make_agent(
        example_data.DISCRETE,
        create_train_step(),
        appo.EXPERIENCE,
        optimizer=OptimizerOptions(learning_rate),
        network=NetworkOptions(fc_layer_params=(16,)),
        loss=ImpalaLoss(value_coefficient=0.0, entropy_coefficient=0.0),
        surrogate=appo.SurrogateOptions(**surrogate),
    )
    agent.initialize()
    return agent


def _pairs(agent):
    return list(zip(agent._target.variables, agent._network.variables, strict=True))


def _distance(agent):
    return max(np.abs(a - b).max() for a, b in _pairs(agent))


def test_target_is_updated_at_its_interval():
    agent = _appo(target_update_interval=3)
    data = example_data.sequences(agent, 4, 9)
    distances = []
    for _ in range(6):
        agent.train(data)
        distances.append(_distance(agent) == 0)
    assert distances == [False, False, True, False, False, True]


def test_target_is_updated_in_part():
    agent = _appo(target_update_tau=0.25)
    before = [target.numpy() for target, _ in _pairs(agent)]
    agent.train(example_data.sequences(agent, 4, 9))
    for old, (target, trained) in zip(before, _pairs(agent), strict=True):
        np.testing.assert_allclose(target, 0.75 * old + 0.25 * trained, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(('divergence', 'factor'), [(0.1, 1.5), (0.012, 1.0), (0.001, 0.5)])
def test_kl_coefficient_adapts(divergence, factor):
    agent = _appo(kl_coefficient=0.2, kl_target=0.01, target_update_tau=0.5)
    agent._adapt(tf.constant(divergence))
    assert float(agent._kl_coefficient) == pytest.approx(0.2 * factor)
    fixed = _appo(kl_coefficient=0.2, kl_target=None, target_update_tau=0.5)
    fixed._adapt(tf.constant(divergence))
    assert float(fixed._kl_coefficient) == pytest.approx(0.2)


def test_loss_equals_the_papers_of_appo():
    agent = _appo(clip_epsilon=0.1, ratio_bar=1.2, kl_coefficient=0.3, target_update_interval=100)
    data = example_data.sequences(agent, 4, 9)
    data = data._replace(action=tf.cast(data.observation[..., 0] > 0, tf.int64))
    for _ in range(5):  # away from the target
        agent.train(data)
    logits = [net(data.observation)[0][0].logits for net in (agent._network, agent._target)]
    logits.append(data.policy_info['dist_params']['logits'])
    every = [tf.nn.log_softmax(part).numpy()[:, :-1] for part in logits]
    action = data.action.numpy()[:, :-1, None]
    trained, target, behaviour = (np.take_along_axis(part, action, -1)[..., 0] for part in every)
    ratio = np.minimum(np.exp(behaviour - target), 1.2) * np.exp(trained - behaviour)
    seen = []
    unroll = agent._unroll(data, False)
    log_ratios, loss, _ = agent._objective(unroll, False)
    advantages = np.random.default_rng(0).normal(size=ratio.shape).astype(np.float32)
    seen = loss(advantages)
    divergence = (np.exp(every[1]) * (every[1] - every[0])).sum(-1)
    expected = 0.3 * divergence - np.minimum(ratio * advantages, np.clip(ratio, 0.9, 1.1) * advantages)
    np.testing.assert_allclose(log_ratios, target - behaviour, rtol=1e-4, atol=1e-5)
    assert float(agent._kl_coefficient) == pytest.approx(0.3)
    np.testing.assert_allclose(seen, expected, rtol=1e-3, atol=1e-5)
    metrics = agent.loss(data).extra
    assert float(metrics['kl_to_target']) == pytest.approx(divergence.mean(), rel=1e-3)
    assert float(metrics['surrogate_clipped_share']) == pytest.approx((np.abs(ratio - 1) > 0.1).mean())
    assert 0 < float(metrics['surrogate_clipped_share']) < 1


@pytest.mark.parametrize(
    'changes', [{'clip_epsilon': 0.0}, {'ratio_bar': 0.5}, {'target_update_interval': 0}, {'kl_target': 0.0}], ids=str
)
def test_rejects_invalid_options_of_appo(changes):
    name, value = next(iter(changes.items()))
    with pytest.raises(ValueError, match=f'{name}={value!r}'):
        appo.SurrogateOptions(**changes)
