"""The train job: draws from the replay server, trains, publishes weights, exports policies, saves checkpoints."""

import contextlib
import dataclasses
import random
import threading
from collections.abc import Callable, Collection, Mapping, Sequence

import tensorflow as tf
from absl import logging

from tflearn import waiting
from tflearn.distribute import strategies, workers
from tflearn.distribute.watchdog import Watchdog
from tflearn.errors import UserValueError
from tflearn.experience import Experience, Queue
from tflearn.jobs import batch_source, initial_agent, run_outputs
from tflearn.jobs.policy_exports import ExportOptions
from tflearn.jobs.train_session import TrainSession
from tflearn.jobs.train_settings import (
    CHECKPOINT_INTERVAL_STEPS,
    SUMMARY_INTERVAL_STEPS,
    Settings,
    with_intervals,
)
from tflearn.learner.learner import LearnerOptions
from tflearn.learner.stop_conditions import StopConditions
from tflearn.replay import connection
from tflearn.replay.storage import REPLAY, Storage
from tflearn.run_dir import RunDir, Status
from tflearn.types import AgentFactory, EnvironmentFactory, specs_of

_TRACE_SECS = 300.0
_WRITE_SECS = 600.0  # checkpoints and exports time out after that


def train(
    *,
    run_dir: RunDir,
    replay_address: str,
    connect_timeout_secs: float,
    stop: threading.Event,
    make_environment: EnvironmentFactory,
    make_agent: AgentFactory,
    experience: Experience,
    num_train_steps: int,
    max_env_steps: int | None = None,
    max_secs: float | None = None,
    strategy: str = 'default',
    precision: str = 'float32',
    inter_op_threads: int | None = None,
    steps_per_call: int = 200,
    checkpoint_interval_steps: int | None = CHECKPOINT_INTERVAL_STEPS,
    summary_interval_steps: int | None = SUMMARY_INTERVAL_STEPS,
    publish_interval_steps: int = 200,
    export_interval_steps: int = 2_000,
    replica_check_interval_steps: int | None = None,
    options: LearnerOptions = LearnerOptions(),  # noqa: B008 - it is frozen
    exports: ExportOptions = ExportOptions(),  # noqa: B008 - it is frozen
    data_timeout_secs: float = 600.0,
    data_addresses: Sequence[str] = (),
    seed: int | None = None,
    initial_checkpoint: str | None = None,
    initial_prefixes: Collection[str] | Mapping[str, str] = ('agent',),
    on_restored: Callable[[], None] = lambda: None,
    describe: Callable[[], Mapping[str, str]] = dict,
) -> None:
    """Trains until a stop condition is reached, a stop is requested in the run directory, or it is stopped.

    Args:
      run_dir: the run's directory, for checkpoints, summaries, policies and the result.
      replay_address: the replay server's address, 'host:port'.
      connect_timeout_secs: how long to wait for the server.
      stop: ends the job when set; a checkpoint is saved.
      make_environment: makes the run's environment; called once, for its specs.
      make_agent: makes the run's agent.
      experience: the run's experience settings.
      num_train_steps: the run's number of train steps.
      max_env_steps: the number of environment steps at which the run ends; None is no limit.
      max_secs: the training time, over all sessions, at which the run ends [seconds]; None is no limit. Waiting for
        data counts; compiling, and everything else before the first train steps of a session, does not.
      strategy: where train steps run, see `strategies.make`.
      precision: 'float32', or 'bfloat16' for the networks' inner layers.
      inter_op_threads: threads for TensorFlow's operations; None is one per core. Small networks are faster with 1.
      steps_per_call: train steps in one call of the compiled program; at most `publish_interval_steps` are taken. If
        the experience has an `iteration`, a call is an iteration, after which the weights are published if that is due.
      checkpoint_interval_steps: train steps between two checkpoints; None saves only the last one. It can be given here
        or in `options`.
      summary_interval_steps: train steps between two summaries; None writes none at fixed intervals. It can be given
        here or in `options`.
      publish_interval_steps: train steps between two publications of the weights.
      export_interval_steps: train steps between two exports of the policies.
      replica_check_interval_steps: train steps between two comparisons of the replicas' variables; None makes none.
      options: the learner's settings.
      exports: which policies are exported, and which versions are kept.
      data_timeout_secs: how long to wait for a batch.
      data_addresses: the addresses of the replay servers that share a queue: items are taken from all of them. Weights
        and reports go through `replay_address`. None is that one alone.
      seed: the seed of the networks' first weights and of all draws; None draws one, logs it and adds it to the
        summaries.
      initial_checkpoint: the checkpoint of another run whose values this one begins with: the run's directory, its
        checkpoints' directory, or a checkpoint's path prefix. Ignored if this run has a checkpoint.
      initial_prefixes: the prefixes of the names of these values, or a mapping from prefixes here to prefixes there;
        see `warm_start.load`. Optimizers are not loaded. Target networks begin as copies of the loaded networks.
      on_restored: called when the checkpoint was restored, before anything is written to the run directory.
      describe: called before the first train step; returns markdown texts by tag that TensorBoard shows.

    Raises:
      TimeoutError: if the server is not found, or no data arrive in time.
      PeerStopped: if another worker was asked to stop.
      ValueError: if arguments contradict each other, if the server's tables or a checkpoint are made for other data or
        networks, or if no part of the agent computes in `precision`.
    """
    _check(steps_per_call, data_addresses, experience)
    conditions = StopConditions(num_train_steps, max_env_steps, max_secs)
    options = with_intervals('train', options, checkpoint_interval_steps, summary_interval_steps)
    settings = Settings(publish_interval_steps, export_interval_steps, options, exports, replica_check_interval_steps)
    if run_outputs.is_done(run_dir):
        return
    placement = _make_strategy(strategy, inter_op_threads)
    with (
        workers.writable_run_dir(placement, run_dir) as run_dir,
        contextlib.closing(Watchdog(max(data_timeout_secs, _WRITE_SECS) + _TRACE_SECS)) as watchdog,
        run_outputs.stopped_status(run_dir) as stopped,
    ):
        with waiting.may_exit(stop, stopped):
            with watchdog.guard('the construction of the agent'):
                seed = _seed(seed, placement)
                agent = initial_agent.make(make_agent, specs_of(make_environment), experience, placement, precision)
            storage = Storage(experience, initial_agent.data_spec(agent, experience))
            _wait_for_replay(run_dir, [replay_address, *data_addresses], storage, connect_timeout_secs, stop)
            with watchdog.guard('the construction of the learner'):
                initial_agent.load(agent, initial_checkpoint, initial_prefixes, run_dir)
                servers = data_addresses or [replay_address]
                source = batch_source.make(servers, storage, agent, placement, data_timeout_secs, seed)
                texts = lambda: {'run/seed': str(seed), **describe()}  # noqa: E731
                settings = dataclasses.replace(settings, texts=texts, watchdog=watchdog)
                session = TrainSession(run_dir, replay_address, agent, storage, source, placement, settings, conditions)
                session.begin(on_restored)
        session.run(stop, batch_source.steps_per_call(source, min(steps_per_call, publish_interval_steps)))


