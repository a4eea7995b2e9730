"""Memories of each kind: a sequence has the outputs of its steps; GTrXL has those of its equations."""

import numpy as np
import pytest
import tensorflow as tf

from tests.agents import example_data
from tests.testing import experiences
from tests.testing.algorithms import ALGORITHMS
from tflearn.core import precision
from tflearn.networks.gtrxl import GTrXL, GTrXLOptions
from tflearn.networks.networks import NetworkOptions

SPEC = tf.TensorSpec([3], tf.float32)
SMALL = GTrXLOptions(window_steps=4, num_heads=2)
GTRXL = {'memory': 'gtrxl', 'lstm_size': (8, 8), 'gtrxl': SMALL}
ONE_LAYER = {'memory': 'gtrxl', 'lstm_size': (8,), 'gtrxl': GTrXLOptions(window_steps=2, num_heads=2)}
KINDS = {
    'lstm': {'lstm_size': (8,)},
    'gru': {'memory': 'gru', 'lstm_size': (8,)},
    'two layers': {'memory': 'gru', 'lstm_size': (8, 6)},
    'gtrxl': GTRXL,
    'own': {**ONE_LAYER, 'make_network': lambda spec, name: tf.keras.layers.Dense(5)},
}
BATCH, LENGTH, BEGIN = 3, 23, 9
INPUTS = np.random.default_rng(1).normal(size=(BATCH, LENGTH, 3)).astype(np.float32)
# Episodes: of all steps; two, the second in the middle of the sequence; two short ones there, one of a single step.
STEP_TYPES = np.ones((BATCH, LENGTH), np.int32)
STEP_TYPES[:, 0] = STEP_TYPES[1, 15] = STEP_TYPES[2, 11] = STEP_TYPES[2, 12] = 0


def _drawn(made):
    """Gives a network large weights, so that its state has an effect."""
    made.create_variables()
    for i, variable in enumerate(made.trainable_variables):
        variable.assign(tf.random.stateless_normal(variable.shape, (i, 1)))
    return made


def _steps(made):
    """Returns the outputs of all steps [B, T, units], and the states before each of them and after the last."""
    states, outputs = [made.get_initial_state(BATCH)], []
    for t in range(LENGTH):
        output, state = made(INPUTS[:, t], STEP_TYPES[:, t], states[-1])
        outputs.append(output)
        states.append(state)
    return np.stack(outputs, axis=1), states


@pytest.mark.parametrize('kind', KINDS)
def test_a_sequence_has_the_outputs_of_its_steps(kind):
    made = _drawn(NetworkOptions((5,), **KINDS[kind]).make_encoder(SPEC, 'encoder', with_memory=True))
    expected, states = _steps(made)
    run = tf.function(lambda *given: made(*given), autograph=False)
    outputs, after = run(INPUTS[:, BEGIN:], tf.constant(STEP_TYPES[:, BEGIN:]), states[BEGIN])
    np.testing.assert_allclose(outputs, expected[:, BEGIN:], atol=1e-5)
    for ours, theirs in zip(tf.nest.flatten(after), tf.nest.flatten(states[-1]), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)
    forgot, _ = made(INPUTS[:, BEGIN:], STEP_TYPES[:, BEGIN:], made.get_initial_state(BATCH))
    assert (np.abs(forgot - outputs).max(axis=-1)[:, 0] > 1e-3).all(), 'the stored state matters'


def test_it_remembers_the_window_of_each_layer_and_nothing_of_other_episodes():
    made = _drawn(NetworkOptions((5,), **GTRXL).make_encoder(SPEC, 'encoder', with_memory=True))
    outputs, state = made(INPUTS, STEP_TYPES, ())
    changed, _ = made(tf.concat([INPUTS[:, :1] + 1.0, INPUTS[:, 1:]], axis=1), STEP_TYPES, ())
    differs = np.abs(outputs - changed).max(axis=-1) > 1e-6
    reach = SMALL.window_steps * len(GTRXL['lstm_size'])
    assert differs[0].tolist() == [t <= reach for t in range(LENGTH)]
    assert state['steps'].numpy().tolist() == [4, 4, 4]
    _, state = made(INPUTS[:, :14], STEP_TYPES[:, :14], ())
    assert state['steps'].numpy().tolist() == [4, 4, 2]
    assert not state['embeddings'][2, :, :2].numpy().any(), 'what is forgotten is not stored'


