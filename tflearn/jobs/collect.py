"""The collect job: acts with the newest weights and writes what it sees to the replay server."""

import math
import threading
import time
import zlib
from typing import Any

from absl import logging

from tflearn.actors.actor import Actor
from tflearn.actors.episode_metrics import EpisodeMetrics
from tflearn.experience import Agent, AgentFactory, Experience
from tflearn.replay import connection, reports
from tflearn.replay.storage import REPLAY, Storage
from tflearn.replay.writers import ReplayWriter
from tflearn.run_dir import RunDir, Status
from tflearn.specs import BatchedEnvironment, EnvironmentFactory
from tflearn.steps import create_train_step
from tflearn.variables.subscriber import Subscriber
from tflearn.waiting import LOG_EVERY_SECS, Stopped

_REPORT_SECS = 1.0
_STEPS_PER_RUN = 16


def collect(
    *,
    run_dir: RunDir,
    replay_address: str,
    connect_timeout_secs: float,
    stop: threading.Event,
    name: str = 'collect_0',
    make_environment: EnvironmentFactory,
    make_agent: AgentFactory,
    experience: Experience,
    num_environments: int = 8,
    refresh_interval_secs: float = 0.5,
    seed: int | None = None,
    max_env_steps: int | None = None,
) -> None:
    """Collects until training is over, it is stopped, or it has taken `max_env_steps`.

    Args:
      run_dir: for its status.
      replay_address: 'host:port' of the replay server.
      connect_timeout_secs: how long to wait for the server and for the first weights.
      stop: ends the job when set.
      name: of this collector; no two of a run have the same.
      make_environment: of the run.
      make_agent: of the run; its collect policy acts.
      experience: of the run.
      num_environments: environments stepped together.
      refresh_interval_secs: seconds between two looks for newer weights.
      seed: of the environments, mixed with the name; None draws one.
      max_env_steps: environment steps of this collector; None is no limit.

    Raises:
      TimeoutError: if the server or the learner does not show up, or the server went away for good.
      ValueError: if the server's tables are made for other data or networks.
    """
    if line := run_dir.done_line():
        logging.info(line)
        return
    status = Status(run_dir.status(name), name)
    status.update(f'waiting for the replay server at {replay_address}')
    mixed_seed = None if seed is None else (seed + zlib.crc32(name.encode())) % 2**31
    environment = make_environment(num_environments=num_environments, seed=mixed_seed)
    try:
        train_step = create_train_step()
        agent = make_agent(environment.specs, train_step, experience)
        storage = Storage(experience, agent.collect_data_spec)
        connection.wait_for_table(replay_address, REPLAY, storage.signature, connect_timeout_secs, stop)
        variables = agent.collect_policy.variables()
        weights = Subscriber(replay_address, variables, train_step, refresh_interval_secs)
        status.update('waiting for weights from the learner')
        weights.wait(connect_timeout_secs, stop)
        writer = ReplayWriter(
            replay_address,
            storage,
            num_environments,
            stop,
            lambda: _training_goes_on(weights),
            connect_timeout_secs,
        )
        reporter = reports.Reporter(replay_address)
        _Collector(environment, agent, weights, writer, reporter, status).run(stop, max_env_steps)
        status.update('stopped' if stop.is_set() else 'finished')
    except Stopped as stopped:
        logging.info('%s', stopped)
        status.update('stopped' if stop.is_set() else 'finished')
    except BaseException as error:
        status.update(f'failed: {error}')
        raise
    finally:
        environment.close()


def _training_goes_on(weights: Subscriber) -> bool:
    """Takes over new weights if there are any. Also asked while a write is held back."""
    weights.pull()
    return not weights.newest.finished


class _Collector:
    """An actor, its weights, and where its steps go."""

    def __init__(
        self,
        environment: BatchedEnvironment,
        agent: Agent,
        weights: Subscriber,
        writer: ReplayWriter,
        reporter: reports.Reporter,
        status: Status,
    ):
        self._weights, self._writer, self._reporter, self._status = weights, writer, reporter, status
        self._metrics = EpisodeMetrics(environment.num_environments)
        self._actor = Actor(environment, agent.collect_policy, observers=[self._metrics, self._write])

    def _write(self, trajectory: Any) -> None:
        self._writer(trajectory, self._weights.newest.policy_version)

    def run(self, stop: threading.Event, max_env_steps: int | None) -> None:
        reported, logged = -math.inf, time.monotonic()
        try:
            while _training_goes_on(self._weights) and not stop.is_set():
                self._actor.run(_STEPS_PER_RUN)
                if time.monotonic() - reported >= _REPORT_SECS:
                    self._report()
                    reported = time.monotonic()
                if time.monotonic() - logged >= LOG_EVERY_SECS:
                    logging.info('%s', self._line())
                    logged = time.monotonic()
                if max_env_steps is not None and self._metrics.env_steps >= max_env_steps:
                    self._writer.flush()
                    break
        finally:
            self._report()
            logging.info('collected %s', self._line())

    def _report(self) -> None:
        self._reporter.report(self._metrics.env_steps, [episode_return for episode_return, _ in self._metrics.drain()])
        self._status.update(
            'running',
            env_steps=self._metrics.env_steps,
            env_steps_per_sec=self._metrics.env_steps_per_sec,
            episodes=self._metrics.episodes,
            mean_return=self._metrics.mean_return,
            policy_version=self._weights.newest.policy_version,
        )

    def _line(self) -> str:
        metrics = self._metrics
        mean_return = 'none' if metrics.mean_return is None else f'{metrics.mean_return:.1f}'
        return (
            f'{metrics.env_steps} environment steps ({metrics.env_steps_per_sec:.0f}/s), {metrics.episodes} episodes, '
            f'mean return {mean_return}, policy version {self._weights.newest.policy_version}'
        )
