"""The replay server job: serves the run's tables; saves them at fixed intervals and when it is stopped."""

import contextlib
import pathlib
import threading
import time
from typing import Any

from absl import logging

from tflearn.data.demonstrations import Demonstrations
from tflearn.data.reader import EpisodeReader
from tflearn.distribute import machine
from tflearn.errors import UserValueError
from tflearn.experience import Experience
from tflearn.jobs import initial_agent
from tflearn.learner import agent_data
from tflearn.replay import credits, reports
from tflearn.replay.server import CheckpointDirectory, ReplayServer
from tflearn.replay.shards import Shards
from tflearn.replay.storage import REPLAY, ReplayStatistics, Storage
from tflearn.replay.writers import ReplayWriter
from tflearn.rpc import interfaces
from tflearn.run_dir import RunDir, Status
from tflearn.sampling import recorded
from tflearn.train_step import create_train_step
from tflearn.types import Agent, AgentFactory, EnvironmentFactory, specs_of
from tflearn.weights import contract

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
      checkpoint_interval_secs: seconds between two checkpoints; inserts and draws wait while one is written.
      demonstrations: the train job's; with `fill_replay` the replay begins with them.
      shield: what keeps strangers from the port, such as 'firewall', for the log. None logs a warning, unless no other
        machine can reach this one.
      shard: which of several servers this one is, from 0 on.

    Raises:
      RuntimeError: if another replay server works in this directory.
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
    name = f'replay_server_{shard}' if shard else 'replay_server'
    status, checkpoints = Status(run_dir.status(name), name), run_dir.shard_checkpoints(shard)
    with run_dir.own(name, stop):
        if demonstrations is not None and demonstrations.fill_replay and not shard:
            demonstrations.check(experience)
            demonstrations.check_mirrored(storage.mirrored)
            _save_filled(storage, agent, checkpoints, demonstrations, stop, status)
        # The newest checkpoint, the one before, one that is written; compression makes them less.
        lower, num_bytes = 'Experience.replay.max_size', storage.num_bytes
        machine.check(run_dir.root, 'a full replay', num_bytes, 4 * num_bytes, lower)
        server = _start(storage, agent, int(shards.addresses[shard].rpartition(':')[2]), checkpoints)
        megabytes = storage.num_bytes / 1e6
        logging.info('replay server on port %d; a full table takes up to %.1f MB', server.port, megabytes)
        _log_shield(server.port, shield)
        with contextlib.closing(server):
            _serve(server, run_dir, status, storage, checkpoint_interval_secs, stop)
            _save_last(server)
        status.update('stopped')


def _log_shield(port: int, shield: str | None) -> None:
    if shield is not None:
        logging.info('strangers are kept from port %d by: %s', port, shield)
    elif networks := interfaces.reachable():
        logging.warning(
            'port %d is open to everybody who reaches %s: Reverb has no authentication; shield it as docs/security.md '
            'says (a firewall rule, tflearn-tunnel, a network namespace), and set replay_server.shield = "firewall"',
            port, ', '.join(networks),
        )  # fmt: skip


def _start(storage: Storage, agent: Agent, port: int, checkpoints: pathlib.Path) -> ReplayServer:
    """Starts a server with the run's tables, and with the content of its newest checkpoint."""
    variables = contract.table(contract.published(agent.collect_policy))
    run_tables = [*storage.make_tables(), reports.table(), variables]
    # Weights start empty: collectors should act with the weights that the learner restored, not with older ones.
    fresh = [contract.VARIABLES]
    if storage.experience.versions_ahead is not None:
        run_tables.append(credits.table())
        fresh.append(credits.CREDITS)
    return ReplayServer(run_tables, port, checkpoints, fresh=fresh)


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
        writer = ReplayWriter(f'localhost:{server.port}', storage, _NUM_SLOTS, stop, tables=(REPLAY,))
        recorded.add(writer, reader, storage.data_spec, _NUM_SLOTS)
        writer.flush()
        count = writer.num_sequences
        logging.info('filled the replay with %d sequences of %d recorded episodes', count, reader.num_read)
        server.checkpoint()
    finally:
        server.close()


def _serve(
    server: ReplayServer,
    run_dir: RunDir,
    status: Status,
    storage: Storage,
    interval_secs: float,
    stop: threading.Event,
) -> None:
    saved_at, failed_saves = time.monotonic(), 0
    while not stop.wait(_POLL_SECS):
        run_dir.check_owner()
        try:
            metrics = _metrics(ReplayStatistics.of(server.info()[REPLAY], storage), storage)
            status.update('running', failed_saves=failed_saves, **metrics)
        except _FAILURES as error:  # too busy to answer
            logging.warning('the replay server did not answer: %s', error)
        if time.monotonic() - saved_at < interval_secs:
            continue
        try:
            server.checkpoint()
            failed_saves = 0
        except _FAILURES as error:  # a full disk must not end the run
            failed_saves += 1
            logging.error('could not save the replay: %s', error)
        saved_at = time.monotonic()


def _save_last(server: ReplayServer) -> None:
    try:
        # An empty checkpoint would only tie a later start to the networks of this one.
        if server.has_checkpoint or server.info()[REPLAY].current_size:
            logging.info('saved the replay: %s', server.checkpoint())
    except _FAILURES as error:
        logging.error('could not save the replay: %s', error)


def _metrics(replay: ReplayStatistics, storage: Storage) -> dict[str, Any]:
    metrics = {
        'replay_size': replay.size,
        'max_size': replay.max_size,
        'inserts': replay.inserts,
        'samples_per_insert_target': storage.experience.replay.samples_per_insert,
    }
    if storage.mirrored:  # the learner draws from its mirror, and reports the samples
        return metrics
    ratio = replay.ratio_since_filled(storage.experience.replay.min_size)
    return {**metrics, 'samples': replay.samples, 'samples_per_insert': ratio}
