"""The agents' optimizer in the default strategy and on replicas: one global batch, one result."""

import functools

import numpy as np
import pytest
import tensorflow as tf

from tests.agents import example_data
from tests.testing import lanes
from tests.testing.algorithms import ALGORITHMS
from tflearn.core import strategies, summary_tensors
from tflearn.core.train_step import create_train_step
from tflearn.optimization import optimizers, schedules

# Gradients of eight items each: their mean is the gradient of a batch.
ITEMS = np.random.default_rng(0).normal(1.0, 2.0, (8, 3)).astype(np.float32)
STRATEGIES = ['default', 'mirrored:2', pytest.param('mirrored:4', marks=pytest.mark.slow)]


def make(train_step, size=1, **settings):
    """Makes one optimizer of the name 'it'."""
    return optimizers.OptimizerOptions(**{'gradient_clipping': None} | settings).make(train_step, size, {'it': 0.1})[
        'it'
    ]


class Problem:
    """Two variables whose gradients are given, under a strategy, stepped as one compiled program."""

    def __init__(self, strategy='default', due=None, size=1, **settings):
        self._due = due
        self.strategy = strategies.make(strategy)
        with self.strategy.scope():
            self.variables = [tf.Variable(np.ones((3,), np.float32), name='a'), tf.Variable(2.0, name='b')]
            self.train_step = create_train_step()
            self.optimizer = make(self.train_step, size, **settings)
        self._step = tf.function(self._all, autograph=False)

    def step(self, items=ITEMS):
        with self.strategy.scope():
            self._step(tf.constant(items))
        return [variable.numpy() for variable in self.variables]

    def slots(self):
        return [variable.numpy() for variable in self.optimizer.keras.variables]

    def summary(self, jit_compile=False):
        """Takes a step that is summarized; returns its summary on each replica, by tag."""
        step = tf.function(functools.partial(self._all, summarized=True), autograph=False, jit_compile=jit_compile)
        with self.strategy.scope():
            found = step(tf.constant(ITEMS))
        return {
            tag: [part.numpy() for part in self.strategy.experimental_local_results(each)]
            for tag, each in found.items()
        }

    def _all(self, items, summarized=False):
        return self.strategy.run(self._replica, (items, summarized))

    def _replica(self, items, summarized):
        context = tf.distribute.get_replica_context()
        share = len(ITEMS) // context.num_replicas_in_sync
        own = items[context.replica_id_in_sync_group * share :][:share]
        gradients = [tf.reduce_sum(own, axis=0) / len(ITEMS), tf.reduce_sum(own) / len(ITEMS)]
        due = None if self._due is None else self._due(self.train_step)
        with summary_tensors.collecting(summarized) as found:
            self.optimizer.apply_gradients(zip(gradients, self.variables, strict=True), due=due)
        self.train_step.assign_add(1)
        return found


def _gradients():
    return [ITEMS.mean(axis=0), np.float32(ITEMS.mean(axis=0).sum())]


def _clipped(clip_by, bound):
    a, b = _gradients()
    if clip_by == 'value':
        return [np.clip(a, -bound, bound), np.clip(b, -bound, bound)]
    norms = [np.linalg.norm(a), abs(b)]
    if clip_by == 'global_norm':
        norms = [np.linalg.norm(norms)] * 2
    return [a * min(1, bound / norms[0]), b * min(1, bound / norms[1])]


@pytest.mark.parametrize('strategy', STRATEGIES)
@pytest.mark.parametrize(
    ('clip_by', 'bound'), [('global_norm', 1.0), ('global_norm', 1e3), ('variable_norm', 1.5), ('value', 0.5)]
)
def test_clips_the_gradient_of_the_global_batch(strategy, clip_by, bound):
    arguments = {'rho': 0.0, 'epsilon': 1e-12}
    problem = Problem(strategy, kind='rmsprop', clip_by=clip_by, gradient_clipping=bound, arguments=arguments)
    problem.step()
    expected = _clipped(clip_by, bound)
    # With rho 0 the slot is the square of the gradient.
    slots = problem.slots()[1:]
    np.testing.assert_allclose([*slots[0], slots[1]], np.square([*expected[0], expected[1]]), rtol=1e-5)


@pytest.mark.parametrize('strategy', STRATEGIES[1:])
@pytest.mark.parametrize('skip_nonfinite', [False, True])
def test_replicas_agree_with_one(strategy, skip_nonfinite):
    alone, several = (
        Problem(name, gradient_clipping=1.0, skip_nonfinite=skip_nonfinite) for name in ('default', strategy)
    )
    for factor in (1.0, -2.0, 5.0):
        expected, got = alone.step(factor * ITEMS), several.step(factor * ITEMS)
        for a, b in zip(expected, got, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-6)


