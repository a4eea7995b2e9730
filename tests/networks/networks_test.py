"""The agents' networks in float32 and bfloat16, and the specs that each algorithm rejects."""

import numpy as np
import pytest
import tensorflow as tf
from tf_agents.networks import actor_distribution_network, q_network
from tf_agents.specs import tensor_spec
from tf_agents.trajectories import time_step as ts

from tests.agents import example_data
from tests.testing import lanes
from tests.testing.algorithms import ALGORITHMS, names
from tflearn.agents import dqn, ppo, sac
from tflearn.coordinator import published_weights
from tflearn.core import precision
from tflearn.core.train_step import create_train_step
from tflearn.core.types import EnvironmentSpecs
from tflearn.networks import heads, networks, sets
from tflearn.networks.networks import NetworkOptions

OBSERVATION, CONTINUOUS = example_data.CONTINUOUS.observation, example_data.CONTINUOUS.action
DISCRETE = example_data.DISCRETE.action
_GENERATOR = np.random.default_rng(1)
OBSERVATIONS = _GENERATOR.uniform(-1.0, 1.0, (8, 3)).astype(np.float32)
IMAGE = tensor_spec.BoundedTensorSpec((12, 12, 2), tf.uint8, [0], [255], 'observation')  # as EnvironmentSpecs has it
IMAGES = _GENERATOR.integers(0, 256, (8, 12, 12, 2), np.uint8)
CONVOLUTIONS = ((4, 4, 2), (8, 3, 1))

NETWORKS = {
    'q': (lambda: networks.QNetwork(OBSERVATION, DISCRETE, NetworkOptions((64, 32))), OBSERVATIONS),
    'q of images': (
        lambda: networks.QNetwork(IMAGE, DISCRETE, NetworkOptions((32,), conv_layer_params=CONVOLUTIONS)),
        IMAGES,
    ),
    'normal': (lambda: networks.actor(OBSERVATION, CONTINUOUS, NetworkOptions((64, 32))), OBSERVATIONS),
    'categorical': (lambda: networks.actor(OBSERVATION, DISCRETE, NetworkOptions((64, 32))), OBSERVATIONS),
    'tanh normal': (
        lambda: networks.actor(OBSERVATION, CONTINUOUS, NetworkOptions((64,)), continuous=heads.tanh_normal),
        OBSERVATIONS,
    ),
}


def scaled():
    return tf.keras.layers.Lambda(lambda frames: tf.cast(frames, tf.float32) / 255.0)


TF_AGENTS = {
    'q': lambda: q_network.QNetwork(OBSERVATION, DISCRETE, fc_layer_params=(64, 32)),
    'q of images': lambda: q_network.QNetwork(
        IMAGE, DISCRETE, preprocessing_layers=scaled(), conv_layer_params=CONVOLUTIONS, fc_layer_params=(32,)
    ),
    'normal': lambda: actor_distribution_network.ActorDistributionNetwork(
        OBSERVATION, CONTINUOUS, fc_layer_params=(64, 32)
    ),
    'categorical': lambda: actor_distribution_network.ActorDistributionNetwork(
        OBSERVATION, DISCRETE, fc_layer_params=(64, 32)
    ),
}


def _made(make, name='float32', seed=3):
    tf.keras.utils.set_random_seed(seed)
    with precision.use(name):
        net = make()
        net.create_variables()
    return net


def _numbers(net, inputs):
    """The network's values, or its distribution's parameters: float32 arrays."""
    outputs, _ = net(inputs, step_type=tf.ones((8,), tf.int32), network_state=())
    if not tf.is_tensor(outputs):
        outputs = outputs.logits if hasattr(outputs, 'logits') else tf.stack([outputs.mode(), outputs.stddev()])
    assert outputs.dtype == tf.float32
    return outputs.numpy()


def _operations(net, inputs):
    def run():
        outputs = net(inputs, step_type=tf.ones((8,), tf.int32), network_state=())[0]
        return outputs if tf.is_tensor(outputs) else outputs.sample()

    return sorted(operation.type for operation in tf.function(run).get_concrete_function().graph.get_operations())


