"""A program for multi_worker_test: one worker of TF_CONFIG. Arguments: directory, what happens.

It trains a DQN agent for 20 train steps with a global batch of 8, or until it is ended. After 20 steps, and at the end,
it leaves `<worker>.npz` and `<worker>.json`.
"""

import itertools
import json
import pathlib
import signal
import sys
import threading

import numpy as np
import tensorflow as tf
from absl import logging
from tf_agents.specs import tensor_spec
from tf_agents.trajectories import trajectory

from tflearn.agents import dqn
from tflearn.core import strategies, workers
from tflearn.core.background import Watchdog
from tflearn.core.experience import Experience
from tflearn.core.train_step import create_train_step
from tflearn.core.types import EnvironmentSpecs
from tflearn.core.workers import ReplicaConsistency, named_variables
from tflearn.files.run_dir import RunDir
from tflearn.learner import checkpoints
from tflearn.learner.learner import Learner, LearnerOptions
from tflearn.learner.summaries import SummaryOptions
from tflearn.learner.train_loop import LoopOptions
from tflearn.learner.triggers import PeriodicAction, PeriodicSave
from tflearn.networks.networks import NetworkOptions

GLOBAL_BATCH_SIZE = 8
NUM_STEPS, STEPS_PER_CALL = 20, 4
SUMMARIES = SummaryOptions(10)
SPECS = EnvironmentSpecs(
    tensor_spec.BoundedTensorSpec((3,), tf.float32, -1.0, 1.0, 'observation'),
    tensor_spec.BoundedTensorSpec((), tf.int64, 0, 1, 'action'),
)


def make_agent():
    tf.random.set_seed(1)
    agent = dqn.make_agent(SPECS, create_train_step(), Experience(), network=NetworkOptions(fc_layer_params=(7,)))
    for i, variable in enumerate(agent.policy.variables()):
        variable.assign(tf.random.stateless_uniform(variable.shape, (i, 2), -0.5, 0.5))
    return agent


def transitions(first_row, size):
    rows = tf.random.stateless_uniform((1 << 12, 2, 3), (3, 4), -1.0, 1.0)[first_row : first_row + size]
    ones = tf.ones((size, 2), tf.int32)
    action = tf.cast(rows[..., 0] > 0, tf.int64)
    return trajectory.Trajectory(ones, rows, action, (), ones, rows[..., 1], tf.ones((size, 2)))


def dataset_fn(first_step, stuck_at):
    def make(context):
        """The pipeline's part of each step's global batch: batches for its replicas, one after the other."""
        here = context.num_replicas_in_sync // context.num_input_pipelines
        size = context.get_per_replica_batch_size(GLOBAL_BATCH_SIZE)

        def batch(i):
            replica = context.input_pipeline_id * here + i % here
            step = first_step + i // here
            if stuck_at is not None:
                tf.numpy_function(lambda step: wait_at(step, stuck_at), [step], ())
            first_row = tf.cast(step, tf.int32) * GLOBAL_BATCH_SIZE + tf.cast(replica, tf.int32) * size
            return transitions(first_row, size), {}

        return tf.data.Dataset.counter().map(batch).repeat()

    return make


def wait_at(step, stuck_at):
    if step == stuck_at:
        threading.Event().wait(600)


def main(directory, event):
    logging.set_verbosity(logging.INFO)
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    strategy = strategies.make('multi_worker', timeout_secs=120)
    layout = strategies.layout(strategy)
    logging.info(layout.describe(GLOBAL_BATCH_SIZE // layout.replicas))
    with strategy.scope():
        agent = make_agent()
    agreement, watchdog = workers.Agreement(strategy), Watchdog(20 if event == 'stuck' and layout.worker == 0 else 120)
    with workers.peer_failures(strategy), checkpoints.writable_run_dir(strategy, RunDir(directory)) as run_dir:
        stuck_at = 10 if event == 'stuck' and layout.worker == 1 else None
        with watchdog.guard('the first trace'):
            # A second run goes on where the first one was in the dataset.
            options = LearnerOptions(
                checkpoint_interval_steps=None,
                checkpoint_interval_secs=1e-6,  # after each call
                summaries=SummaryOptions(None) if event == 'endless' else SUMMARIES,
                loop=LoopOptions(jit_compile=event == 'xla' or 'auto'),
            )
            learner = Learner(agent, dataset_fn(0, stuck_at), run_dir, strategy=strategy, options=options)
            agreement.check_same(learner.step, 'the restored train step')
        assert agreement.least(layout.worker + 5) == agreement.of_chief(layout.worker + 5) == 5
        assert agreement.greatest(layout.worker + 5) == 6
        assert saved_steps(strategy, clock_secs=[20.0, 5.0][layout.worker]) == [3, 5], 'by the clock of the chief'
        try:
            agreement.check_same(layout.worker, 'the worker')
        except ValueError as error:
            logging.info(error)
        consistency = ReplicaConsistency(strategy, agent)
        trigger, before = PeriodicAction(consistency, every_steps=STEPS_PER_CALL), learner.step
        while not agreement.on_any(stop.is_set()) and (event == 'endless' or learner.step < before + NUM_STEPS):
            with watchdog.guard(f'{STEPS_PER_CALL} train steps from train step {learner.step}'):
                learner.run(STEPS_PER_CALL)
                trigger(learner.step - STEPS_PER_CALL, learner.step)
            if learner.step == before + NUM_STEPS:
                leave(pathlib.Path(directory), layout.worker, agent, learner.step, run_dir, consistency)
            logging.info('at train step %d', learner.step)
        with watchdog.guard('the last checkpoint'):
            learner.close()
        leave(pathlib.Path(directory), layout.worker, agent, learner.step, run_dir, consistency)


def saved_steps(strategy, clock_secs):
    """Returns the train steps that are saved each 30 s, if a step takes `clock_secs` on this worker's clock."""
    now, saved = itertools.count(0.0, clock_secs), []
    save = PeriodicSave(lambda: saved.append(step), None, 30.0, strategy, clock=lambda: next(now))
    for step in range(1, 6):
        save(step - 1, step)
    return saved


def values_of(agent):
    return {name.replace('/', '|'): variable.numpy() for name, variable in named_variables(agent).items()}


def leave(directory, worker, agent, step, run_dir, consistency):
    np.savez(directory / f'{worker}.npz', **values_of(agent))
    facts = {'step': step, 'run_dir': str(run_dir.root), 'difference': consistency.difference}
    (directory / f'{worker}.json').write_text(json.dumps(facts))


if __name__ == '__main__':
    with Watchdog(300).guard('this program'):  # also if the test that started it is gone
        main(*sys.argv[1:])
