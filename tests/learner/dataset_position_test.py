"""Where a dataset is belongs to the checkpoint: a run that stops and continues takes the batches that are left."""

import collections
import functools

import numpy as np
import pytest
import tensorflow as tf

from tests.testing import lanes
from tests.testing.learner import batch, without_autotuning
from tflearn.core import strategies
from tflearn.core.errors import UserValueError
from tflearn.files.run_dir import RunDir
from tflearn.learner import xla_loop
from tflearn.learner.learner import Learner, LearnerOptions
from tflearn.learner.train_loop import LoopOptions
from tflearn.optimization.optimizers import OptimizerOptions
from tflearn.sampling.dataset_source import DatasetSource
from tflearn.sampling.mix import Mix
from tflearn.sampling.source import Source

NUM_BATCHES, EPOCHS = 10, 2


def _element(number, size=4):
    return batch(number, size), {'number': tf.cast(number, tf.float32)}


def _plain(numbers):
    return numbers.repeat(EPOCHS).map(_element)


def _shuffled(numbers, seed=None):
    return numbers.shuffle(NUM_BATCHES, seed=seed).repeat(EPOCHS).map(_element)


def _interleaved(numbers):
    halves = numbers.batch(5)
    items = halves.interleave(tf.data.Dataset.from_tensor_slices, cycle_length=2, num_parallel_calls=2)
    return items.shuffle(3).repeat(EPOCHS).map(_element, num_parallel_calls=2).prefetch(3)


def _varying(numbers):
    return numbers.shuffle(NUM_BATCHES).repeat(EPOCHS).map(lambda n: _element(n, 3 + n % 2))


def _options(taken, jit_compile='auto'):
    def after_step(element, loss_info):
        if jit_compile is not True:  # XLA has no functions of Python
            tf.py_function(lambda number: taken.append(int(number)), [element[1]['number']], ())

    return LearnerOptions(None, None, loop=LoopOptions(jit_compile=jit_compile, after_step=after_step))


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    ('pipeline', 'kind'),
    [
        (_shuffled, 'default'),
        pytest.param(_interleaved, 'mirrored:2', marks=lanes.classic),
        *(
            pytest.param(pipeline, kind, marks=SLOW)
            for pipeline, kind in (
                (_plain, 'mirrored:1'),
                (_varying, 'default'),
                (_interleaved, 'default'),
                (_shuffled, 'mirrored:2'),
                (functools.partial(_shuffled, seed=3), 'mirrored:2'),
                (_varying, 'mirrored:2'),
            )
        ),
    ],
)
def test_a_run_that_continues_takes_the_batches_that_are_left(tmp_path, make_agent, pipeline, kind):
    taken, strategy = [], strategies.make(kind)
    replicas = strategy.num_replicas_in_sync

    def dataset_fn(context):
        return without_autotuning(pipeline(tf.data.Dataset.range(NUM_BATCHES * replicas)))

    def learner():
        return Learner(make_agent(strategy), dataset_fn, RunDir(tmp_path), strategy=strategy, options=_options(taken))

    with learner() as first:
        assert first.run(12).num_steps == 12
        assert first.run(3).num_steps == 3
    with learner() as second:
        result = second.run(20)
        assert (result.num_steps, second.step, result.data_ended) == (5, 20, True)
    with learner() as third:
        result = third.run(20)
        assert (result.num_steps, third.step, result.data_ended) == (0, 20, True)
    assert collections.Counter(taken) == dict.fromkeys(range(NUM_BATCHES * replicas), EPOCHS)
    if pipeline is not _interleaved:
        epoch = NUM_BATCHES * replicas
        assert set(taken[:epoch]) == set(range(epoch)), 'each once an epoch'


def _fixed(start=0, count=NUM_BATCHES):
    numbers = np.arange(start, count)
    spec = tf.TensorSpec((), tf.int64)
    return without_autotuning(
        tf.data.Dataset.from_generator(lambda: iter(numbers), output_signature=spec).map(_element)
    )


