"""A real replay server in this process, on a free port, with writers and readers."""

import contextlib
import dataclasses
import threading
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf
from tf_agents.trajectories import trajectory

from tests import fakes, streams
from tests.testing import experiences
from tflearn.core import extras
from tflearn.core.waiting import Stopped
from tflearn.replay import backend, reader, servers
from tflearn.replay.chunks import ID_BYTES, chunk_rows
from tflearn.replay.storage import REPLAY, Storage
from tflearn.replay.writers import ReplayWriter
from tflearn.sampling import replay_servers
from tflearn.sampling.mirror import ReplayMirror

DATA_SPEC = trajectory.Trajectory(
    step_type=tf.TensorSpec((), tf.int32, 'step_type'),
    observation=tf.TensorSpec((2,), tf.float32, 'observation'),
    action=tf.TensorSpec((), tf.int64, 'action'),
    policy_info=(),
    next_step_type=tf.TensorSpec((), tf.int32, 'next_step_type'),
    reward=tf.TensorSpec((), tf.float32, 'reward'),
    discount=tf.TensorSpec((), tf.float32, 'discount'),
)

BATCH = 16


@dataclasses.dataclass
class Served:
    """A running server, its address and its tables' layout; `stop` ends the writers."""

    server: servers.Server
    address: str
    storage: Storage
    stop: threading.Event = dataclasses.field(default_factory=threading.Event)

    def table(self, name=REPLAY):
        return self.server.counts()[name]


@contextlib.contextmanager
def serving(folder, kind=None):
    """Gives a function experience -> Served; all servers are closed at the end."""
    with contextlib.ExitStack() as stack:
        # So that streams end soon after they are closed.
        stack.enter_context(mock.patch.object(reader, '_CHECK_CLOSED_MS', 300))

        def start(experience, port=0, checkpoints=folder / 'replay' / 'checkpoints', data_spec=DATA_SPEC):
            storage = Storage(experience, data_spec)
            backend.check_draws(storage, kind or extras.default_replay_backend())
            server = servers.serve(storage.make_tables(), port, checkpoints, kind=kind)
            stack.callback(server.close)
            stack.callback(streams.wait_until_ended)
            served = Served(server, server.address, storage)
            stack.callback(served.stop.set)
            return served

        yield start


@pytest.fixture
def serve(tmp_path):
    """Returns a function experience -> Served; all servers are closed at the end."""
    with serving(tmp_path) as start:
        yield start


@pytest.fixture
def open_source():
    """Returns a function (served, timeout) -> source; all are closed at the end."""
    with contextlib.ExitStack() as stack:

        def start(served, timeout_secs=60.0):
            make = ReplayMirror if served.storage.mirrored else replay_servers.uniform_draws
            source = make(
                served.address, served.storage, served.storage.experience.per_replica_batch_size, timeout_secs
            )
            stack.callback(source.close)
            return source

        yield start


def experience(sampling, **changes):
    return experiences.experience(sampling=sampling, **{'min_size': 1, 'batch_size': BATCH, **changes})


def write_steps(writer, environment, num_steps, version=7):
    """Steps a checked environment with action 1 and writes the trajectories of TF-Agents' driver."""
    time_step = environment.reset()
    action = np.ones(environment.num_environments, np.int64)
    for _ in range(num_steps):
        next_time_step = environment.step(action)
        writer(
            trajectory.Trajectory(
                time_step.step_type,
                time_step.observation,
                action,
                (),
                next_time_step.step_type,
                next_time_step.reward,
                next_time_step.discount,
            ),
            version,
        )
        time_step = next_time_step
    writer.flush()


def fill(served, num_steps=40, lengths=(3, 5)):
    """Writes on a thread, since a stream blocks writers until it is read."""

    def write():
        writer = ReplayWriter(served.address, served.storage, len(lengths), served.stop)
        with contextlib.suppress(Stopped):
            write_steps(writer, fakes.CheckedEnvironment(lengths), num_steps)

    thread = threading.Thread(target=write, name='fill', daemon=True)
    thread.start()
    return thread


def draw(source, num_steps=1, seed=0, compiled=False):
    """Draws `num_steps` batches and waits for them; with `compiled` in a compiled program, as the learner does.

    To trace a program takes longer than most tests, so one test of each source compiles it.
    """
    draw_some, batch = source.draw, source.batch
    if compiled:
        draw_some, batch = tf.function(draw_some, autograph=False), tf.function(batch, autograph=False)
    parts = []
    while num_steps > 0:
        granted = source.grant(min(num_steps, source.max_draw_steps))
        assert granted, source.error
        drawn = draw_some(tf.constant(granted, tf.int64), tf.constant(seed, tf.int64))
        if source.takes_indices:
            parts.append(batch(drawn, tf.range(granted, dtype=tf.int64)))
        if compiled or not source.takes_indices:
            one_by_one = [batch(drawn, tf.constant(i, tf.int64)) for i in range(granted)]
            stacked = tf.nest.map_structure(lambda *leaves: tf.stack(leaves), *one_by_one)
            if source.takes_indices:
                tf.nest.map_structure(np.testing.assert_array_equal, parts[-1], stacked)
            else:
                parts.append(stacked)
        num_steps, seed = num_steps - granted, seed + 1
    return tf.nest.map_structure(lambda *leaves: tf.concat(leaves, axis=0), *parts)


def read_items(served):
    """All sequences in the table, as (trajectory [T, ...], version [T])."""
    dataset = backend.connect(served.address).samples(REPLAY, served.storage.item_shape, 1, 200)
    size = served.table().size
    found = {}
    for sample in dataset.take(200 * size):
        found.setdefault(int(sample.info.key), sample.data['chunk'].numpy())
        if len(found) == size:
            break
    assert len(found) == size
    length = served.storage.experience.slicing.sequence_length
    items = []
    for chunk in found.values():
        for start in np.flatnonzero(chunk[: served.storage.num_starts, 0]):
            item = served.storage.layout.unpack(tf.constant(chunk[start : start + length]))
            items.append((item['trajectory'], item['policy_version'].numpy()))
    return items


class NoFlush:
    """A writer that ignores `flush`."""

    def __init__(self, writer):
        self.writer = writer

    def __call__(self, trajectory, version):
        self.writer(trajectory, version)

    def flush(self):
        pass


def chunks_of(storage, first, count, begins=None):
    """Chunks whose rows carry a running number in the column `policy_version`; their ids are first, first + 1, ..."""
    length, num_bytes = storage.chunk_shape
    packed = np.zeros((count, ID_BYTES + length * num_bytes), np.uint8)
    packed[:, :ID_BYTES] = (first + np.arange(count))[:, None].view(np.uint8)
    for i, chunk in enumerate(chunk_rows(packed, num_bytes)):
        numbers = (first + i) * storage.num_starts + np.arange(length)
        chunk[:, 1:9] = numbers.astype(np.int64)[:, None].view(np.uint8)
        chunk[: storage.num_starts, 0] = 1 if begins is None else begins
    return packed


def ring_content(ring, storage, column=None):
    """The numbers of the first rows of all sequences in the ring, oldest first; or a trajectory's column, sorted."""
    oldest, size = ring.window.numpy()
    starts = ring.starts.numpy()[(oldest + np.arange(size)) % ring.starts.shape[0]]
    columns = ring.columns.batch(ring.columns.draw(starts[None]), 0)
    if column:
        return sorted(getattr(columns['trajectory'], column).numpy().tolist())
    return columns['policy_version'].numpy().tolist()
