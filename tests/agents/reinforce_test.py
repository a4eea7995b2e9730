import numpy as np
import pytest
import tensorflow as tf
from tf_agents.trajectories import time_step as ts

from tests.agents import example_data
from tflearn.agents import reinforce
from tflearn.experience import Experience
from tflearn.optimization import schedules
from tflearn.train_step import create_train_step

# TF-Agents' CategoricalProjectionNetwork makes an array of one element a number.
pytestmark = pytest.mark.filterwarnings('ignore:Conversion of an array with ndim > 0:DeprecationWarning')


def _agent(**changes):
    agent = reinforce.make_agent(
        example_data.DISCRETE,
        create_train_step(),
        reinforce.EXPERIENCE,
        actor_fc_layer_params=(16,),
        **{'value_fc_layer_params': (16,)} | changes,
    )
    agent.initialize()
    return agent


def _episodes(agent, size, length, padding=0):
    """One episode in each sequence: `length` steps, the row after it, and copies of that."""
    data = example_data.sequences(agent, size, length + 1)
    index = np.arange(length + 1 + padding)
    data = tf.nest.map_structure(
        lambda leaf: tf.concat([leaf, tf.repeat(leaf[:, -1:], padding, axis=1)], axis=1) if padding else leaf, data
    )
    next_types = np.select([index < length - 1, index == length - 1], [ts.StepType.MID, ts.StepType.LAST], 0)
    types = np.select([index == 0, index < length], [ts.StepType.FIRST, ts.StepType.MID], ts.StepType.LAST)
    tile = lambda row: tf.constant(np.tile(np.int32(row), (size, 1)))  # noqa: E731
    return data._replace(step_type=tile(types), next_step_type=tile(next_types))


def test_loss_equals_the_papers():
    agent = _agent(value_fc_layer_params=None, normalize_returns=False, gamma=0.9)
    data = _episodes(agent, 3, 5)
    rewards = data.reward.numpy()[:, :5]
    returns = np.array([[sum(0.9 ** (k - t) * row[k] for k in range(t, 5)) for t in range(5)] for row in rewards])
    step = ts.TimeStep(data.step_type, data.reward, data.discount, data.observation)
    log_probs = agent.collect_policy.distribution(step).action.log_prob(data.action).numpy()[:, :5]
    assert float(agent.loss(data).loss) == pytest.approx(-(log_probs * returns).sum() / 3, rel=1e-4)


def test_entropy_coefficient_follows_a_schedule():
    agent = _agent(entropy_coefficient=schedules.linear(1.0, 0.0, 10))
    data = _episodes(agent, 3, 5)
    loss, metrics = agent.loss(data)
    without = float(metrics['policy_loss']) + 0.5 * float(metrics['value_loss'])
    assert float(loss) == pytest.approx(without - float(metrics['entropy']), rel=1e-4)
    agent.train_step_counter.assign(10)
    assert float(agent.loss(data).loss) == pytest.approx(without, rel=1e-4)


@pytest.mark.parametrize('normalize_returns', [False, True])
def test_padding_and_incomplete_episodes_change_nothing(normalize_returns):
    agent = _agent(normalize_returns=normalize_returns, entropy_coefficient=0.1)
    plain, padded = (_episodes(agent, 3, 5, padding) for padding in (0, 4))
    unfinished = padded._replace(
        step_type=tf.ones_like(padded.step_type), next_step_type=tf.ones_like(padded.step_type)
    )
    # The last item of an episode that is longer than a sequence has its end, but not its start.
    tail = padded._replace(step_type=tf.where(padded.is_first(), int(ts.StepType.MID), padded.step_type))
    more = tf.nest.map_structure(lambda *leaves: tf.concat(leaves, axis=0), padded, unfinished, tail)
    infos = [agent.loss(data) for data in (plain, padded, more)]
    assert [float(info.extra['num_episodes']) for info in infos] == [3, 3, 3]
    losses = [float(info.loss) for info in infos]
    assert losses[1:] == pytest.approx([losses[0]] * 2, rel=1e-3)
    for nothing in (unfinished, tail):
        assert float(agent.loss(nothing).loss) == 0
        agent.train(nothing)  # no complete episode: nothing to learn from


def test_it_learns():
    """Episodes of three steps, whose reward is the action."""
    tf.keras.utils.set_random_seed(1)
    agent = _agent(learning_rate=2e-2)
    train, act = tf.function(agent.train, autograph=False), tf.function(agent.collect_policy.action, autograph=False)
    data = _episodes(agent, 32, 3)
    for _ in range(60):
        flat = tf.nest.map_structure(lambda leaf: tf.reshape(leaf, [-1, *leaf.shape[2:]]), data)
        action = act(ts.TimeStep(flat.step_type, flat.reward, flat.discount, flat.observation)).action
        action = tf.reshape(action, (32, 4))
        train(data._replace(action=action, reward=tf.cast(action, tf.float32)))
    assert float(tf.reduce_mean(tf.cast(action, tf.float32))) > 0.85
    assert agent.train_step_counter.numpy() == 60


def test_rejects_what_it_cannot_learn_from():
    with pytest.raises(ValueError, match='REINFORCE learns once from complete episodes'):
        reinforce.make_agent(example_data.DISCRETE, create_train_step(), Experience())
    strategy = tf.distribute.MirroredStrategy(['CPU:0', 'CPU:1'])
    with strategy.scope(), pytest.raises(ValueError, match='got 2 replicas; need one for REINFORCE'):
        reinforce.make_agent(example_data.DISCRETE, create_train_step(), reinforce.EXPERIENCE)