def test_unclipped_adam_is_keras_adam():
    problem, keras = Problem(), tf.keras.optimizers.Adam(0.1)
    variables = [tf.Variable(np.ones((3,), np.float32)), tf.Variable(2.0)]
    for _ in range(3):
        got = problem.step()
        keras.apply_gradients(zip([tf.constant(gradient) for gradient in _gradients()], variables, strict=True))
    for a, b in zip(got, variables, strict=True):
        np.testing.assert_allclose(a, b.numpy(), rtol=1e-6)


@pytest.mark.parametrize('strategy', STRATEGIES)
@pytest.mark.parametrize('bad', [np.nan, np.inf])
def test_a_step_that_is_not_finite_is_skipped_and_counted(strategy, bad):
    problem, straight = (Problem(strategy, skip_nonfinite=True, gradient_clipping=1.0) for _ in range(2))
    before, slots = problem.step(), problem.slots()
    poisoned = ITEMS.copy()
    poisoned[-1, 0] = bad  # on the last replica only
    for a, b in zip(before, problem.step(poisoned), strict=True):
        np.testing.assert_array_equal(a, b)
    # Everything except the number of steps, on which the learning rate depends.
    for a, b in zip(slots, problem.slots(), strict=True):
        assert (a == b).all() or a.dtype == np.int64
    assert problem.optimizer.num_skipped.numpy() == 1
    assert problem.optimizer.keras.iterations.numpy() == problem.train_step.numpy() == 2
    straight.step()
    straight.optimizer.keras.iterations.assign_add(1)
    for a, b in zip(straight.step(), problem.step(), strict=True):
        np.testing.assert_array_equal(a, b)
    assert problem.optimizer.num_skipped.numpy() == 1


@pytest.mark.parametrize('strategy', STRATEGIES[:2])
@pytest.mark.parametrize('skip_nonfinite', [False, True])
def test_a_step_that_is_not_due_changes_nothing(strategy, skip_nonfinite):
    every, second = (
        Problem(strategy, due=due, skip_nonfinite=skip_nonfinite)
        for due in (None, lambda train_step: tf.equal(train_step % 2, 1))
    )
    for step in range(1, 5):
        before = [*second.slots(), *(variable.numpy() for variable in second.variables)]
        after = second.step()
        if step == 3:  # at first there are no slots yet
            for a, b in zip(before, [*second.slots(), *after], strict=True):
                np.testing.assert_array_equal(a, b)
        elif step == 1:
            np.testing.assert_array_equal(before[-1], after[-1])
        else:
            for a, b in zip(every.step(), after, strict=True):
                np.testing.assert_array_equal(a, b)
            assert second.optimizer.keras.iterations.numpy() == step // 2
    if skip_nonfinite:
        before = second.step()
        after = second.step(np.full_like(ITEMS, np.nan))
        assert all(np.array_equal(a, b) for a, b in zip(before, after, strict=True))
        assert (second.optimizer.num_skipped.numpy(), second.optimizer.keras.iterations.numpy()) == (1, 3)


def test_the_learning_rate_follows_the_train_step():
    problem = Problem(kind='rmsprop', learning_rate=schedules.linear(1.0, 0.0, 4), arguments={'rho': 0.0})
    for _ in range(2):
        problem.step()
    assert problem.optimizer.learning_rate.numpy() == pytest.approx(0.75)
    assert problem.variables[0].numpy() == pytest.approx(1 - 1.75 * np.sign(_gradients()[0]), abs=1e-5)


def test_a_checkpoint_holds_slots_and_iterations(tmp_path):
    first, second = Problem(skip_nonfinite=True), Problem('mirrored:2', skip_nonfinite=True)
    for problem, steps in ((first, 3), (second, 1)):
        for _ in range(steps):
            problem.step()
    path = tf.train.Checkpoint(o=first.optimizer, v=first.variables).save(str(tmp_path / 'ckpt'))
    tf.train.Checkpoint(o=second.optimizer, v=second.variables).restore(path).assert_consumed()
    assert second.optimizer.keras.iterations.numpy() == 3
    for a, b in zip(first.slots(), second.slots(), strict=True):
        np.testing.assert_array_equal(a, b)
    for a, b in zip(first.step(), second.step(), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)


def test_variables_without_a_gradient_are_left_alone():
    optimizer = make(create_train_step())
    variables = [tf.Variable(1.0), tf.Variable(1.0)]
    optimizer.apply_gradients([(None, variables[0]), (tf.constant(1.0), variables[1])])
    assert float(variables[0]) == 1.0
    assert float(variables[1]) == pytest.approx(0.9, rel=1e-5)
    with pytest.raises(ValueError, match='got no gradient for'):
        optimizer.apply_gradients([(None, variables[0])])


