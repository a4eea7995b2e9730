"""The features that APPO has in addition to IMPALA's; impala_test.py tests both."""

import numpy as np
import pytest
import tensorflow as tf

from tests.agents import example_data
from tflearn.agents import appo
from tflearn.core.train_step import create_train_step
from tflearn.networks.networks import NetworkOptions
from tflearn.optimization.impala_loss import ImpalaLoss
from tflearn.optimization.optimizers import OptimizerOptions

# TF-Agents' CategoricalProjectionNetwork makes an array of one element a number.
pytestmark = pytest.mark.filterwarnings('ignore:Conversion of an array with ndim > 0:DeprecationWarning')


def _agent(learning_rate=1e-2, **surrogate):
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
    agent = _agent(target_update_interval=3)
    data = example_data.sequences(agent, 4, 9)
    distances = []
    for _ in range(6):
        agent.train(data)
        distances.append(_distance(agent) == 0)
    assert distances == [False, False, True, False, False, True]


def test_target_is_updated_in_part():
    agent = _agent(target_update_tau=0.25)
    before = [target.numpy() for target, _ in _pairs(agent)]
    agent.train(example_data.sequences(agent, 4, 9))
    for old, (target, trained) in zip(before, _pairs(agent), strict=True):
        np.testing.assert_allclose(target, 0.75 * old + 0.25 * trained, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(('divergence', 'factor'), [(0.1, 1.5), (0.012, 1.0), (0.001, 0.5)])
def test_kl_coefficient_adapts(divergence, factor):
    agent = _agent(kl_coefficient=0.2, kl_target=0.01)
    agent._adapt(tf.constant(divergence))
    assert float(agent._kl_coefficient) == pytest.approx(0.2 * factor)
    fixed = _agent(kl_coefficient=0.2, kl_target=None)
    fixed._adapt(tf.constant(divergence))
    assert float(fixed._kl_coefficient) == pytest.approx(0.2)


def test_loss_equals_the_papers():
    agent = _agent(clip_epsilon=0.1, ratio_bar=1.2, kl_coefficient=0.3, target_update_interval=100)
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
def test_rejects_invalid_options(changes):
    name, value = next(iter(changes.items()))
    with pytest.raises(ValueError, match=f'{name}={value!r}'):
        appo.SurrogateOptions(**changes)
