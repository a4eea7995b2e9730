"""The replay server job: serves the run's tables; saves them at fixed intervals and when it is stopped."""

import contextlib
import math
import pathlib
import threading
import time
from collections.abc import Callable, Collection, Sequence
from typing import Any

from absl import logging

from tflearn.coordinator import credits, heartbeat, reports, weights_contract
from tflearn.coordinator.heartbeat import HeartbeatWatch
from tflearn.core import agent_data
from tflearn.core.errors import UserValueError
from tflearn.core.experience import Experience
from tflearn.core.train_step import create_train_step
from tflearn.core.types import Agent, AgentFactory, EnvironmentFactory, specs_of
from tflearn.core.waiting import PeerLost
from tflearn.data.demonstrations import Demonstrations
from tflearn.data.reader import EpisodeReader
from tflearn.files.manifests import LEARNER, Manifest, Manifests
from tflearn.files.run_dir import RunDir, Status
from tflearn.jobs import agreed_settings, initial_agent
from tflearn.learner import machine
from tflearn.net import interfaces
from tflearn.replay import backend, connection
from tflearn.replay.backend import Server
from tflearn.replay.checkpoints import CheckpointDirectory, DamagedCheckpoint
from tflearn.replay.saving import SaveTime
from tflearn.replay.shards import Shards
from tflearn.replay.storage import REPLAY, ReplayStatistics, Storage
from tflearn.replay.table_history import TableHistory
from tflearn.replay.writers import ReplayWriter
from tflearn.sampling import recorded

_POLL_SECS = 1.0
_NUM_SLOTS = 64  # recorded episodes that are added side by side
_FAILURES = (RuntimeError, IndexError, OSError, TimeoutError)


def replay_server(
    *,
    run_dir: RunDir,
    replay_address: str,
    stop: threading.Event,
    make_environment: EnvironmentFactory,
    make_agent: AgentFactory,
    experience: Experience,
    checkpoint_interval_secs: float = 300.0,
    demonstrations: Demonstrations | None = None,
    shield: str | None = None,
    shard: int = 0,
    stop_timeout_secs: float = 30.0,
    learner_timeout_secs: float = connection.SERVER_TIMEOUT_SECS,
) -> None:
    """Serves the run's experience and weights until it is stopped; then saves them.

    Args:
      run_dir: the run's directory, for the checkpoints.
      replay_address: the server's address, 'host:port'; it listens at the port on all interfaces. With commas the
        addresses of several servers that share the replay, of which this one has the index `shard`.
      stop: ends the job when set.
      make_environment: makes the run's environment; called once, for its specs.
      make_agent: makes the run's agent; called once, for the specs of its data and weights.
      experience: the run's experience settings.
      checkpoint_interval_secs: seconds between two checkpoints; inserts and draws go on while one is written.
      demonstrations: the train job's; with `fill_replay` the replay begins with them.
      shield: what keeps strangers from the port, such as 'firewall', for the log. None logs a warning, unless no other
        machine can reach this one.
      shard: which of several servers this one is, from 0 on.
      stop_timeout_secs: the time that it has to end once it is stopped [s]; a save that takes longer is not begun.
      learner_timeout_secs: how long nothing may be heard of a learner that was there and did not end in order, before
        the server saves and ends; 0: it waits for ever.

    Raises:
      RuntimeError: if another replay server works in this directory.
      PeerLost: if nothing was heard of the learner for too long.
      TypeError: if the factory returns no agent.
      ValueError: if the agent cannot train on such data, the port is in use, the checkpoint holds other tables, or the
        demonstrations have other columns.
    """
    if line := run_dir.done_line():
        logging.info(line)
        return
    shards = Shards.parse(replay_address)
    if not 0 <= shard < len(shards.addresses):
        raise UserValueError(f'got shard={shard} of {len(shards.addresses)} replay servers; need one of their indices')
    run_dir.check_num_shards(len(shards.addresses))
    train_step = create_train_step()
    agent = make_agent(specs_of(make_environment), train_step, experience)
    agent_data.check(agent, train_step, experience)  # here too, since this job is the first one
    storage = Storage(experience, initial_agent.data_spec(agent, experience))
    shards.check(storage)
    name = _name(shard)
    status, checkpoints = Status(run_dir.status(name), name), run_dir.shard_checkpoints(shard)
    with run_dir.own(name, stop):
        if demonstrations is not None and demonstrations.fill_replay and not shard:
            demonstrations.check(experience)
            demonstrations.check_mirrored(storage.mirrored)
            _save_filled(storage, agent, checkpoints, demonstrations, stop, status)
        # The newest checkpoint, the one before, one that is written; compression makes them less.
        lower, num_bytes = 'Experience.replay.max_size', storage.num_bytes
        machine.check(run_dir.root, 'a full replay', num_bytes, 4 * num_bytes, lower)
        manifests = Manifests(run_dir.root, run_dir.manifests, name, run_dir.epoch, store=run_dir.store)
        machine.raise_file_handles()
        port = int(shards.addresses[shard].rpartition(':')[2])
        jobs = [LEARNER, *map(_name, range(len(shards.addresses)))]
        server = _restore(storage, agent, port, checkpoints, manifests, jobs)
        logging.info('replay server on port %d', server.port)
        agreed_settings.publish(server.address, agreed_settings.of(agent, experience))
        interfaces.log_shield((server.port,), shield, 'Reverb has no authentication', 'replay_server.shield')
        with contextlib.closing(server):
            saver = _Saver(server, storage, checkpoints, manifests, stop_timeout_secs)
            saver.log_expected(checkpoint_interval_secs)
            try:
                _serve(saver, run_dir, status, checkpoint_interval_secs, learner_timeout_secs, stop)
            except PeerLost:
                saver.save_last(is_stopped=False)
                raise
            saver.save_last()
        status.update('stopped')


