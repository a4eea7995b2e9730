"""The replay server job: serves the run's tables;
saves them at fixed intervals and when it is stopped.
"""

import contextlib
import functools
import math
import pathlib
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Literal

from absl import logging

from tflearn.coordinator import server
from tflearn.coordinator.client import Coordinator, LearnerWatch, Role
from tflearn.coordinator.server import CoordinatorServer
from tflearn.coordinator.state import REPLAY as REPLAY_ROLE
from tflearn.coordinator.weights_transport import CoordinatorLost, RequestRefused
from tflearn.core import agent_data, extras
from tflearn.core.errors import UserValueError
from tflearn.core.experience import Experience
from tflearn.core.settings import PositiveInt, checked
from tflearn.core.table_counts import TableCounts
from tflearn.core.train_step import create_train_step
from tflearn.core.types import AgentFactory, EnvironmentFactory, specs_of
from tflearn.core.waiting import PEER_TIMEOUT_SECS, PeerLost, wants_save
from tflearn.data.demonstrations import Demonstrations
from tflearn.data.reader import EpisodeReader
from tflearn.files.manifests import LEARNER, Manifest, Manifests
from tflearn.files.run_dir import RunDir
from tflearn.files.status import Status
from tflearn.jobs import initial_agent, run_contract
from tflearn.jobs.run import Run
from tflearn.learner import machine
from tflearn.net import server_options
from tflearn.replay import backend, servers
from tflearn.replay.checkpoints import CheckpointDirectory, DamagedCheckpoint, SaveTime
from tflearn.replay.servers import Server
from tflearn.replay.storage import REPLAY, ReplayStatistics, Storage, TableHistory
from tflearn.replay.writers import ReplayWriter
from tflearn.sampling import episode_rows

_POLL_SECS = 1.0
_THIS_MACHINE = ('', 'localhost', '127.0.0.1', '[::1]')
_NUM_SLOTS = 64  # recorded episodes that are added side by side
_FILE_HANDLES = 64 + 2 * 1000  # its own, and those of so many collectors
_FAILURES = (RuntimeError, IndexError, OSError, TimeoutError)


@checked
def replay_server(
    *,
    run: Run,
    replay_backend: Literal['reverb', 'valkey'] | None = None,
    make_environment: EnvironmentFactory,
    make_agent: AgentFactory,
    experience: Experience,
    checkpoint_interval_secs: float = 300.0,
    demonstrations: Demonstrations | None = None,
    shield: str | None = None,
    shard: int = 0,
    num_shards: PositiveInt = 1,
    learner_timeout_secs: float = PEER_TIMEOUT_SECS,
    serve_coordinator: bool = True,
) -> None:
    """Serves the run's experience until it is stopped; then saves it.

    Args:
      run: the run, with the server's address.
      replay_backend: which server this job starts, if it starts one; None: Reverb where it is
        installed, else Valkey.
      make_environment: makes the run's environment; called once, for its specs.
      make_agent: makes the run's agent; called once, for the specs of its data and weights.
      experience: the run's experience settings.
      checkpoint_interval_secs: seconds between two checkpoints; inserts and draws continue while
        one is written.
      demonstrations: the train job's; with `fill_replay` the replay begins with them.
      shield: what protects the port from unknown clients, such as 'firewall', for the log. None
        logs a warning, unless no other machine can reach this one.
      shard: the index of this server, from 0, if several share the replay.
      num_shards: the number of these servers.
      learner_timeout_secs: how long a learner that was connected, and did not announce its end, may
        be silent before the server saves and ends; 0: no limit.
      serve_coordinator: whether the first server is also the coordinator, at that port; otherwise
        the coordinator is another program (`tflearn-coordinator`).

    Raises:
      RuntimeError: if another replay server works in this directory.
      PeerLost: if nothing was heard of the learner for too long.
      TypeError: if the factory returns no agent.
      ValueError: if the agent cannot train on such data, the port is in use, the checkpoint holds
        other tables, or the demonstrations have other columns.
    """
    if run.is_done():
        return
    if not 0 <= shard < num_shards:
        raise UserValueError(f'got shard={shard} of {num_shards} replay servers; need one of their indices')
    run_dir = run.dir
    run_dir.check_num_shards(num_shards)
    train_step = create_train_step()
    agent = make_agent(specs_of(make_environment), train_step, experience)
    agent_data.check(agent, train_step, experience)  # here too, since this job is the first one
    storage = initial_agent.storage(agent, experience)
    backend.check_shards(storage, num_shards)
    name = _name(shard)
    status, checkpoints = run.status(name), run_dir.shard_checkpoints(shard)
    kind, start = _starting(storage, run.replay_address, replay_backend, checkpoints)
    with run_dir.own(name, run.stop):
        if demonstrations is not None and demonstrations.fill_replay and not shard:
            demonstrations.check(experience)
            demonstrations.check_mirrored(storage.mirrored)
            _save_filled(storage, checkpoints, demonstrations, run.stop, status, kind)
        # The newest checkpoint, the one before, one that is written; compression makes them less.
        lower, num_bytes = 'Experience.replay.max_size', storage.num_bytes
        machine.check(run_dir.root, 'a full replay', num_bytes, 4 * num_bytes, lower, _FILE_HANDLES)
        manifests = Manifests(run_dir.root, run_dir.manifests, name, run_dir.epoch, store=run_dir.store)
        with contextlib.ExitStack() as ending:
            hosted = _host(run, ending) if serve_coordinator and not shard else None
            jobs = [LEARNER, *map(_name, range(num_shards))]
            restored = _restore(start, manifests, jobs)
            replay = ending.enter_context(contextlib.closing(restored))
            logging.info('replay server on port %d', replay.port)
            connected = ending.enter_context(contextlib.closing(Coordinator(run.coordinator, name, run.stop)))
            if hosted:
                hosted.state.phase = 'running'
            address = _shielded(replay, run.replay_address, shield) if kind == backend.REVERB else replay.address
            contract = run_contract.contract(agent, storage, num_shards)
            connected.join(Role(REPLAY_ROLE, shard, address, contract), math.inf)
            saver = _Saver(replay, storage, checkpoints, manifests, run.stop_timeout_secs)
            serving = _Serving(saver, run_dir, status, connected, shard)
            serving.run(checkpoint_interval_secs, learner_timeout_secs, run.stop)
        status.update('stopped')


