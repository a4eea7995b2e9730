"""What each replica receives of a batch that the host makes: its own part alone."""

import numpy as np
import pytest
import tensorflow as tf

from tflearn.core import strategies
from tflearn.core.train_step import create_train_step
from tflearn.learner.batches import SourceBatches
from tflearn.sampling.source import Source

NUM_REPLICAS, ITEMS = 4, 12


class Counted(Source):
    """A `Source` of numbered items for all replicas; counts the batches that it makes."""

    def __init__(self, max_draw_steps=8):
        self.max_draw_steps = max_draw_steps
        self.made = tf.Variable(0, trainable=False)

    def grant(self, num_steps):
        return num_steps

    def draw(self, num_steps, seed):
        return 100 * tf.range(tf.cast(num_steps, tf.int64))

    def batch(self, drawn, i):
        self.made.assign_add(1)
        return tf.gather(drawn, i) + tf.range(ITEMS, dtype=tf.int64), {'row': tf.zeros((ITEMS, 3))}


@pytest.fixture(scope='module')
def mirrored():
    return strategies.make(f'mirrored:{NUM_REPLICAS}')


def _local(strategy, value):
    return [part.numpy().tolist() for part in strategy.experimental_local_results(value)]


def test_each_replica_gets_its_part_in_order(mirrored):
    element = {'a': tf.range(8), 'b': (tf.ones((4, 2, 3), tf.bool), ())}
    parts = strategies.divided(mirrored, element, NUM_REPLICAS)
    assert _local(mirrored, parts['a']) == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert [part.shape.as_list() for part in mirrored.experimental_local_results(parts['b'][0])] == [[1, 2, 3]] * 4
    assert strategies.divided(mirrored, element, 1) is element


def _batches(strategy, **given):
    source = Counted(**given)
    with strategy.scope():
        return source, SourceBatches(source, strategy, create_train_step())


# One more for each draw is made for the mean of its info; of many batches one is made ahead and not used.
@pytest.mark.parametrize(('max_draw_steps', 'made'), [(8, 5 + 1 + 1), (1, 5 + 5)])
def test_replicas_see_the_same_batches_in_order(mirrored, max_draw_steps, made):
    source, batches = _batches(mirrored, max_draw_steps=max_draw_steps)
    sums = lambda element: tf.cast(tf.reduce_sum(element[0]), tf.float32)  # noqa: E731

    @tf.function
    def five(num_steps):
        def take(seen, element):
            shapes = {part.shape.as_list()[0] for part in mirrored.experimental_local_results(element[0])}
            assert shapes == {ITEMS // NUM_REPLICAS}, 'and not the batch of all replicas'
            totals = mirrored.experimental_local_results(mirrored.run(sums, (element,)))
            return seen + tf.stack(totals), tf.constant(True), ()

        return batches.loop(take, tf.zeros([NUM_REPLICAS]), num_steps)

    source.made.assign(0)
    taken, _, seen, _ = five(tf.constant(5, tf.int64))
    steps = np.arange(5) if max_draw_steps > 1 else np.zeros(5)
    numbers = np.arange(ITEMS).reshape(NUM_REPLICAS, -1)
    expected = [sum(np.sum(100 * step + own) for step in steps) for own in numbers]
    assert int(taken) == 5
    # The vector ends with the mean of the info's `row`, which is 0.
    np.testing.assert_allclose(seen[:NUM_REPLICAS], expected)
    assert source.made.numpy() == made


def test_the_batch_of_one_replica_is_on_its_device_before_the_step_that_needs_it(monkeypatch):
    """With a CPU in place of a GPU, of which there is none here."""
    monkeypatch.setattr(strategies, 'only_stop', lambda strategy: '/device:CPU:1')
    strategy = strategies.make('default')
    source, batches = _batches(strategy)

    @tf.function
    def five(num_steps):
        def take(seen, element):
            return seen + tf.cast(tf.reduce_sum(element[0]), tf.float32), tf.constant(True), ()

        return batches.loop(take, tf.zeros([1]), num_steps)

    source.made.assign(0)
    taken, _, seen, _ = five(tf.constant(5, tf.int64))
    assert int(taken) == 5
    assert seen[0] == sum(sum(100 * step + np.arange(ITEMS)) for step in range(5))
    assert source.made.numpy() == 5 + 1 + 1
    functions = five.get_concrete_function(tf.TensorSpec((), tf.int64)).graph.as_graph_def().library.function
    copies = [node.op for function in functions for node in function.node_def if node.device.endswith('CPU:1')]
    assert copies.count('Identity') == len(copies) > 0


@pytest.mark.parametrize(('shape', 'wrong'), [((10, 2), '(10, 2)'), ((None, 2), '(None, 2)'), ((), '()')])
def test_rejects_a_batch_that_does_not_divide(shape, wrong):
    spec = {'fits': tf.TensorSpec((8,)), 'wrong': tf.TensorSpec(shape)}
    with pytest.raises(ValueError) as error:
        strategies.check_divides(spec, NUM_REPLICAS)
    assert f'got wrong of the shape {wrong} in the batch for 4 replicas; need a number of items that 4' in str(error)
    strategies.check_divides(spec, 1)


def test_names_the_next_batch_that_divides():
    with pytest.raises(ValueError, match='make the batch 12 items'):
        strategies.check_divides(tf.TensorSpec((10,)), NUM_REPLICAS)


def test_a_learner_refuses_a_batch_that_does_not_divide(mirrored):
    with mirrored.scope():
        source = Counted()
        source.batch = lambda drawn, i: (tf.range(10), {})
        batches = SourceBatches(source, mirrored, create_train_step())
    with pytest.raises(ValueError, match=r'got 0 of the shape \(10,\) in the batch for 4 replicas'):
        _ = batches.element_spec


def test_parts_wait_where_their_device_can_read_them():
    stop = strategies._first_stop
    assert stop('/job:worker/replica:0/task:1/device:TPU:3') == '/job:worker/replica:0/task:1/device:CPU:0'
    assert stop('/replica:0/task:0/device:GPU:1') == '/replica:0/task:0/device:GPU:1'
    assert stop('/replica:0/task:0/device:CPU:1') is None
    with tf.Graph().as_default():
        assert strategies.on('/device:CPU:1', tf.zeros(3)).device == '/device:CPU:1'
    assert strategies.only_stop(strategies.make('cpu')) is None
    assert strategies.only_stop(strategies.make('default')) is None
