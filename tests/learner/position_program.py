"""A program for multi_worker_test: a worker that takes what is left of its part of a dataset.

Arguments: directory, pipeline, train steps. It appends the numbers of its batches to `<worker>.txt`.
"""

import itertools
import pathlib
import sys

import tensorflow as tf
from absl import logging

from tests.learner import worker_program
from tests.testing.learner import without_autotuning
from tflearn.core import strategies
from tflearn.core.background import Watchdog
from tflearn.files.run_dir import RunDir
from tflearn.learner import checkpoints
from tflearn.learner.learner import Learner, LearnerOptions
from tflearn.learner.train_loop import LoopOptions

NUM_BATCHES = 10  # of each worker in an epoch


def _numbers(context):
    numbers = tf.data.Dataset.range(NUM_BATCHES * context.num_input_pipelines)
    return numbers.shard(context.num_input_pipelines, context.input_pipeline_id)


def _batches(numbers):
    batches = numbers.map(lambda number: (worker_program.transitions(number * 4, 4), number))
    return without_autotuning(batches)


def shuffled(context):
    return _batches(_numbers(context).shuffle(NUM_BATCHES, seed=3).repeat())


def interleaved(context):
    halves = _numbers(context).batch(5)
    items = halves.interleave(tf.data.Dataset.from_tensor_slices, cycle_length=2, num_parallel_calls=2)
    return _batches(items.shuffle(3).repeat()).prefetch(3)


def generated(context, consumed):
    """A generator of Python, which TensorFlow cannot save."""
    worker, workers = context.input_pipeline_id, context.num_input_pipelines
    own = range(worker, NUM_BATCHES * workers, workers)
    left = itertools.islice(itertools.cycle(own), consumed, None)
    spec = tf.TensorSpec((), tf.int64)
    return _batches(tf.data.Dataset.from_generator(lambda: left, output_signature=spec).repeat())


def unsaved(context):
    """The same without a function that skips."""
    return generated(context, 0)


def main(directory, pipeline, steps):
    logging.set_verbosity(logging.INFO)
    strategy = strategies.make('multi_worker', timeout_secs=120)
    worker = strategies.layout(strategy).worker
    with strategy.scope():
        agent = worker_program.make_agent()
    file = pathlib.Path(directory) / f'{worker}.txt'

    def after_step(element, loss_info):
        tf.print(element[1], output_stream=f'file://{file}')

    options = LearnerOptions(None, None, loop=LoopOptions(after_step=after_step))
    with (
        checkpoints.writable_run_dir(strategy, RunDir(directory)) as run_dir,
        Learner(agent, globals()[pipeline], run_dir, strategy=strategy, options=options) as learner,
    ):
        learner.run(int(steps))


if __name__ == '__main__':
    with Watchdog(200).guard('this program'):  # also if the test that started it is gone
        main(*sys.argv[1:])
