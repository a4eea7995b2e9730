"""The train job: draws from the replay server, trains, publishes weights, exports policies, saves checkpoints."""

import dataclasses
import threading
from collections.abc import Callable, Mapping

import tensorflow as tf
from absl import logging

from tflearn.experience import AgentFactory, Experience
from tflearn.jobs.train_session import Settings, TrainSession
from tflearn.learner import precision as precisions
from tflearn.learner import strategies
from tflearn.learner.learner import LearnerOptions
from tflearn.learner.limits import Limits
from tflearn.learner.summaries import SummaryOptions
from tflearn.replay import connection
from tflearn.replay.mirror import ReplayMirror
from tflearn.replay.sampler import ReplaySampler
from tflearn.replay.storage import REPLAY, Storage
from tflearn.run_dir import RunDir, Status
from tflearn.specs import EnvironmentFactory, specs_of
from tflearn.steps import create_train_step
from tflearn.waiting import Stopped


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
    steps_per_call: int = 200,
    checkpoint_interval_steps: int = 5_000,
    summary_interval_steps: int = 1_000,
    publish_interval_steps: int = 200,
    export_interval_steps: int = 2_000,
    replica_check_interval_steps: int | None = None,
    options: LearnerOptions = LearnerOptions(),  # noqa: B008 - it is frozen
    data_timeout_secs: float = 600.0,
    seed: int | None = None,
    on_restored: Callable[[], None] = lambda: None,
    describe: Callable[[], Mapping[str, str]] = dict,
) -> None:
    """Trains until a limit is reached, a stop is requested in the run directory, or it is stopped.

    Args:
      run_dir: for checkpoints, summaries, policies and the result.
      replay_address: 'host:port' of the replay server.
      connect_timeout_secs: how long to wait for the server.
      stop: ends the job when set; a checkpoint is saved.
      make_environment: of the run; made once, for its specs.
      make_agent: of the run.
      experience: of the run.
      num_train_steps: train steps of the run.
      max_env_steps: environment steps of the run at which training ends; None is no limit.
      max_secs: seconds of training, over all sessions of the run, at which it ends; None is no limit.
      strategy: where train steps run, see `strategies.make`.
      precision: 'float32', or 'bfloat16' for the networks' inner layers.
      steps_per_call: train steps in one call of the compiled program.
      checkpoint_interval_steps: train steps between two checkpoints.
      summary_interval_steps: train steps between two summaries.
      publish_interval_steps: train steps between two publications of the weights.
      export_interval_steps: train steps between two exports of the greedy policy.
      replica_check_interval_steps: train steps between two comparisons of all variables over the replicas; None makes
        none.
      options: the learner's further settings; its intervals are those above.
      data_timeout_secs: how long to wait for a batch.
      seed: of the network's first weights; None draws one.
      on_restored: called once the run directory has proved to be this run's, before anything is written there.
      describe: called before the first train step, for texts by tag, in markdown, that TensorBoard shows with the run.

    Raises:
      TimeoutError: if the server does not show up, or no data come.
      ValueError: if the server's tables or the checkpoint are made for other data or networks.
    """
    if steps_per_call < 1:
        raise ValueError(f'got steps_per_call={steps_per_call}; need at least 1')
    limits = Limits(num_train_steps, max_env_steps, max_secs)
    settings = Settings(
        checkpoint_interval_steps,
        summary_interval_steps,
        publish_interval_steps,
        export_interval_steps,
        replica_check_interval_steps,
        _with_texts(options, lambda: {'run/seed': 'none given' if seed is None else str(seed), **describe()}),
    )
    if line := run_dir.done_line():
        logging.info(line)
        return
    placement = strategies.make(strategy)  # before any other use of TensorFlow
    if seed is not None:
        tf.keras.utils.set_random_seed(seed)
    specs = specs_of(make_environment)
    with placement.scope(), precisions.use(precision):
        agent = make_agent(specs, create_train_step(), experience)
    storage = Storage(experience, agent.collect_data_spec)
    status = Status(run_dir.status('train'), 'train')
    status.update(f'waiting for the replay server at {replay_address}')
    try:
        connection.wait_for_table(replay_address, REPLAY, storage.signature, connect_timeout_secs, stop)
    except Stopped:
        status.update('stopped')
        return
    place = strategies.layout(placement)
    batch_size = experience.per_replica_batch_size * place.replicas // place.workers
    source: ReplayMirror | ReplaySampler
    if storage.mirrored:
        source = ReplayMirror(replay_address, storage, batch_size, data_timeout_secs, seed or place.worker)
    else:
        source = ReplaySampler(replay_address, storage, batch_size, data_timeout_secs)
    logging.info('%s', place.describe(experience.per_replica_batch_size))
    session = TrainSession(run_dir, replay_address, agent, storage, source, placement, settings, limits)
    on_restored()
    session.run(stop, steps_per_call)


def _with_texts(options: LearnerOptions, texts: Callable[[], Mapping[str, str]]) -> LearnerOptions:
    summaries = dataclasses.replace(options.summaries or SummaryOptions(), texts=texts)
    return dataclasses.replace(options, summaries=summaries)