def test_rows_of_an_embedding_are_clipped_as_one_gradient():
    arguments = {'rho': 0.0, 'epsilon': 1e-12}
    optimizer = make(create_train_step(), learning_rate=1.0, kind='rmsprop', gradient_clipping=1.0, arguments=arguments)
    variable = tf.Variable(tf.zeros((3, 1)))
    rows = tf.IndexedSlices(tf.constant([[3.0], [3.0], [8.0]]), tf.constant([0, 0, 1]), tf.constant([3, 1]))
    optimizer.apply_gradients([(rows, variable)])
    slot = optimizer.keras.variables[-1]
    np.testing.assert_allclose(slot.numpy(), [[0.36], [0.64], [0.0]], rtol=1e-5)


@pytest.mark.parametrize(
    ('strategy', 'jit_compile'),
    [('default', False), ('mirrored:2', False), pytest.param('default', True, marks=lanes.compiles)],
)
@pytest.mark.parametrize('clip_by', ['global_norm', 'value'])
def test_a_summary_has_statistics_of_the_global_batchs_gradients(strategy, jit_compile, clip_by):
    rate = schedules.linear(1.0, 0.0, 4)
    problem = Problem(strategy, gradient_clipping=1.0, clip_by=clip_by, size=4, learning_rate=rate)
    problem.train_step.assign(1)
    found = problem.summary(jit_compile)
    means = ITEMS.astype(np.float64).mean(axis=0)
    gradients, clipped = [means, [means.sum()]], [np.ravel(part) for part in _clipped(clip_by, 1.0)]
    expected = {
        'learning_rate': 0.75,
        'norm': np.linalg.norm(np.concatenate(gradients)),
        'clipped_norm': np.linalg.norm(np.concatenate(clipped)),
        'a_0/gradient_norm': np.linalg.norm(means),
        'b_0/variable_norm': 2.0,
        'a_0/zero_gradient_share': 0.0,
    }
    for name, value in expected.items():
        replicas = found[f'gradients/it/{name}']
        assert len(replicas) == problem.strategy.num_replicas_in_sync
        np.testing.assert_allclose(replicas, value, rtol=1e-6, err_msg=name)
    assert ('gradients/it/noise_scale' in found) == (strategy != 'default')
    least, greatest, *counts = found['gradients/it/a_0/gradient'][0]
    assert (least, greatest, sum(counts)) == pytest.approx((means.min(), means.max(), 3))
    assert sum(found['gradients/it/b_0/variable'][0][2:]) == 1


def test_units_that_are_never_active_have_no_gradient():
    """Against the activations themselves: 3 of 8 units are dead on the batch, one is active on a part of it."""
    generator = np.random.default_rng(0)
    inputs = tf.constant(generator.uniform(-1.0, 1.0, (16, 5)), tf.float32)
    kernel = tf.constant(generator.uniform(-1.0, 1.0, (5, 8)), tf.float32)
    bias = tf.Variable(np.float32([-9.0, 9.0, -9.0, 9.0, -9.0, 9.0, 9.0, 0.0]), name='bias')
    with tf.GradientTape() as tape:
        active = tf.nn.relu(inputs @ kernel + bias)
        loss = tf.reduce_mean(tf.square(tf.reduce_sum(active, axis=1) - 1.0))
    never = np.all(active.numpy() == 0.0, axis=0).mean()
    with summary_tensors.collecting() as found:
        optimizers.summarize('it', [bias], [tape.gradient(loss, bias)], tf.constant(1.0), tf.constant(1.0))
    assert never == 3 / 8
    assert float(found['gradients/it/bias_0/zero_gradient_share'][0]) == pytest.approx(never)


def test_without_a_summary_no_statistics_are_computed():
    operations = {}
    for summarized in (False, True):
        problem = Problem('mirrored:2', gradient_clipping=1.0)
        step = tf.function(functools.partial(problem._all, summarized=summarized), autograph=False)
        with problem.strategy.scope():
            program = step.get_concrete_function(tf.TensorSpec(ITEMS.shape))
        operations[summarized] = [operation.type for operation in program.graph.get_operations()]
    assert operations[False].count('L2Loss') == 2 * 2  # the global norm, on each replica
    assert operations[True].count('L2Loss') > 2 * 2