def _starting(
    storage: Storage, address: str, kind: str | None, checkpoints: pathlib.Path
) -> tuple[str, Callable[..., Server]]:
    """Returns the backend of a replay server, and what starts it or finds it running."""
    kind, given = backend.kind_of(address, kind or extras.default_replay_backend())
    if given and kind != backend.VALKEY:
        raise UserValueError(f'got replay_address={address!r}; need HOST:PORT or valkey://HOST:PORT')
    host = address.rpartition(':')[0]
    if kind == backend.VALKEY and not given and host not in _THIS_MACHINE:
        raise UserValueError(
            f'got replay_address={address!r} for a Valkey server, which serves one machine; need localhost, or '
            'valkey://HOST:PORT of your own server, or Reverb (Python 3.11): --replay_backend=reverb'
        )
    backend.check_draws(storage, kind)
    port = 0 if given else int(address.rpartition(':')[2])
    return kind, functools.partial(servers.serve, storage.make_tables(), port, checkpoints, kind=kind, address=given)


def _shielded(replay: Server, address: str, shield: str | None) -> str:
    """Logs what shields a server of Reverb's, and returns the address at which others reach it."""
    server_options.log_shield((replay.port,), shield, 'Reverb has no authentication', 'replay_server.shield')
    return f'{address.rpartition(":")[0]}:{replay.port}'


def _host(run: Run, ending: contextlib.ExitStack) -> CoordinatorServer:
    """Starts the run's coordinator in this process;
    jobs that come early learn that the replay is restored.
    """
    options = server.options(run.coordinator.address, run.coordinator.token)
    hosted = ending.enter_context(contextlib.closing(CoordinatorServer(options, run.dir.run_id())))
    hosted.state.phase = 'restoring the replay'
    logging.info('coordinator on port %d', hosted.port)
    return hosted


def _name(shard: int) -> str:
    return f'replay_server_{shard}' if shard else 'replay_server'


def _restore(start: Callable[..., Server], manifests: Manifests, jobs: Sequence[str]) -> Server:
    """Starts the server with its checkpoint of the newest manifest whose checkpoints,
    those of all `jobs`, are whole.

    The learner, which waits for this server, then finds this manifest as the newest one. A run
    directory without manifests has its newest checkpoint restored.

    Args:
      start: starts a server with the run's tables, see `servers.serve`.
    """
    newest = next(iter(manifests.newest_first()), None)
    for manifest in manifests.whole(jobs):
        part = manifest.parts.get(manifests.job)
        if part is None or part.checkpoint is None:
            break
        try:
            server = start(restore=part.checkpoint, needed=manifests.named)
        except DamagedCheckpoint as error:
            logging.warning('skipped %s: %s', manifest, error)
            continue
        logging.info('continuing from %s', manifest)
        # A learner that lives may have added newer ones meanwhile, which remain unless their replay
        # is lost.
        _add(manifests, server.restored, manifest if manifest != newest else None)
        return server
    server = start(needed=manifests.named)
    if server.restored is None:
        logging.info(
            'there is no checkpoint of the replay yet: it begins empty (a Valkey server of your own keeps its items)'
        )
    _add(manifests, server.restored)
    return server


