"""The feed job: the dispatcher of tf.data service, or one of its workers,
for learners that cannot use Reverb.
"""

import contextlib
import functools
import socket
from typing import Any

import tensorflow as tf
from absl import logging

from tflearn.coordinator.client import Coordinator, Role
from tflearn.coordinator.state import FEED_WORKER
from tflearn.core.errors import UserRuntimeError, UserValueError
from tflearn.core.experience import Experience, check_feed
from tflearn.core.types import AgentFactory, EnvironmentFactory, specs_of
from tflearn.core.waiting import is_listening, wait_until
from tflearn.files.run_dir import write_json
from tflearn.jobs import initial_agent, run_contract
from tflearn.jobs.run import Run
from tflearn.net import server_options
from tflearn.replay.backend import Shards, check_shards
from tflearn.replay.reader import TableReader
from tflearn.replay.storage import REPLAY, Storage
from tflearn.sampling import feed_source, feed_worker, replay_servers
from tflearn.sampling.source import Source

_REPORT_SECS = 1.0
# TensorFlow's destructor of a server waits for calls of Python that wait for Python's lock, which
# it holds itself: a worker lasts until its process ends.
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
      feed_address: the dispatcher's address, 'host:port'; it listens at the port on all interfaces.
      index: which worker this is, from 0 on; None is the dispatcher.
      host: the name by which learners and workers reach this machine; None is localhost if
        `feed_address` is there, else the machine's own name.
      port: where a worker listens; 0 is any free port.
      timeout_secs: how long a worker that a learner waits for may wait for data before it ends with
        an error.
      shield: what protects its ports from unknown clients, such as 'firewall', for the log. None
        logs a warning, unless no other machine can reach this one.

    Raises:
      TimeoutError: if a server is not found, or no data arrive in time.
      ValueError: if such experience cannot be fed, or the servers, or other workers, have other
        data.
    """
    check_feed(experience.replay)
    if index is None:
        _dispatch(run, feed_address, shield)
        return
    own = host or (
        'localhost' if feed_address.rpartition(':')[0] in server_options.LOCAL_HOSTS else socket.gethostname()
    )
    agent, storage = initial_agent.make_for_data(make_agent, specs_of(make_environment), experience)
    status = run.status(name := f'feed_worker_{index}')
    status.update('waiting for the replay servers')
    layout = feed_source.Blocks(storage)
    with contextlib.ExitStack() as ending:
        connected = ending.enter_context(contextlib.closing(Coordinator(run.coordinator, name, run.stop)))
        shards = Shards(connected.replay(run.connect_timeout_secs))
        check_shards(storage, len(shards.addresses))
        shards.wait(storage, run.connect_timeout_secs, run.stop)
        elements = _elements(shards, storage, layout, timeout_secs, index)
        given = ending.enter_context(contextlib.closing(elements.given))
        metrics = given.metrics if isinstance(given, Source) else dict
        dataset = feed_worker.FeedDataset(layout, elements)
        # All workers of a run feed the same, and call it by the same name.
        contract = {**run_contract.contract(agent, storage), 'feed': {'function': dataset.function}}
        connected.join(Role(FEED_WORKER, index, contract=contract), run.connect_timeout_secs)
        listens = functools.partial(is_listening, feed_address)
        wait_until(listens, f'the feed at {feed_address}', run.connect_timeout_secs, run.stop)
        _SERVERS.append(feed_worker.start_server(feed_address, own, port))
        server_options.log_shield((port or 'of the worker',), shield, _WHY_SHIELD, 'feed.shield')
        dataset.register(feed_address)
        logging.info('feeds elements of %.2f MB, %d at most in each', layout.num_bytes / 1e6, layout.num_steps)
        while not run.stop.is_set():
            if given.error is not None:
                raise UserRuntimeError(f'{name} has no more data: {given.error}') from given.error
            status.update('running', elements=elements.count, **metrics())
            run.stop.wait(_REPORT_SECS)
        status.update('stopped', elements=elements.count, **metrics())


def _dispatch(run: Run, feed_address: str, shield: str | None) -> None:
    _, _, port = feed_address.rpartition(':')
    if not port.isdecimal():
        raise UserValueError(f'got feed_address={feed_address!r}; need HOST:PORT')
    with run.dir.own('feed', run.stop), feed_worker.dispatching(run.dir.feed, int(port)):
        server_options.log_shield((int(port),), shield, _WHY_SHIELD, 'feed.shield')
        write_json(run.dir.address('feed'), {'address': feed_address})
        status = run.status('feed')
        logging.info('feeds learners at port %s', port)
        while not run.stop.wait(_REPORT_SECS):
            status.update('running')
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