def _make_strategy(name: str, inter_op_threads: int | None) -> tf.distribute.Strategy:
    strategies.use_threads(inter_op_threads)  # before any other use of TensorFlow
    return strategies.make(name)


def _seed(seed: int | None, placement: tf.distribute.Strategy) -> int:
    """Seeds Python, numpy and TensorFlow, differently on each worker; the first weights are the chief's.

    Returns:
      The run's seed; the chief draws it if there is none.
    """
    if seed is None:
        seed = workers.Agreement(placement).of_chief(random.SystemRandom().randrange(2**31))
        logging.info('got no seed; drew %d: the same seed gives the same draws', seed)
    tf.keras.utils.set_random_seed(seed + strategies.layout(placement).worker)
    return seed


def _check(steps_per_call: int, data_addresses: Sequence[str], experience: Experience) -> None:
    if steps_per_call < 1:
        raise UserValueError(f'got steps_per_call={steps_per_call}; need at least 1')
    if data_addresses and not isinstance(experience.replay, Queue):
        raise UserValueError(f'got data_addresses with Experience.replay={experience.replay!r}; need a Queue, or none')


def _wait_for_replay(
    run_dir: RunDir, addresses: Sequence[str], storage: Storage, timeout_secs: float, stop: threading.Event
) -> None:
    """Waits for the servers.

    Raises:
      TimeoutError: if one is not found in time.
      Stopped: if `stop` is set.
    """
    status = Status(run_dir.status('train'), 'train')
    for address in dict.fromkeys(addresses):
        status.update(f'waiting for the replay server at {address}')
        connection.wait_for_table(address, REPLAY, storage.signature, timeout_secs, stop)