def _add(manifests: Manifests, checkpoint: pathlib.Path | None, base: Manifest | None = None) -> None:
    files = sorted(checkpoint.iterdir()) if checkpoint is not None else []
    manifests.add(checkpoint.name if checkpoint is not None else None, files, base)


def _save_filled(
    storage: Storage,
    checkpoints: pathlib.Path,
    demonstrations: Demonstrations,
    stop: threading.Event,
    status: Status,
    kind: str,
) -> None:
    """Makes a first checkpoint with the episodes, unless there is one.

    The run's server restores it. So nobody ever sees a table with a part of the episodes, wherever
    this job is killed.
    """
    if CheckpointDirectory(checkpoints).newest() is not None:
        return
    reader = EpisodeReader(demonstrations.dataset, storage.data_spec)
    status.update('waiting for recorded episodes')
    server = servers.serve(storage.make_tables(), 0, checkpoints, kind=kind)
    try:
        writer = ReplayWriter(server.address, storage, _NUM_SLOTS, stop, tables=(REPLAY,))
        episode_rows.add_to_replay(writer, reader, storage.data_spec, _NUM_SLOTS)
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
        """Logs how long the save of a full table will take,
        unless that was logged and has hardly changed.
        """
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


class _Serving:
    """The time in which a server serves: it saves, reports its counts,
    and watches whether there is a learner.
    """

    def __init__(self, saver: _Saver, run_dir: RunDir, status: Status, coordinator: Coordinator, shard: int):
        self._saver, self._run_dir, self._status = saver, run_dir, status
        self._coordinator, self._shard = coordinator, shard
        self._history, self._watch = TableHistory(saver.storage), LearnerWatch()
        self._saved_at, self._failed_saves = time.monotonic(), 0

    def run(self, interval_secs: float, learner_timeout_secs: float, stop: threading.Event) -> None:
        """Serves until `stop` is set, and saves; raises PeerLost if the learner is lost."""
        self._saver.log_expected(interval_secs)
        try:
            self._serve(interval_secs, learner_timeout_secs, stop)
        except PeerLost:
            self._saver.save_last(is_stopped=False)
            raise
        # A short run is over before the next report; the coordinator may be gone, and is not
        # waited for.
        self._count()
        self._saver.save_last()

    def _serve(self, interval_secs: float, learner_timeout_secs: float, stop: threading.Event) -> None:
        while not stop.wait(_POLL_SECS):
            self._saver.not_stopped_at = time.monotonic()
            self._run_dir.check_owner()
            self._report()
            if learner_timeout_secs and self._watch.is_lost(learner_timeout_secs):
                raise PeerLost(
                    f'got no heartbeat of the learner for {self._watch.silent_secs:.0f} s; need one within '
                    f'{learner_timeout_secs:g} s (replay_server.learner_timeout_secs; 0 is no limit); the replay is '
                    f'saved: start this job and the train job again with the same commands; {self._history}'
                )
            if wants_save(stop) or time.monotonic() - self._saved_at >= interval_secs:
                self._save(interval_secs)

    def _report(self) -> None:
        tables = self._count()
        if tables is None:
            return
        self._history.update(tables)
        try:
            self._watch.update(self._coordinator.put_counts(self._shard, tables))
        except RequestRefused as error:
            logging.warning('%s', error)
        except CoordinatorLost:
            if self._coordinator.is_silent:  # else its machine answers, and it may be started again there
                self._watch.update(None)

    def _count(self) -> dict[str, TableCounts] | None:
        """Returns the tables' counts, and writes them to the status;
        None if the server does not answer.
        """
        storage = self._saver.storage
        try:
            tables = self._saver.server.counts()
        except _FAILURES as error:  # too busy to answer
            logging.warning('the replay server did not answer: %s', error)
            return None
        metrics = _metrics(ReplayStatistics.of(tables[REPLAY], storage), storage)
        self._status.update('running', failed_saves=self._failed_saves, **metrics)
        return tables

    def _save(self, interval_secs: float) -> None:
        try:
            self._saver.save()
            self._failed_saves = 0
        except _FAILURES as error:  # a full disk must not end the run
            self._failed_saves += 1
            logging.error('could not save the replay: %s', error)
        self._saver.log_expected(interval_secs)
        self._saved_at = time.monotonic()


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
