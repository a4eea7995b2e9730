import numpy as np
import pytest
import tensorflow as tf
from tf_agents.trajectories import time_step as ts

from tests.agents import example_data
from tflearn.agents import reinforce
from tflearn.core.train_step import create_train_step
from tflearn.networks.networks import NetworkOptions
from tflearn.optimization import schedules
from tflearn.optimization.optimizers import OptimizerOptions


def _agent(**changes):
    agent = reinforce.make_agent(
        example_data.DISCRETE,
        create_train_step(),
        reinforce.EXPERIENCE,
        **{'network': NetworkOptions((16,))} | changes,
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
    agent = _agent(
        loss=reinforce.ReinforceLoss(normalize_returns=False, gamma=0.9, baseline=False),
    )
    data = _episodes(agent, 3, 5)
    rewards = data.reward.numpy()[:, :5]
    returns = np.array([[sum(0.9 ** (k - t) * row[k] for k in range(t, 5)) for t in range(5)] for row in rewards])
    step = ts.TimeStep(data.step_type, data.reward, data.discount, data.observation)
    log_probs = agent.collect_policy.distribution(step).action.log_prob(data.action).numpy()[:, :5]
    assert float(agent.loss(data).loss) == pytest.approx(-(log_probs * returns).sum() / 3, rel=1e-4)


def test_reports_the_share_of_the_steps_of_episodes_longer_than_an_item():
    agent = _agent()
    data = _episodes(agent, 4, 5, padding=2)
    assert float(agent.loss(data).extra['ignored_share']) == 0.0
    continued = tf.tensor_scatter_nd_update(data.step_type, [[1, 0]], [int(ts.StepType.MID)])
    assert float(agent.loss(data._replace(step_type=continued)).extra['ignored_share']) == 0.25


def test_entropy_coefficient_follows_a_schedule():
    agent = _agent(loss=reinforce.ReinforceLoss(entropy_coefficient=schedules.linear(1.0, 0.0, 10)))
    data = _episodes(agent, 3, 5)
    loss, metrics = agent.loss(data)
    without = float(metrics['policy_loss']) + 0.5 * float(metrics['value_loss'])
    assert float(loss) == pytest.approx(without - float(metrics['entropy']), rel=1e-4)
    agent.train_step_counter.assign(10)
    assert float(agent.loss(data).loss) == pytest.approx(without, rel=1e-4)


@pytest.mark.parametrize('normalize_returns', [False, True])
def test_padding_and_incomplete_episodes_change_nothing(normalize_returns):
    agent = _agent(loss=reinforce.ReinforceLoss(normalize_returns=normalize_returns, entropy_coefficient=0.1))
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
    agent = _agent(optimizer=OptimizerOptions(2e-2))
    train, act = tf.function(agent.train, autograph=False), tf.function(agent.collect_policy.action, autograph=False)
    data = _episodes(agent, 32, 3)
    for _ in range(60):
        flat = tf.nest.map_structure(lambda leaf: tf.reshape(leaf, [-1, *leaf.shape[2:]]), data)
        action = act(ts.TimeStep(flat.step_type, flat.reward, flat.discount, flat.observation)).action
        action = tf.reshape(action, (32, 4))
        train(data._replace(action=action, reward=tf.cast(action, tf.float32)))
    assert float(tf.reduce_mean(tf.cast(action, tf.float32))) > 0.85
    assert agent.train_step_counter.numpy() == 60


def test_baseline_and_normalization_equal_the_definition():
    """Against float64 numpy: normalized observations and rewards, returns less the baseline over complete episodes."""
    agent = _agent(
        loss=reinforce.ReinforceLoss(gamma=0.9, entropy_coefficient=0.1),
        normalize_observations=True,
        normalize_rewards=True,
    )
    first, second = _episodes(agent, 3, 5, padding=2), _episodes(agent, 4, 5, padding=2)
    agent.train(first)
    rows = np.float64(first.observation)[:, :5].reshape(-1, 3)
    mean, deviation = rows.mean(0), rows.std(0)
    observation = np.clip((np.float64(second.observation) - mean) / deviation, -5, 5)
    rewards = np.float64(second.reward) / np.sqrt((np.float64(first.reward)[:, :5] ** 2).mean())
    returns = np.array([[sum(0.9 ** (k - t) * row[k] for k in range(t, 5)) for t in range(5)] for row in rewards])
    (distribution, values), _ = agent._network(tf.constant(np.float32(observation)))
    logits, values = np.float64(distribution.logits)[:, :5], np.float64(values)[:, :5]
    log_probs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    taken = np.take_along_axis(log_probs, second.action.numpy()[:, :5, np.newaxis], -1)[..., 0]
    advantages = returns - values
    advantages = (advantages - advantages.mean()) / advantages.std()
    entropy = -(np.exp(log_probs) * log_probs).sum()
    expected = (-(taken * advantages).sum() + 0.5 * ((returns - values) ** 2).sum() - 0.1 * entropy) / 4
    info = agent.loss(second)
    assert float(info.loss) == pytest.approx(expected, rel=1e-4)
    assert float(info.extra['entropy']) == pytest.approx(entropy / 4, rel=1e-4)


def test_replicas_divide_by_the_episodes_of_all():
    """Of two replicas one has three complete episodes and the other one; returns are normalized over all four."""
    alone = _agent()
    data = _episodes(alone, 6, 5)
    middle = np.repeat([[False], [True]], [4, 2], axis=0)
    data = data._replace(step_type=tf.where(middle, int(ts.StepType.MID), data.step_type))
    strategy = tf.distribute.MirroredStrategy(['CPU:0', 'CPU:1'])
    with strategy.scope():
        together = _agent()
    for variable, value in zip(together._network.variables, alone._network.variables, strict=True):
        variable.assign(value)

    def part(leaf):
        return strategy.experimental_distribute_values_from_function(
            lambda context: leaf[3 * context.replica_id_in_sync_group :][:3]
        )

    loss = tf.function(lambda own: strategy.run(together.loss, (own,)), autograph=False)
    info, expected = loss(tf.nest.map_structure(part, data)), alone.loss(data)
    shares = [float(share) for share in strategy.experimental_local_results(info.loss)]
    assert sum(shares) == pytest.approx(float(expected.loss), rel=1e-4)
    for name, value in expected.extra.items():
        own = [float(each) for each in strategy.experimental_local_results(info.extra[name])]
        assert own == pytest.approx([float(value)] * 2, rel=1e-4, abs=1e-6)
    assert float(expected.extra['num_episodes']) == 4


def test_memory_is_that_of_the_policy_that_acted():
    """The probabilities in training are those of the policy, step by step from the start of the episode."""
    agent = _agent(
        network=NetworkOptions((16,), lstm_size=(4,)),
        loss=reinforce.ReinforceLoss(normalize_returns=False, gamma=0.0, baseline=False),
    )
    data = _episodes(agent, 3, 5, padding=2)
    state, expected = agent.collect_policy.get_initial_state(3), 0.0
    assert tf.nest.flatten(state)
    for t in range(5):
        row = tf.nest.map_structure(lambda leaf, t=t: leaf[:, t], data)
        step = ts.TimeStep(row.step_type, row.reward, row.discount, row.observation)
        drawn = agent.collect_policy.distribution(step, state)
        expected -= (np.float64(drawn.action.log_prob(row.action)) * np.float64(row.reward)).sum() / 3
        state = drawn.state
    assert float(agent.loss(data).loss) == pytest.approx(expected, rel=1e-4)
    before = [variable.numpy() for variable in agent._network.trainable_variables]
    agent.train(data)
    values = {variable.ref() for variable in agent._network.value_variables}
    for variable, value in zip(agent._network.trainable_variables, before, strict=True):
        assert np.array_equal(variable, value) == (variable.ref() in values)  # there is no baseline
