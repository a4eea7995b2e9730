"""The train job: draws from the replay server, trains, publishes weights, exports policies, saves checkpoints."""

import threading
from collections.abc import Callable

import tensorflow as tf
from absl import logging

from tflearn.experience import AgentFactory, Experience
from tflearn.jobs.train_session import Intervals, Limits, TrainSession
from tflearn.learner import strategies
from tflearn.replay import connection, tables
from tflearn.replay.datasets import ReplayStream
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
    steps_per_call: int = 200,
    checkpoint_interval_steps: int = 5_000,
    summary_interval_steps: int = 1_000,
    publish_interval_steps: int = 200,
    export_interval_steps: int = 2_000,
    data_timeout_secs: float = 600.0,
    seed: int | None = None,
    on_restored: Callable[[], None] = lambda: None,
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
      strategy: 'default', 'mirrored' or 'mirrored:N'.
      steps_per_call: train steps in one call of the compiled program.
      checkpoint_interval_steps: train steps between two checkpoints.
      summary_interval_steps: train steps between two summaries.
      publish_interval_steps: train steps between two publications of the weights.
      export_interval_steps: train steps between two exports of the greedy policy.
      data_timeout_secs: how long to wait for a batch.
      seed: of the network's first weights; None draws one.
      on_restored: called once the run directory has proved to be this run's, before anything is written there.

    Raises:
      TimeoutError: if the server does not show up, or no data come.
      ValueError: if the server's tables or the checkpoint are made for other data or networks.
    """
    if steps_per_call < 1:
        raise ValueError(f'got steps_per_call={steps_per_call}; need at least 1')
    limits = Limits(num_train_steps, max_env_steps, max_secs)
    intervals = Intervals(
        checkpoint_interval_steps, summary_interval_steps, publish_interval_steps, export_interval_steps
    )
    if line := run_dir.done_line():
        logging.info(line)
        return
    if seed is not None:
        tf.keras.utils.set_random_seed(seed)
    placement = strategies.make(strategy)
    specs = specs_of(make_environment)
    with placement.scope():
        agent = make_agent(specs, create_train_step(), experience)
    layout = tables.row_layout(agent.collect_data_spec)
    status = Status(run_dir.status('train'), 'train')
    status.update(f'waiting for the replay server at {replay_address}')
    signature = layout.signature(experience.sequence_length)
    try:
        connection.wait_for_table(replay_address, tables.REPLAY, signature, connect_timeout_secs, stop)
    except Stopped:
        status.update('stopped')
        return
    stream = ReplayStream(replay_address, experience, layout, data_timeout_secs)
    session = TrainSession(run_dir, replay_address, agent, experience, stream, placement, intervals, limits)
    on_restored()
    session.run(stop, steps_per_call)
