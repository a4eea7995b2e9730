import dataclasses

import numpy as np
import pytest
import tensorflow as tf
from tf_agents.specs import tensor_spec
from tf_agents.trajectories import time_step as ts

from tests.agents import example_data, oracles
from tests.testing import experiences
from tflearn.agents import bc, ppo
from tflearn.core.train_step import create_train_step
from tflearn.core.types import EnvironmentSpecs
from tflearn.files.run_dir import RunDir
from tflearn.jobs import initial_values
from tflearn.jobs.policy_exports import ExportOptions, PolicyExports
from tflearn.jobs.train_settings import Initial
from tflearn.learner.checkpoints import Checkpoints
from tflearn.networks.networks import NetworkOptions
from tflearn.optimization.optimizers import OptimizerOptions

SMALL = NetworkOptions(fc_layer_params=(16, 8))
MID, LAST, FIRST = (int(kind) for kind in (ts.StepType.MID, ts.StepType.LAST, ts.StepType.FIRST))


def make_agent(specs=example_data.DISCRETE, experience=bc.EXPERIENCE, loss=None, network=SMALL, **changes):
    loss = bc.BCLoss(**(loss or {}))
    agent = bc.make_agent(specs, create_train_step(), experience, network=network, loss=loss, **changes)
    agent.initialize()
    return agent


def two_episodes(data):
    """The sequences with a boundary row, LAST -> FIRST, as their second row."""
    size, length = data.reward.shape
    types = np.full((size, length), MID, np.int32)
    nexts = types.copy()
    nexts[:, 0], types[:, 1], nexts[:, 1], types[:, 2] = LAST, LAST, FIRST, FIRST
    return data._replace(step_type=tf.constant(types), next_step_type=tf.constant(nexts))


WEIGHTS = {
    'all alike': ({}, lambda data: np.ones(data.reward.shape)),
    'rewards': ({'weight': 'reward'}, lambda data: np.maximum(np.float64(data.reward), 0)),
    'returns': (
        {'weight': 'episode_return', 'weight_temperature': 0.3},
        lambda data: np.exp(np.float64(data.policy_info['episode_return']) / 0.3),
    ),
}


@pytest.mark.parametrize('name', WEIGHTS)
@pytest.mark.parametrize(
    ('specs', 'kind'),
    [
        (example_data.DISCRETE, 'log_likelihood'),
        (example_data.CONTINUOUS, 'log_likelihood'),
        (example_data.CONTINUOUS, 'mse'),
    ],
    ids=['discrete', 'continuous', 'mse'],
)
def test_loss_is_the_weighted_mean_of_the_definition(specs, kind, name):
    options, weigh = WEIGHTS[name]
    agent = make_agent(
        specs,
        experiences.changed(bc.EXPERIENCE, sequence_length=5),
        {'kind': kind, 'entropy_coefficient': 0.1, **options},
        normalize_observations=False,
    )
    data = two_episodes(example_data.sequences(agent, 6, 5))
    rows = tf.nest.map_structure(lambda leaf: leaf.numpy()[:, [0, 2, 3]], data)  # without the boundary and the last row
    policy = oracles.Policy(agent._network, rows.observation)
    losses = -policy.log_prob(rows.action)
    if kind == 'mse':
        losses = np.square(policy.mode - rows.action).sum(-1)
    weights = weigh(rows)
    expected = (weights * (losses - 0.1 * policy.entropy())).sum() / weights.sum()
    info = agent.loss(data)
    assert float(info.loss) == pytest.approx(expected, rel=1e-5)
    assert float(info.extra['log_likelihood']) == pytest.approx(policy.log_prob(rows.action).mean(), rel=1e-5)
    if specs is example_data.DISCRETE:
        assert float(info.extra['accuracy']) == pytest.approx((policy.mode == rows.action).mean())
    else:
        assert float(info.extra['squared_error']) == pytest.approx(np.square(policy.mode - rows.action).sum(-1).mean())


def test_unlikely_actions_of_a_narrow_distribution_count():
    agent = make_agent(example_data.CONTINUOUS)
    data = example_data.sequences(agent, 8, 2)
    for variable in agent._network.variables:
        if 'bias_layer' in variable.name:
            variable.assign(tf.fill(variable.shape, -12.0))
    assert float(agent.loss(data).loss) > 1e8


def test_only_the_policys_part_is_trained_and_padding_changes_nothing():
    agent = make_agent(experience=experiences.changed(bc.EXPERIENCE, sequence_length=5))
    data = two_episodes(example_data.sequences(agent, 6, 5))
    other = data._replace(observation=tf.tensor_scatter_nd_add(data.observation, [[0, 1, 0], [2, 4, 1]], [9.0, 9.0]))
    assert float(agent.loss(data).loss) == float(agent.loss(other).loss)
    before = {variable.ref(): variable.numpy() for variable in agent._network.variables}
    agent.train(data)
    untrained = {variable.ref() for variable in agent._network.value_variables}
    for variable in agent._network.variables:
        same = np.array_equal(before[variable.ref()], variable)
        assert same == (variable.ref() in untrained), variable.name


def test_statistics_of_observations_stay_after_the_first_steps():
    agent = make_agent(normalizer_steps=2)
    normalizer, found = agent._observation_normalizer, []
    for seed in range(4):
        agent.train(example_data.sequences(agent, 8, 2, seed))
        found.append([float(normalizer.count), *normalizer.means[0].numpy().tolist()])
    assert [counts for counts, *_ in found] == [8, 16, 16, 16]
    assert found[1] == found[2] == found[3] != found[0]