@pytest.mark.parametrize(
    'kind', [pytest.param(kind, marks=lanes.numpy_1) if kind == 'categorical' else kind for kind in TF_AGENTS]
)
def test_in_float32_they_are_tf_agents(kind, tmp_path):
    """Initial weights, values, graph, and checkpoint content."""
    make, inputs = NETWORKS[kind]
    ours, theirs = _made(make), _made(TF_AGENTS[kind])
    assert len(ours.variables) == len(theirs.variables)
    for a, b in zip(ours.variables, theirs.variables, strict=True):
        np.testing.assert_array_equal(a.numpy(), b.numpy())
    np.testing.assert_array_equal(_numbers(ours, inputs), _numbers(theirs, inputs))
    assert _operations(ours, inputs) == _operations(theirs, inputs)
    path = tf.train.Checkpoint(net=theirs).write(str(tmp_path / 'ckpt'))
    tf.train.Checkpoint(net=ours).read(path).assert_consumed()


@pytest.mark.parametrize('kind', NETWORKS)
def test_in_bfloat16_they_are_near(kind, tmp_path):
    make, inputs = NETWORKS[kind]
    exact, rough = _made(make), _made(make, 'bfloat16', seed=4)
    precision.check_agent(rough, 'bfloat16')
    assert {variable.dtype for variable in rough.variables} == {tf.float32}
    path = tf.train.Checkpoint(net=exact).write(str(tmp_path / 'ckpt'))
    tf.train.Checkpoint(net=rough).read(path).assert_consumed()
    expected, got = _numbers(exact, inputs), _numbers(rough, inputs)
    np.testing.assert_allclose(got, expected, atol=0.03)
    assert (got != expected).any(), 'it did compute in bfloat16'


def test_last_layer_is_float32():
    """Values near 256 are 2 apart in bfloat16: errors between them would be lost."""
    make, inputs = NETWORKS['q']
    net = _made(make, 'bfloat16')
    net.trainable_weights[-1].assign_add(tf.fill(net.trainable_weights[-1].shape, 256.0))
    assert (_numbers(net, inputs) % 1 != 0).all()


@pytest.mark.parametrize('kind', ['q', 'q of images', 'normal', 'tanh normal'])
@pytest.mark.parametrize('name', ['float32', 'bfloat16'])
def test_copy_has_its_own_weights(kind, name):
    make, inputs = NETWORKS[kind]
    net = _made(make, name)
    with precision.use(name):
        other = net.copy(name='Target')
        other.create_variables()
    assert not {id(v) for v in net.variables} & {id(v) for v in other.variables}
    assert [v.shape for v in net.variables] == [v.shape for v in other.variables]
    for a, b in zip(net.variables, other.variables, strict=True):
        b.assign(a)
    np.testing.assert_array_equal(_numbers(net, inputs), _numbers(other, inputs))


def test_dueling_values_are_value_and_advantages():
    net = _made(lambda: networks.QNetwork(OBSERVATION, DISCRETE, NetworkOptions((16,)), dueling=True))
    plain = _made(lambda: networks.QNetwork(OBSERVATION, DISCRETE, NetworkOptions((16,))))
    assert len(net.variables) == len(plain.variables) + 2
    bias = next(variable for variable in net.variables if 'value/bias' in variable.name and variable.shape == (1,))
    before, _ = net(OBSERVATIONS)
    bias.assign_add([3.0])
    np.testing.assert_allclose(net(OBSERVATIONS)[0], before + 3, rtol=1e-5)
    copy = net.copy(name='Target')
    copy.create_variables()
    assert {id(v) for v in copy.variables}.isdisjoint(id(v) for v in net.variables)
    agent = make_agent('dqn', OBSERVATION, DISCRETE, dueling=True)
    agent.initialize()
    assert np.isfinite(agent.train(example_data.sequences(agent, 4, 2)).loss)


AGENTS = {
    'dqn': (dqn, example_data.DISCRETE, {}, 2),
    'sac': (sac, example_data.CONTINUOUS, {'network': NetworkOptions((16,))}, 2),
    'ppo': (ppo, example_data.CONTINUOUS, {'network': NetworkOptions(fc_layer_params=(16,))}, 9),
    'ppo discrete': (ppo, example_data.DISCRETE, {'network': NetworkOptions(fc_layer_params=(16,))}, 9),
}


def _agent(kind, name):
    module, specs, changes, _ = AGENTS[kind]
    tf.keras.utils.set_random_seed(3)
    with precision.use(name):
        agent = module.make_agent(specs, create_train_step(), module.EXPERIENCE, **changes)
    agent.initialize()
    return agent


