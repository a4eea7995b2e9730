"""The argument `extra_loss`: a term of one's own, in the losses of four algorithms, on replicas and in XLA."""

import numpy as np
import pytest
import tensorflow as tf

import tflearn
from tests.agents import example_data
from tests.testing import experiences, lanes, written_summaries
from tests.testing.algorithms import ALGORITHMS
from tflearn.core import strategies

NAMES = ['ppo', 'sac', 'dqn', 'impala']


def where_above(distribution, values, samples):
    """Makes the policy less certain of what was done where a number of the observation is above 0."""
    above = tf.cast(samples.observation[..., 0] > 0, tf.float32)
    actions = tf.clip_by_value(samples.action, -0.9, 0.9) if samples.action.dtype.is_floating else samples.action
    term = 0.1 * above * distribution.log_prob(actions)
    return term, {'term': term, 'above': above, 'factor': tf.constant(0.1)}


def make(name, **changes):
    """An agent, of the same variables and draws each time."""
    tf.keras.utils.set_random_seed(1)
    return ALGORITHMS[name].make(**changes)


def sequences(agent, name):
    """Four sequences, of which the first has a row between two episodes."""
    data = example_data.sequences(agent, 4, ALGORITHMS[name].length)
    step_type, following = data.step_type.numpy(), data.next_step_type.numpy()
    step_type[0, 0], following[0, 0] = 2, 0
    return data._replace(step_type=tf.constant(step_type), next_step_type=tf.constant(following))


def own(info):
    return {name.removeprefix('own/'): np.mean(value) for name, value in info.extra.items() if name.startswith('own/')}


@pytest.mark.parametrize('name', NAMES)
def test_the_loss_is_the_mean_of_the_rows_that_count_of_all_replicas(name):
    agent = make(name, extra_loss=where_above)
    data = sequences(agent, name)
    whole, plain = agent.loss(data), make(name).loss(data)
    expected, metrics = float(whole.loss - plain.loss), own(whole)
    assert metrics['term'] == pytest.approx(expected, rel=1e-3) and abs(expected) > 1e-3
    counted = (data.next_step_type != 0)[:, :-1]
    above = tf.boolean_mask(data.observation[:, :-1, 0] > 0, counted)
    if name != 'dqn':  # whose metrics are of all items, as its loss is
        assert metrics['above'] == pytest.approx(np.mean(above))
    assert metrics['factor'] == np.float32(0.1)
    strategy = strategies.make('mirrored:2')
    with strategy.scope():
        pair = [make(name, **more) for more in ({'extra_loss': where_above}, {})]

    def difference():
        replica = tf.distribute.get_replica_context().replica_id_in_sync_group
        part = tf.nest.map_structure(lambda leaf: leaf[2 * replica : 2 * replica + 2], data)
        own, plain = (each.loss(part).loss for each in pair)
        return own - plain

    shares = strategy.run(tf.function(difference, autograph=False)).values
    assert sum(float(share) for share in shares) == pytest.approx(expected, rel=1e-3)


@lanes.compiles
@pytest.mark.parametrize(
    'name', ['ppo', 'dqn', *(pytest.param(name, marks=pytest.mark.slow) for name in ('sac', 'impala'))]
)
def test_xla_trains_the_policy_with_it(name):
    agent = make(name, extra_loss=where_above)
    plain, by_hand = make(name), make(name, extra_loss=where_above)
    data = sequences(agent, name)
    tf.function(agent.train, autograph=False, jit_compile=True)(data)
    by_hand.train(data)
    plain.train(data)
    trained = [
        np.concatenate([tf.reshape(variable, [-1]) for variable in each.trainable_variables])
        for each in (agent, by_hand, plain)
    ]
    np.testing.assert_allclose(trained[0], trained[1], rtol=1e-3, atol=1e-5)
    assert not np.allclose(trained[0], trained[2], atol=1e-5)


def test_a_gin_file_names_it_and_its_metrics_are_in_tensorboard(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    file = tmp_path / 'own.gin'
    file.write_text("""
from __gin__ import dynamic_registration
from tests.agents import own_loss_test
from tflearn.agents import dqn
from tflearn.core import experience
from tflearn.jobs import evaluate
from tflearn.jobs import train
include 'dqn_cartpole.gin'
dqn.make_agent.extra_loss = @own_loss_test.where_above
experience.Uniform.min_size = 100
train.StopConditions.num_train_steps = 20
evaluate.evaluate.num_episodes = 1
evaluate.evaluate.target_return = None
""")
    run = tflearn.train(str(file), root_dir='run', mode='synchronous')
    scalars = written_summaries.scalars(run.run_dir.summaries('train'))
    assert all(0 < share < 1 for share in scalars['train/extra/own/above'].values())


def test_with_memory_it_gets_sequences():
    shapes = []

    def term(distribution, values, samples):
        shapes[:] = [values.shape, samples.observation.shape, distribution.batch_shape]
        return 0.0 * values, {}

    for name, length in (('ppo', 4), ('impala', 5)):
        stored = experiences.changed(ALGORITHMS[name].experience, store_policy_state=True)
        make(name, extra_loss=term, experience=stored, layers={'lstm_size': (4,)})
        assert shapes == [(2, length), (2, length, 3), (2, length)]


def zeros(values):
    return tf.zeros_like(values)[:, 0]


@pytest.mark.parametrize(
    ('name', 'function', 'message'),
    [
        ('dqn', 1.0, 'got extra_loss=1.0; need a function, such as lambda distribution'),
        ('dqn', lambda values: values, 'cannot be called with distribution, values, samples'),
        ('dqn', lambda distribution, values, samples: zeros(values), r'need \(term, metrics\)'),
        ('dqn', lambda distribution, values, samples: (zeros(values), 1.0), r'need \(term, metrics\)'),
        ('dqn', lambda distribution, values, samples: (values, {}), r'got a term of the shape \(2, 2\) .* need \(2,\)'),
        ('dqn', lambda distribution, values, samples: (0.0, {}), r'got a term of the shape \(\) from extra_loss; need'),
        ('dqn', lambda distribution, values, samples: (samples.action, {}), 'got a term of int64 .* need floats'),
        (
            'ppo',
            lambda distribution, values, samples: (values, {'x': values[0]}),
            "got the metric 'own/x' of the shape",
        ),
        ('recurrent_sac', where_above, 'got extra_loss with lstm_size; need one of them'),
    ],
)
def test_what_it_returns_is_checked_when_the_agent_is_made(name, function, message):
    with pytest.raises((ValueError, TypeError), match=f'^got .*{message.removeprefix("got ")}'):
        make(name, extra_loss=function)