@pytest.mark.parametrize('name', ['dqn', pytest.param('bc', marks=pytest.mark.slow)])
def test_one_replica_estimates_the_noise_scale_by_half_of_its_batch(name):
    """A batch whose halves are equal has no noise; another one has."""
    agent = ALGORITHMS[name].make()
    data = example_data.sequences(agent, 8, ALGORITHMS[name].length)
    same = tf.nest.map_structure(lambda leaf: tf.concat([leaf, leaf], axis=0), data)

    def step(data):
        with summary_tensors.collecting() as found:
            agent.train(data)
        return [each for tag, each in found.items() if tag.endswith('/noise_scale')]

    scales = []
    for each in (same, example_data.sequences(agent, 16, ALGORITHMS[name].length)):
        scales += [abs(float(scale[0])) for scale in tf.function(step, autograph=False)(each)]
    assert len(scales) == 2 and scales[0] < 1e-2 * scales[1]


def test_the_noise_scale_is_the_papers():
    """For random gradients of known mean and variance it is their ratio."""
    size, replicas, mean, deviation = 16, 2, np.array([0.6, 0.8, 0.0]), np.array([1.0, 2.0, 3.0])
    strategy = strategies.make(f'mirrored:{replicas}')
    generator = np.random.default_rng(1)
    with strategy.scope():
        noise = optimizers.GradientNoise(size)

    @tf.function
    def update(items):
        def replica(items):
            context = tf.distribute.get_replica_context()
            own = tf.reduce_sum(items[context.replica_id_in_sync_group], axis=0) / (size * replicas)
            total = context.all_reduce('SUM', own)
            return noise.update([own], tf.norm(total), replicas)

        return strategy.run(replica, (items,))

    sums = np.zeros(2)
    for _ in range(400):
        items = generator.normal(mean, deviation, (replicas, size, 3)).astype(np.float32)
        noise.averages.assign(tf.zeros(2))
        update(tf.constant(items))
        sums += noise.averages.numpy() / (1 - 0.9)
    square, trace = sums / 400
    assert square == pytest.approx(1.0, rel=0.15)
    assert trace == pytest.approx(14.0, rel=0.15)
    before = noise.averages.numpy()
    items[0, 0, 0] = np.nan
    update(tf.constant(items))
    np.testing.assert_array_equal(noise.averages.numpy(), before)


@pytest.mark.parametrize(
    ('settings', 'message'),
    [
        ({'kind': 'sgd'}, "got OptimizerOptions.kind='sgd'; need one of adam, rmsprop, or a function"),
        ({'clip_by': 'norm'}, "got OptimizerOptions.clip_by='norm'; need one of global_norm, variable_norm, value"),
        ({'clip_by': 'value'}, "got clip_by='value' without a bound"),
        ({'gradient_clipping': 0.0}, r'got OptimizerOptions.gradient_clipping=0.0; need a number above 0'),
        ({'arguments': {'clipvalue': 1.0}}, 'got clipvalue in arguments; use'),
        ({'learning_rate': {'actor': 0.1}}, "got learning_rate={'actor': 0.1}; need parts of it"),
        (
            {'learning_rate': lambda share: 3e-4 * share},
            r'got a learning_rate function that fails for a train step \(TypeError: .*; need a number, or a function',
        ),
        ({'learning_rate': 'auto'}, r"got learning_rate='auto', which fails for a train step .*; need a number, or"),
    ],
)
def test_rejects_invalid_arguments(settings, message):
    with pytest.raises((ValueError, TypeError), match=message):
        make(create_train_step(), **settings)


def test_parts_have_rates_of_their_own_and_the_algorithms_defaults():
    schedule = schedules.constant(0.5)
    options = optimizers.OptimizerOptions({'critic': 0.3, 'value': schedule})
    rates = {'critic': 0.1, 'actor': 0.2, 'value': None, 'other': None}
    made = options.make(create_train_step(), 4, rates, 40.0, unclipped=('actor',))
    found = {name: float(optimizer.learning_rate) for name, optimizer in made.items()}
    assert found == pytest.approx({'critic': 0.3, 'actor': 0.2, 'value': 0.5})
    assert {name: optimizer._gradient_clipping for name, optimizer in made.items()} == {
        'critic': 40.0,
        'actor': None,
        'value': 40.0,
    }
    alike = optimizers.OptimizerOptions(0.4, gradient_clipping=None).make(create_train_step(), 4, rates, 40.0)
    assert {name: optimizer._gradient_clipping for name, optimizer in alike.items()} == {'critic': None, 'actor': None}
    assert float(alike['actor'].learning_rate) == pytest.approx(0.4)


def test_a_keras_optimizer_of_ones_own():
    optimizer = make(create_train_step(), kind=tf.keras.optimizers.SGD, arguments={'momentum': 0.5})
    variable = tf.Variable(1.0)
    optimizer.apply_gradients([(tf.constant(1.0), variable)])
    assert float(variable) == pytest.approx(0.9)