@pytest.mark.parametrize(
    'kind', [kind if kind == 'dqn' else pytest.param(kind, marks=pytest.mark.slow) for kind in AGENTS]
)
def test_agents_train_in_bfloat16_nearly_as_in_float32(kind):
    exact, rough = _agent(kind, 'float32'), _agent(kind, 'bfloat16')
    precision.check_agent(exact, 'float32')
    precision.check_agent(rough, 'bfloat16')
    trains = [tf.function(agent.train, autograph=False) for agent in (exact, rough)]
    data = [example_data.sequences(exact, 32, AGENTS[kind][3], seed=seed) for seed in range(4)]
    losses = []
    for step in range(20):
        infos = [train(data[step % 4]) for train in trains]
        assert {value.dtype for value in tf.nest.flatten(infos)} == {tf.float32}
        losses.append([float(info.loss) for info in infos])
    expected, got = np.transpose(losses)
    # SAC's actions are random.
    np.testing.assert_allclose(got, expected, rtol=0.1, atol=0.5 if kind == 'sac' else 0.05)
    assert (expected != got).any()
    assert {variable.dtype for variable in rough.variables if variable.dtype.is_floating} == {tf.float32}
    # The weights that a collector in float32 receives, and its actions with them.
    ours, theirs = (agent.collect_policy.variables() for agent in (exact, rough))
    assert published_weights.specs(ours) == published_weights.specs(theirs)
    for variable, value in zip(ours, theirs, strict=True):
        variable.assign(value)
    parameters = [
        _parameters(agent.policy.distribution(ts.restart(OBSERVATIONS, 8)).action) for agent in (exact, rough)
    ]
    np.testing.assert_allclose(*parameters, atol=0.05)


def _parameters(distribution):
    """Returns parameters that distinguish two distributions of an action; DQN's have all mass at one action."""
    return distribution.logits if hasattr(distribution, 'logits') else distribution.mode()


def bounded(shape, dtype, low, high):
    return tensor_spec.BoundedTensorSpec(shape, dtype, low, high, 'leaf')


UNEQUAL = bounded((2,), tf.int64, [0, 0], [1, 2])
UNBOUNDED_CHOICE = bounded((), tf.int64, tf.int64.min, tf.int64.max)
UNBOUNDED = bounded((2,), tf.float32, -np.inf, np.inf)
TOO_WIDE = bounded((2,), tf.float32, np.finfo(np.float32).min, np.finfo(np.float32).max)
ANY_ACTION = names(action='nested')


def make_agent(name, observation, action, **changes):
    return ALGORITHMS[name].make(EnvironmentSpecs(observation, action), **changes)


@pytest.mark.parametrize(
    ('names', 'action', 'need'),
    [
        (('dqn',), UNEQUAL, 'DQN needs one discrete action with bounds; '),
        (('dqn',), UNBOUNDED_CHOICE, 'DQN needs one discrete action with bounds; '),
        (('dqn',), {'a': DISCRETE}, 'DQN needs one discrete action with bounds; '),
        (('dqn',), (DISCRETE, DISCRETE), 'DQN needs one discrete action with bounds; '),
        (('dqn',), CONTINUOUS, 'DQN needs one discrete action with bounds; '),
        (('sac',), DISCRETE, 'SAC needs one vector of continuous actions; '),
        (('sac',), {'a': CONTINUOUS, 'b': CONTINUOUS}, 'SAC needs one vector of continuous actions; '),
        (('sac',), bounded((), tf.float32, -1, 1), 'SAC needs one vector of continuous actions; '),
        (('sac',), bounded((2, 2), tf.float32, -1, 1), 'SAC needs one vector of continuous actions; '),
        (('sac', *ANY_ACTION), UNBOUNDED, 'needs bounded actions; rescale them'),
        (('sac', *ANY_ACTION), TOO_WIDE, 'needs bounded actions; rescale them'),
        (ANY_ACTION, UNBOUNDED_CHOICE, 'needs bounded discrete actions; wrap the environment'),
    ],
)
def test_rejects_actions(names, action, need):
    for name in names:
        with pytest.raises(ValueError, match=f'(?s)^got the action .*{need}') as error:
            make_agent(name, OBSERVATION, action)
        assert '\n' not in str(error.value).strip().partition('  In call to configurable')[0].strip()


@pytest.mark.parametrize('name', names(argument='network'))
def test_rejects_text_and_unknown_paths(name):
    action = ALGORITHMS[name].specs.action
    text = {'robot': {'command': tf.TensorSpec((), tf.string)}, 'state': OBSERVATION}
    with pytest.raises(ValueError, match="^got the observation 'robot.command' of text; .* needs numbers; let"):
        make_agent(name, text, action)
    layers = {'robot.leg': tf.keras.layers.Flatten()}
    changes = {'layers': {'preprocessing_layers': layers}}
    with pytest.raises(ValueError, match="^got preprocessing_layers for 'robot.leg'; need one of: robot.arm, state$"):
        make_agent(name, {'robot': {'arm': OBSERVATION}, 'state': OBSERVATION}, action, **changes)