NEST = EnvironmentSpecs(
    {'arm': example_data.CONTINUOUS.observation, 'kind': tensor_spec.BoundedTensorSpec((), tf.int64, 0, 3)},
    {'push': example_data.CONTINUOUS.action, 'which': tensor_spec.BoundedTensorSpec((2,), tf.int64, [0, 0], [1, 2])},
)


@pytest.mark.parametrize(
    ('specs', 'network', 'length', 'num_steps'),
    [(NEST, SMALL, 2, 100), (example_data.CONTINUOUS, dataclasses.replace(SMALL, lstm_size=(4,)), 6, 150)],
    ids=['nest of discrete and continuous', 'memory'],
)
def test_it_learns_what_the_recorded_policy_did(specs, network, length, num_steps):
    experience = experiences.changed(bc.EXPERIENCE, sequence_length=length)
    agent = make_agent(specs, experience, optimizer=OptimizerOptions(5e-3), network=network)
    train_step = tf.function(agent.train, autograph=False)
    scores = []
    for seed in range(num_steps):
        data = example_data.sequences(agent, 64, length, seed % 20)
        arm = data.observation['arm'] if specs is NEST else data.observation
        push = 1.5 * tf.tanh(arm[..., :2])
        action = {'push': push, 'which': tf.cast(arm[..., 1:] > 0, tf.int64)} if specs is NEST else push
        scores.append(train_step(data._replace(action=action)).extra)
    assert float(scores[-1]['squared_error']) < 0.1 * float(scores[0]['squared_error'])
    if specs is NEST:
        last = np.mean([score['accuracy'] for score in scores[-20:]])  # of all batches: they repeat after 20
        assert last > 0.85 > 0.6 > float(scores[0]['accuracy'])


def test_actions_that_the_mask_forbids_are_not_imitated():
    mask = tensor_spec.BoundedTensorSpec((2,), tf.int64, 0, 1)
    specs = EnvironmentSpecs({'state': example_data.DISCRETE.observation, 'mask': mask}, example_data.DISCRETE.action)
    agent = make_agent(specs, action_mask='mask')
    data = example_data.sequences(agent, 8, 2)
    masks = np.ones((8, 2, 2), np.int64)
    masks[2:4, :, 1] = 0
    data = data._replace(observation=data.observation | {'mask': tf.constant(masks)}, action=tf.ones((8, 2), tf.int64))
    legal = tf.nest.map_structure(lambda leaf: tf.gather(leaf, [0, 1, 4, 5, 6, 7]), data)
    info = agent.loss(data)
    assert float(info.extra['illegal_share']) == 0.25
    assert float(info.loss) == pytest.approx(float(agent.loss(legal).loss), rel=1e-6)
    assert 0 < float(agent.train(data).loss) < 10
    masked = {'state': tf.zeros((50, 3)), 'mask': tf.constant([[1, 0]] * 50, tf.int64)}
    assert not agent.collect_policy.action(ts.restart(masked, 50)).action.numpy().any()


@pytest.fixture(scope='module')
def trained(tmp_path_factory):
    """What a run of this agent leaves: its checkpoint and its policies."""
    run_dir = RunDir(tmp_path_factory.mktemp('bc'))
    agent = make_agent(loss={'weight': 'return_to_go', 'weight_temperature': 1.0}, normalizer_steps=10)
    for seed in range(3):
        agent.train(example_data.sequences(agent, 8, 2, seed))
    Checkpoints(run_dir.checkpoints, {'agent': agent, 'train_step': agent.train_step_counter}).save(3)
    exports = PolicyExports(agent, run_dir, ExportOptions(('greedy_policy', 'collect_policy')), dict)
    exports.export(3)
    exports.wait()
    return run_dir


def observations():
    return tf.random.stateless_uniform((50, 3), (1, 2), 0.0, 9.0)


def logits_of(policy):
    return policy.distribution(ts.restart(observations(), 50)).action.logits.numpy()


@pytest.mark.parametrize(
    ('source', 'initial'),
    [('checkpoint', {'prefixes': ('agent/_network', 'agent/_observation_normalizer')}), ('policy', {})],
)
def test_ppo_begins_with_its_policy(trained, tmp_path, source, initial):
    """As `train.Initial` does it: by the names in a checkpoint, or by an exported policy."""
    beginning = ppo.make_agent(example_data.DISCRETE, create_train_step(), ppo.EXPERIENCE, network=SMALL)
    beginning.initialize()
    before = logits_of(beginning.collect_policy)
    initial_values.load(beginning, Initial(**initial | {source: str(trained.root)}), RunDir(tmp_path / 'ppo'))
    agent = bc.make_agent(example_data.DISCRETE, create_train_step(), bc.EXPERIENCE, network=SMALL)
    objects = tf.train.Checkpoint(agent=agent)
    objects.restore(tf.train.latest_checkpoint(str(trained.checkpoints))).expect_partial()
    np.testing.assert_array_equal(logits_of(beginning.collect_policy), logits_of(agent.policy.wrapped_policy))
    assert np.abs(before - logits_of(beginning.collect_policy)).max() > 0.05
