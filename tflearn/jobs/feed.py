"""The feed job: the dispatcher of tf.data service, or one of its workers, for learners that cannot use Reverb."""

import contextlib
import functools
import os
import socket
from typing import Any

import tensorflow as tf
from absl import logging

from tflearn.coordinator.client import Coordinator
from tflearn.core.errors import UserRuntimeError, UserValueError
from tflearn.core.experience import Experience, check_feed
from tflearn.core.types import AgentFactory, EnvironmentFactory, specs_of
from tflearn.core.waiting import wait_until
from tflearn.files import messages
from tflearn.files.run_dir import read_json, write_json
from tflearn.jobs import initial_agent
from tflearn.jobs.run import Run
from tflearn.net import server_options
from tflearn.replay.backend import Shards, check_shards
from tflearn.replay.reader import TableReader
from tflearn.replay.storage import REPLAY, Storage
from tflearn.sampling import feed_server, feed_source, feed_worker, replay_servers

_REPORT_SECS = 1.0
# TensorFlow's destructor of a server waits for calls of Python that wait for Python's lock, which it holds itself: a
# worker lasts until its process ends.
_SERVERS: list[Any] = []
_WHY_SHIELD = 'who reaches it can run any operation of TensorFlow'


def feed(
    *,
    run: Run,
    make_environment: EnvironmentFactory,
    make_agent: AgentFactory,
    experience: Experience,
    feed_address: str,
    index: int | None = None,
    host: str | None = None,
    port: int = 0,
    timeout_secs: float = 600.0,
    shield: str | None = None,
) -> None:
    """Feeds learners until it is stopped.

    Args:
      run: the run, in whose directory are the dispatcher's journal and the status.
      make_environment: makes the run's environment; called once, for its specs.
      make_agent: makes the run's agent; called once, for the spec of its data.
      experience: the run's experience settings.
      feed_address: the dispatcher's HTTP address, 'host:port'; it listens at the port on all interfaces.
      index: which worker this is, from 0 on; None is the dispatcher.
      host: the name by which learners and workers reach this machine; None is localhost if `feed_address` is there,
        else the machine's own name.
      port: where tf.data service listens; 0 is any free port. A dispatcher that is started again in the same run
        directory takes the one that it had.
      timeout_secs: how long a worker that a learner waits for may wait for data before it ends with an error.
      shield: what protects its ports from unknown clients, such as 'firewall', for the log. None logs a warning, unless
        no other machine can reach this one.

    Raises:
      TimeoutError: if a server is not found, or no data arrive in time.
      ValueError: if such experience cannot be fed, or the servers, or other workers, have other data.
    """
    check_feed(experience.replay)
    own = host or (
        'localhost' if feed_address.rpartition(':')[0] in server_options.LOCAL_HOSTS else socket.gethostname()
    )
    if index is None:
        _dispatch(run, feed_address, own, port, shield)
        return
    _, storage = initial_agent.make_for_data(make_agent, specs_of(make_environment), experience)
    status = run.status(name := f'feed_worker_{index}')
    status.update('waiting for the replay servers')
    with contextlib.closing(Coordinator(run.coordinator, name, run.stop)) as connected:
        shards = Shards(connected.replay(run.connect_timeout_secs))
    check_shards(storage, len(shards.addresses))
    shards.wait(storage, run.connect_timeout_secs, run.stop)
    layout = feed_source.Blocks(storage)
    with contextlib.closing(_elements(shards, storage, layout, timeout_secs, index)) as elements:
        dataset = feed_worker.FeedDataset(layout, elements)
        ask = functools.partial(feed_server.state_of, feed_address)
        state = wait_until(ask, f'the feed at {feed_address}', run.connect_timeout_secs, run.stop)
        _SERVERS.append(feed_worker.start_server(state['dispatcher'], own, port))
        server_options.log_shield((port or 'of the worker',), shield, _WHY_SHIELD, 'feed.shield')
        dataset.register(state['dispatcher'])
        logging.info('feeds elements of %.2f MB, %d at most in each', layout.num_bytes / 1e6, layout.num_steps)
        owner = f'{name} {socket.gethostname()}:{os.getpid()}'
        while not run.stop.is_set():
            if elements.error is not None:
                raise UserRuntimeError(f'{name} has no more data: {elements.error}') from elements.error
            feed_server.announce(feed_address, owner, dataset.contract)
            status.update('running', elements=elements.count, **elements.metrics())
            run.stop.wait(_REPORT_SECS)
        status.update('stopped', elements=elements.count, **elements.metrics())


def _dispatch(run: Run, feed_address: str, own: str, port: int, shield: str | None) -> None:
    published = run.dir.address('feed')
    known = read_json(published, messages.Address) or {}
    before = str(known.get('dispatcher', '')).rpartition(':')
    if not port and before[0] == own and before[2].isdecimal():
        port = int(before[2])  # where its workers and learners look for it
    listen = feed_address.rpartition(':')
    if not listen[2].isdecimal():
        raise UserValueError(f'got feed_address={feed_address!r}; need HOST:PORT')
    with run.dir.own('feed', run.stop), feed_server.dispatching(run.dir.feed, port) as port:
        server_options.log_shield((int(listen[2]), port), shield, _WHY_SHIELD, 'feed.shield')
        found = {'address': feed_address, 'dispatcher': f'{own}:{port}'}
        write_json(published, found)
        status = run.status('feed')
        with contextlib.closing(feed_server.FeedServer('', int(listen[2]), found['dispatcher'])) as server:
            logging.info('feeds learners at port %d, by the dispatcher at %s', server.port, found['dispatcher'])
            while not run.stop.wait(_REPORT_SECS):
                state = server.state()
                status.update('running', num_workers=state.pop('workers'))
                if found != {**found, **state}:
                    found.update(state)
                    write_json(published, found)
        status.update('stopped')


def _elements(
    shards: Shards, storage: Storage, layout: feed_source.Blocks, timeout_secs: float, index: int
) -> feed_worker.Elements:
    """Returns the elements that a worker feeds."""
    if not storage.experience.replay.learns_from_old_items:
        spec = [tf.TensorSpec(storage.item_shape, tf.uint8)]
        readers = [TableReader(each, storage, REPLAY, spec, 1, timeout_secs) for each in shards.addresses]
        return feed_worker.of_items(readers, layout)
    # Each worker has new chunks of its own, and all of those that were there before.
    batch_size = storage.experience.per_replica_batch_size
    source = replay_servers.make(shards, storage, batch_size, timeout_secs, index, begins_filled=True)
    return feed_worker.of_batches(source, layout)