def test_what_tensorflow_cannot_save_is_named_and_begins_again(tmp_path, make_agent, caplog):
    taken = []
    learner = lambda: Learner(  # noqa: E731
        make_agent(), lambda context: _fixed(), RunDir(tmp_path), options=_options(taken)
    )
    with learner() as first:
        first.run(3)
        first.save()
    lines = [line for line in caplog.messages if 'is in no checkpoint' in line]
    assert lines == [
        'the position in the dataset is in no checkpoint (TensorFlow cannot save its iterator: PyFunc is stateful): '
        'in a run that continues it begins again with its first batch; give dataset_fn an argument `consumed`, the '
        'number of batches to skip'
    ]
    with learner() as second:
        second.run(2)
    assert taken == [0, 1, 2, 0, 1]
    line = 'the checkpoint has no position, after 3 batches of the dataset: it begins again with its first batch'
    assert caplog.messages.count(line) == 1


@pytest.mark.parametrize('kind', ['default', pytest.param('mirrored:2', marks=SLOW)])
def test_a_dataset_that_skips_what_was_consumed(tmp_path, make_agent, caplog, kind):
    taken, calls, strategy = [], [], strategies.make(kind)
    batches = functools.partial(_fixed, count=NUM_BATCHES * strategy.num_replicas_in_sync)

    def dataset_fn(context, consumed):
        calls.append(consumed)
        return batches(consumed)

    def learner():
        agent = make_agent(strategy)
        return Learner(agent, dataset_fn, RunDir(tmp_path), strategy=strategy, options=_options(taken))

    with learner() as first:
        assert first.run(3).num_steps == 3
        first.loss()  # takes a batch for each replica
    with learner() as second:
        assert second.run(20).num_steps == 6
    replicas = strategy.num_replicas_in_sync
    left = [number for number in range(NUM_BATCHES * replicas) if number // replicas != 3]
    assert sorted(taken) == left and set(taken[: 3 * replicas]) == set(left[: 3 * replicas])
    assert calls == [0, 0, 4 * replicas]
    assert not [line for line in caplog.messages if 'begins again' in line]


def test_batches_after_the_one_that_stops_training_are_not_lost(tmp_path, make_agent):
    """They were drawn, and stacked, with it."""
    taken = []

    def dataset_fn(context):
        def element(number):
            data, info = _element(number)
            bad = (number == 3) | (number == 5)
            return data._replace(reward=tf.where(bad, np.nan, data.reward)), info

        return without_autotuning(tf.data.Dataset.range(NUM_BATCHES).map(element))

    def learner():
        agent = make_agent(optimizer=OptimizerOptions(skip_nonfinite=True))
        return Learner(agent, dataset_fn, RunDir(tmp_path), options=_options(taken))

    with pytest.raises(FloatingPointError, match='at train step 4'), learner() as first:
        first.run(8)
    with pytest.raises(FloatingPointError, match='at train step 6'), learner() as second:
        second.run(3)  # of the four that were put back
    with learner() as third:
        assert third.run(2).num_steps == 2
        assert third.run(20).num_steps == 2
    assert taken == list(range(NUM_BATCHES))


def test_batches_are_read_singly_where_xla_is_not_chosen(tmp_path, make_agent):
    """So the first train step does not wait for the batches of later ones."""
    events = []

    def element(number):
        tf.numpy_function(lambda number: events.append(('read', int(number))), [number], ())
        return _element(number)

    def after_step(element, loss_info):
        tf.py_function(lambda number: events.append(('step', int(number))), [element[1]['number']], ())

    def dataset_fn(context):
        options = tf.data.Options()
        options.experimental_optimization.inject_prefetch = False
        return without_autotuning(tf.data.Dataset.range(NUM_BATCHES).map(element)).with_options(options)

    options = LearnerOptions(None, None, loop=LoopOptions(after_step=after_step))
    agent = make_agent(units=(1500, 1500))  # too large for 'auto'
    with Learner(agent, dataset_fn, RunDir(tmp_path), options=options) as learner:
        assert learner.run(3).num_steps == 3 and not learner.jit_compiles
    assert events == [(what, number) for number in range(3) for what in ('read', 'step')]


@pytest.mark.parametrize('jit_compile', [False, pytest.param(True, marks=SLOW)])
def test_a_mix_of_datasets_has_its_shares_and_ends_with_the_first_that_ends(tmp_path, make_agent, jit_compile):
    """And a run that continues takes what is left of each."""

    def dataset_fn(size, count, first, context):
        numbers = tf.data.Dataset.range(first, first + count).repeat(EPOCHS)
        return without_autotuning(numbers.map(lambda number: (batch(number, size), tf.fill([size], number))))

    def after_step(element, loss_info):
        tf.print(*tf.unstack(element[1]), output_stream=f'file://{tmp_path}/numbers')

    def learner():
        strategy = tf.distribute.get_strategy()
        long = DatasetSource(functools.partial(dataset_fn, 3, NUM_BATCHES, 0), strategy)
        short = DatasetSource(functools.partial(dataset_fn, 1, NUM_BATCHES - 1, 100), strategy)
        options = _options([], jit_compile)
        if not jit_compile:
            options = LearnerOptions(None, None, loop=LoopOptions(jit_compile=False, after_step=after_step))
        return Learner(make_agent(), Mix([long, short]), RunDir(tmp_path), options=options)

    with learner() as first:
        assert first.run(12).num_steps == 12
    with learner() as second:
        result = second.run(20)
        assert (result.num_steps, second.step, result.data_ended) == (6, 18, True)
    if not jit_compile:
        taken = np.loadtxt(tmp_path / 'numbers', dtype=int).tolist()
        wanted = [[n % NUM_BATCHES] * 3 + [100 + n % (NUM_BATCHES - 1)] for n in range(18)]
        assert taken == wanted


@pytest.mark.parametrize(
    ('kind', 'size', 'message'),
    [('default', None, 'got a DatasetSource with batches '), ('mirrored:2', 3, 'got a DatasetSource with 2 replicas ')],
)
def test_a_mix_of_datasets_that_cannot_be_stacked_takes_one_line(tmp_path, make_agent, kind, size, message):
    strategy = strategies.make(kind)

    def dataset_fn(context):
        items = tf.data.Dataset.from_tensor_slices(_element(0, 6)[0]).repeat()
        return items.batch(3, drop_remainder=size is not None).map(lambda data: (data, ()))

    sources = [DatasetSource(dataset_fn, strategy) for _ in range(2)]
    with pytest.raises(UserValueError, match=message) as raised:
        Learner(make_agent(strategy), Mix(sources), RunDir(tmp_path), strategy=strategy)
    assert 'need one replica, and numbers of one fixed shape' in str(raised.value)


def test_another_dataset_begins_with_its_first_batch(tmp_path, make_agent, caplog):
    taken = []

    def learner(size):
        dataset = without_autotuning(tf.data.Dataset.range(NUM_BATCHES).map(lambda n: _element(n, size)))
        dataset_fn = lambda context: dataset  # noqa: E731
        return Learner(make_agent(), dataset_fn, RunDir(tmp_path), options=_options(taken))

    with learner(4) as first:
        first.run(3)
    with learner(2) as second:
        second.run(2)
    assert taken == [0, 1, 2, 0, 1]
    assert any('the position in a dataset of other elements, after 3 batches' in line for line in caplog.messages)


class Counted(Source):
    """A source of the same batches."""

    def grant(self, num_steps):
        return num_steps

    def draw(self, num_steps, seed):
        return seed + tf.range(tf.cast(num_steps, tf.int64))

    def batch(self, drawn, i):
        return _element(drawn[i])


def test_a_run_may_go_on_with_a_source_in_place_of_the_dataset(tmp_path, make_agent):
    taken = []
    dataset_fn = lambda context: without_autotuning(tf.data.Dataset.range(NUM_BATCHES).map(_element))  # noqa: E731
    for data in (dataset_fn, Counted()):
        with Learner(make_agent(), data, RunDir(tmp_path), options=_options(taken, False)) as learner:
            assert learner.run(3).num_steps == 3
    assert taken == list(range(6))


@lanes.compiles
def test_xla_takes_each_batch_once(tmp_path, make_agent, monkeypatch):
    """With the numbers of the plain program; of batches that one stack does not hold, and where the data end."""
    monkeypatch.setattr(xla_loop, 'AUTO_AFTER_STEPS', 0)
    dataset_fn = lambda context: without_autotuning(tf.data.Dataset.range(300).map(_element))  # noqa: E731
    counts, found = (3, 150, 200), {}
    for jit_compile in (False, True):
        agent, directory = make_agent(), tmp_path / str(jit_compile)
        with Learner(agent, dataset_fn, RunDir(directory), options=_options([], jit_compile)) as learner:
            results = [learner.run(count) for count in counts]
            assert learner.jit_compiles == jit_compile
        assert [result.num_steps for result in results] == [3, 150, 147]
        assert [result.info['number'] for result in results] == pytest.approx([1.0, 77.5, 226.0])
        found[jit_compile] = [*(result.loss for result in results), *agent.policy.variables()]
    for ours, theirs in zip(found[True], found[False], strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-4)