def _name(shard: int) -> str:
    return f'replay_server_{shard}' if shard else 'replay_server'


def _start(
    storage: Storage,
    agent: Agent,
    port: int,
    checkpoints: pathlib.Path,
    restore: str | None = None,
    needed: Callable[[], Collection[str]] = tuple,
) -> Server:
    """Starts a server with the run's tables, and with the content of a checkpoint; None is the newest."""
    variables = weights_contract.table(weights_contract.published(agent.collect_policy))
    run_tables = [*storage.make_tables(), reports.table(), heartbeat.table(), agreed_settings.table(), variables]
    # Weights start empty: collectors should act with the weights that the learner restored, not with older ones.
    fresh = [weights_contract.VARIABLES, heartbeat.HEARTBEATS, agreed_settings.SETTINGS]
    if storage.experience.versions_ahead is not None:
        run_tables.append(credits.table())
        fresh.append(credits.CREDITS)
    return backend.serve(run_tables, port, checkpoints, fresh, restore, needed)


def _restore(
    storage: Storage,
    agent: Agent,
    port: int,
    checkpoints: pathlib.Path,
    manifests: Manifests,
    jobs: Sequence[str],
) -> Server:
    """Starts the server with its checkpoint of the newest manifest whose checkpoints, those of all `jobs`, are whole.

    The learner, which waits for this server, then finds this manifest as the newest one. A run directory without
    manifests has its newest checkpoint restored.
    """
    newest = next(iter(manifests.newest_first()), None)
    for manifest in manifests.whole(jobs):
        part = manifest.parts.get(manifests.job)
        if part is None or part.checkpoint is None:
            break
        try:
            server = _start(storage, agent, port, checkpoints, part.checkpoint, manifests.named)
        except DamagedCheckpoint as error:
            logging.warning('skipped %s: %s', manifest, error)
            continue
        logging.info('continuing from %s', manifest)
        # A learner that lives may have added newer ones meanwhile, which remain unless their replay is lost.
        _add(manifests, server.restored, manifest if manifest != newest else None)
        return server
    server = _start(storage, agent, port, checkpoints, None, manifests.named)
    _add(manifests, server.restored)
    return server


def _add(manifests: Manifests, checkpoint: pathlib.Path | None, base: Manifest | None = None) -> None:
    files = sorted(checkpoint.iterdir()) if checkpoint is not None else []
    manifests.add(checkpoint.name if checkpoint is not None else None, files, base)


def _save_filled(
    storage: Storage,
    agent: Agent,
    checkpoints: pathlib.Path,
    demonstrations: Demonstrations,
    stop: threading.Event,
    status: Status,
) -> None:
    """Makes a first checkpoint with the episodes, unless there is one.

    The run's server restores it. So nobody ever sees a table with a part of the episodes, wherever this job is killed.
    """
    if CheckpointDirectory(checkpoints).newest() is not None:
        return
    reader = EpisodeReader(demonstrations.dataset, storage.data_spec)
    status.update('waiting for recorded episodes')
    server = _start(storage, agent, 0, checkpoints)
    try:
        writer = ReplayWriter(server.address, storage, _NUM_SLOTS, stop, tables=(REPLAY,))
        recorded.add(writer, reader, storage.data_spec, _NUM_SLOTS)
        writer.flush()
        count = writer.num_sequences
        logging.info('filled the replay with %d sequences of %d recorded episodes', count, reader.num_read)
        server.checkpoint()
    finally:
        server.close()