def test_actions_of_unequal_numbers_of_choices():
    """Impossible choices have probability 0, and count neither for the entropy nor for the divergence."""
    head = heads.categorical(UNEQUAL)
    distribution, _ = head(tf.random.stateless_uniform((64, 4), (1, 2)), 1)
    np.testing.assert_array_equal(distribution.probs_parameter()[:, 0, 2], np.zeros(64))
    samples = distribution.sample(100).numpy()
    assert samples[..., 0].max() == 1 and samples[..., 1].max() == 2
    other, _ = head(tf.random.stateless_uniform((64, 4), (3, 4)), 1)
    two, three = (np.asarray(distribution.probs_parameter()[:, i, : i + 2]) for i in range(2))
    entropies = np.stack([-(p * np.log(p)).sum(axis=-1) for p in (two, three)], axis=1)
    np.testing.assert_allclose(distribution.entropy(), entropies, rtol=1e-5)
    assert np.isfinite(distribution.kl_divergence(other)).all()


@pytest.mark.parametrize('observation', [OBSERVATION, {'a': OBSERVATION}, bounded((8, 8, 1), tf.int64, 0, 9)])
@pytest.mark.parametrize('name', names(argument='network'))
def test_rejects_convolutions_of_other_observations_than_images(name, observation):
    changes = {'layers': {'conv_layer_params': ((4, 3, 1),)}}
    with pytest.raises(ValueError, match=r'^got conv_layer_params for .*; need images \[height, width, channels\]'):
        make_agent(name, observation, ALGORITHMS[name].specs.action, **changes)


# Attention over sets ignores absent nodes and the order of the others.

SPEC = {
    'graph': {'nodes': tf.TensorSpec((5, 3), tf.float32), 'present': tf.TensorSpec((5,), tf.int8)},
    'kind': tensor_spec.BoundedTensorSpec((), tf.int64, 0, 3, 'kind'),
}
NODES = np.random.default_rng(1).normal(size=(1, 5, 3)).astype(np.float32)


def test_only_present_nodes_count_whatever_their_order():
    layer = sets.SetAttention(units=8, num_heads=2)
    mask = np.array([[1, 0, 1, 1, 0]])
    features = layer([NODES, mask])
    assert features.shape == (1, 8)
    changed = np.where(mask[..., np.newaxis], NODES, 99.0).astype(np.float32)
    np.testing.assert_allclose(layer([changed, mask]), features, atol=1e-5)
    order = [3, 4, 0, 1, 2]
    np.testing.assert_allclose(layer([NODES[:, order], mask[:, order]]), features, atol=1e-5)
    assert not np.allclose(layer([NODES, np.ones((1, 5))]), features, atol=1e-3)
    assert not layer([NODES, np.zeros((1, 5))]).numpy().any(), 'an empty set has features of zeros'


def test_the_rest_is_joined():
    model = sets.make_network(
        SPEC, 'actor', 'graph.nodes', 'graph.present', units=8, num_heads=2, fc_layer_params=(16,)
    )

    def features(kind):
        mask = tf.ones((1, 5), tf.int8)
        return model({'graph': {'nodes': tf.constant(NODES), 'present': mask}, 'kind': tf.constant([kind], tf.int64)})

    assert features(0).shape == (1, 16)
    assert not np.allclose(features(0), features(1))
    kernels = [variable.shape.as_list() for variable in model.trainable_variables]
    assert [8 + 4, 16] in kernels, 'features of the set and a one-hot vector'


@pytest.mark.parametrize(
    ('nodes', 'mask'), [('graph', 'graph.present'), ('kind', 'graph.present'), ('graph.nodes', 'kind')]
)
def test_rejects_parts_of_other_shapes(nodes, mask):
    with pytest.raises(ValueError, match=f"^got nodes='{nodes}', mask='{mask}' .*; need nodes"):
        sets.make_network(SPEC, 'actor', nodes, mask)


def test_rejects_units_that_heads_do_not_divide():
    with pytest.raises(ValueError, match='got units=6, num_heads=4; need a multiple'):
        sets.SetAttention(units=6)