def test_gtrxl_computes_its_equations():
    """One layer, step by step, over lists."""
    made = _drawn(GTrXL(SPEC, (4,), GTrXLOptions(window_steps=3, num_heads=2)))
    layer, attention = made._blocks[0], made._blocks[0]._attention
    relu, sigmoid = lambda x: np.maximum(x, 0), lambda x: 1 / (1 + np.exp(-x))

    def norm(of, x):
        gamma, beta = of.get_weights()
        return (x - x.mean()) / np.sqrt(x.var() + 1e-3) * gamma + beta

    def gate(of, x, y):
        (w_r, w_z, w_g), (u_r, u_z) = (
            np.split(of._of_y.get_weights()[0], 3, 1),
            np.split(of._of_x.get_weights()[0], 2, 1),
        )
        r, z = sigmoid(y @ w_r + x @ u_r), sigmoid(y @ w_z + x @ u_z - of._bias.numpy())
        return (1 - z) * x + z * np.tanh(y @ w_g + (r * x) @ of._of_reset.get_weights()[0])

    query, key, value, position, last = (
        of.get_weights()[0]
        for of in (attention._query, attention._key, attention._value, attention._position, attention._last)
    )
    u, v = (bias.numpy() for bias in attention._biases)
    x = made._first(INPUTS[0]).numpy()
    expected = []
    for t in range(LENGTH):
        normal, mixed = [norm(layer._norms[0], row) for row in x[: t + 1]], []
        for head in range(2):
            part = slice(2 * head, 2 * head + 2)
            logits = []
            for distance in range(min(t, 3) + 1):
                place = np.array([np.sin(distance), np.sin(distance / 100), np.cos(distance), np.cos(distance / 100)])
                q, k, p = (normal[t] @ query)[part], (normal[t - distance] @ key)[part], (place @ position)[part]
                logits.append(((q + u[head]) @ k + (q + v[head]) @ p) / np.sqrt(2))
            weights = np.exp(logits - np.max(logits))
            values = [(normal[t - distance] @ value)[part] for distance in range(len(weights))]
            mixed.append(weights / weights.sum() @ values)
        y = gate(layer._gates[0], x[t], relu(np.concatenate(mixed) @ last))
        expected.append(gate(layer._gates[1], y, layer._mlp(norm(layer._norms[1], y)[np.newaxis]).numpy()[0]))
    outputs, _ = made(INPUTS, np.where(np.arange(LENGTH), STEP_TYPES * 0 + 1, 0), ())
    np.testing.assert_allclose(outputs[0], expected, rtol=1e-4, atol=1e-5)


WITH_MEMORY = ('impala', 'r2d2', 'recurrent_sac', 'reinforce', 'bc')


@pytest.mark.parametrize(
    ('name', 'kind'),
    [
        # A GRU's state is one tensor, as in PPO's test of it.
        *((name, kind) for name in WITH_MEMORY[:2] for kind in ('gtrxl', 'gru')),
        # The conformance matrix trains these with an LSTM.
        *(pytest.param(name, kind, marks=pytest.mark.slow) for name in WITH_MEMORY[2:] for kind in ('gtrxl', 'gru')),
    ],
)
def test_agents_train_with_it(name, kind):
    algorithm = ALGORITHMS[name]
    experience = experiences.changed(algorithm.experience, store_policy_state=False)
    agent = algorithm.make(None, experience, ONE_LAYER if kind == 'gtrxl' else KINDS[kind])
    data = example_data.sequences(agent, 4, algorithm.length)
    assert np.isfinite(agent.train(data).loss)


@pytest.mark.parametrize(
    ('changes', 'message'),
    [
        ({'memory': 'rnn'}, "got NetworkOptions.memory='rnn'; need one of lstm, gru, gtrxl"),
        ({'memory': 'gru'}, "got memory='gru' without lstm_size; need its units"),
        (
            {'memory': 'gtrxl', 'lstm_size': (8, 4)},
            r'got lstm_size=\(8, 4\) of a GTrXL with num_heads=4; need the same',
        ),
        ({'memory': 'gtrxl', 'lstm_size': (6,)}, r'got lstm_size=\(6,\) of a GTrXL with num_heads=4; need the same'),
        ({'memory': 'gtrxl', 'lstm_size': (-4,)}, r'got lstm_size=\(-4,\) of a GTrXL with num_heads=4; need the same'),
        ({'lstm_size': (8,), 'gtrxl': SMALL}, "got gtrxl=.* with memory='lstm'; need 'gtrxl'"),
    ],
)
def test_refuses(changes, message):
    with pytest.raises(ValueError, match=message):
        ALGORITHMS['impala'].make(layers={'lstm_size': None, **changes})


def test_it_computes_in_float32_and_checkpoints_hold_it(tmp_path):
    """As an LSTM does, in a run of bfloat16."""
    with precision.use('bfloat16'):
        rough = _drawn(GTrXL(SPEC, (8, 8), SMALL))
    exact = GTrXL(SPEC, (8, 8), SMALL)
    exact.create_variables()
    path = tf.train.Checkpoint(net=rough).write(str(tmp_path / 'ckpt'))
    tf.train.Checkpoint(net=exact).read(path).assert_consumed()
    (ours, state), (theirs, _) = (made(INPUTS, STEP_TYPES, ()) for made in (rough, exact))
    assert ours.dtype == state['embeddings'].dtype == tf.float32
    np.testing.assert_allclose(ours, theirs, atol=1e-6)