class _Saver:
    """Saves a server's tables, names the checkpoint in a manifest, and reports how long that takes.

    Attributes:
      not_stopped_at: when the job was last known not to be stopped, by `time.monotonic`.
    """

    def __init__(
        self,
        server: Server,
        storage: Storage,
        checkpoints: pathlib.Path,
        manifests: Manifests,
        stop_timeout_secs: float,
    ):
        """Measures the disk of `checkpoints`; `stop_timeout_secs` is the time to end once the job is stopped [s]."""
        self.server, self.storage = server, storage
        self._manifests, self._stop_timeout_secs = manifests, stop_timeout_secs
        self._time = SaveTime(checkpoints)
        self._logged_secs = 0.0
        self.not_stopped_at = self._saved_at = time.monotonic()

    def log_expected(self, interval_secs: float) -> None:
        """Logs how long the save of a full table will take, unless that was logged and has hardly changed."""
        secs, megabytes = self._time.expected_secs(self.storage.num_bytes), self.storage.num_bytes / 1e6
        if self._logged_secs and 0.5 < secs / self._logged_secs < 2:
            return
        self._logged_secs = secs
        logging.info('a full table takes up to %.1f MB and about %.1f s to save', megabytes, secs)
        if secs > self._stop_timeout_secs:
            logging.warning(
                'got a replay of up to %.1f MB, whose save takes about %.0f s; need %.0f s, the time until a job that '
                'was stopped is killed, or a stop loses up to %.0f s of experience; raise --stop_timeout_secs, or '
                'lower replay_server.checkpoint_interval_secs or max_size',
                megabytes, secs, self._stop_timeout_secs, interval_secs,
            )  # fmt: skip

    def save(self) -> None:
        """Saves the tables.

        Raises:
          RuntimeError, IndexError, OSError, TimeoutError: if they cannot be saved.
        """
        path = self._time.measure(self.server.checkpoint, self._num_bytes())
        _add(self._manifests, pathlib.Path(path))
        self.server.prune()
        self._saved_at = time.monotonic()

    def save_last(self, is_stopped: bool = True) -> None:
        """Saves the tables once more; if the job is stopped, only if there is time enough."""
        try:
            num_bytes, now = self._num_bytes(), time.monotonic()
            # An empty checkpoint would only tie a later start to the networks of this one.
            if not num_bytes and not self.server.has_checkpoint:
                return
            secs, secs_left = self._time.expected_secs(num_bytes), self._stop_timeout_secs - (now - self.not_stopped_at)
            if is_stopped and secs > secs_left and self.server.has_checkpoint:
                logging.warning(
                    'the last save would take about %.1f s, and there are %.0f s until this job is killed: kept the '
                    'checkpoint before; what came in the last %.0f s is lost',
                    secs, secs_left, now - self._saved_at,
                )  # fmt: skip
                return
            self.save()
        except _FAILURES as error:
            logging.error('could not save the replay: %s', error)

    def _num_bytes(self) -> int:
        return self.server.counts()[REPLAY].size * math.prod(self.storage.item_shape)


def _serve(
    saver: _Saver,
    run_dir: RunDir,
    status: Status,
    interval_secs: float,
    learner_timeout_secs: float,
    stop: threading.Event,
) -> None:
    saved_at, failed_saves = time.monotonic(), 0
    history, watch = TableHistory(saver.storage), HeartbeatWatch(saver.server.address)
    while not stop.wait(_POLL_SECS):
        saver.not_stopped_at = time.monotonic()
        run_dir.check_owner()
        try:
            tables = saver.server.counts()
            history.update(tables)
            watch.update(tables)
            metrics = _metrics(ReplayStatistics.of(tables[REPLAY], saver.storage), saver.storage)
            status.update('running', failed_saves=failed_saves, **metrics)
        except _FAILURES as error:  # too busy to answer
            logging.warning('the replay server did not answer: %s', error)
        if learner_timeout_secs and watch.is_lost(learner_timeout_secs):
            raise PeerLost(
                f'got no heartbeat of the learner for {watch.silent_secs:.0f} s; need one within '
                f'{learner_timeout_secs:g} s (replay_server.learner_timeout_secs; 0 waits for ever); the replay is '
                f'saved: start this job and the train job again with the same commands; {history}'
            )
        if time.monotonic() - saved_at < interval_secs:
            continue
        try:
            saver.save()
            failed_saves = 0
        except _FAILURES as error:  # a full disk must not end the run
            failed_saves += 1
            logging.error('could not save the replay: %s', error)
        saver.log_expected(interval_secs)
        saved_at = time.monotonic()


def _metrics(replay: ReplayStatistics, storage: Storage) -> dict[str, Any]:
    metrics = {
        'replay_size': replay.size,
        'max_size': replay.max_size,
        'inserts': replay.inserts,
        'samples_per_insert_target': storage.experience.replay.samples_per_insert,
    }
    if storage.mirrored:  # the learner draws from its mirror, and reports the samples
        return metrics
    return {**metrics, 'samples': replay.samples, 'samples_per_insert': replay.samples_per_insert}
