"""Episodes that are complete in the replay are found there, field by field; of others no row gets in."""

import threading
import zlib

import numpy as np
import pytest
import tensorflow as tf
from tf_agents.trajectories import time_step as ts

from tests import fakes
from tests.testing import forged, lanes, replay
from tflearn.core.errors import UserError
from tflearn.core.experience import Experience, Prioritized, Queue, Slicing, Uniform
from tflearn.data.writer import EpisodeRecorder
from tflearn.replay import backend, stored_episodes
from tflearn.replay.storage import REPLAY
from tflearn.replay.writers import ReplayWriter

UNIFORM = Uniform(min_size=1, max_size=10_000, samples_per_insert=None)
EXPERIENCES = {
    'mirrored': Experience(replay=UNIFORM, chunk_steps=16),
    'n-step': Experience(slicing=Slicing(sequence_length=4), replay=UNIFORM, chunk_steps=8),
    'history': Experience(slicing=Slicing(sequence_length=2, history_steps=2), replay=UNIFORM, chunk_steps=8),
    'by the server': Experience(replay=Uniform(min_size=1, max_size=10_000, sampling='server'), chunk_steps=8),
    'prioritized': Experience(replay=Prioritized(min_size=1, max_size=10_000)),
    'queue': Experience(slicing=Slicing(sequence_length=5, stride=4), replay=Queue(max_size=10_000)),
    'padded': Experience(
        slicing=Slicing(sequence_length=6, stride=3, pad_episodes=True), replay=Queue(max_size=10_000)
    ),
    'crossing': Experience(
        slicing=Slicing(sequence_length=5, stride=4, cross_episodes=True), replay=Queue(max_size=999)
    ),
}


@pytest.fixture
def serve(tmp_path):
    with replay.serving(tmp_path) as start:
        yield start


class Numbers(fakes.CheckedEnvironment):
    """Rewards and observations that no two environments share."""

    def _time_step(self, reward):
        time_step = super()._time_step(reward)
        number = np.arange(self.num_environments, dtype=np.float32)
        return time_step._replace(observation=time_step.observation + 100 * number[:, None])


class Failing(Numbers):
    """Its environments are rebuilt after the second step of some episodes."""

    num_lost_rows = 0

    def step(self, action):
        time_step = super().step(action)
        failed = (self._episode % 4 == 1) & (self._step == 2)
        self.num_lost_rows += 2 * np.count_nonzero(failed)
        self._episode += failed
        self._step[failed] = 0
        return self._time_step(np.where(failed, 0, time_step.reward))


class Kept:
    """An episode writer that keeps what it gets."""

    num_episodes = num_steps = 0

    def __init__(self):
        self.episodes, self.before_close = [], []

    def write_all(self, arrays, begins, ends):
        for begin, end in zip(begins, ends, strict=True):
            self.episodes.append([array[begin:end].copy() for array in arrays])  # the recorder uses their memory again


class Both:
    """Writes steps to the server, and their complete episodes to a list."""

    def __init__(self, served, num_environments):
        self._writer = ReplayWriter(served.address, served.storage, num_environments, threading.Event())
        self._kept, self._num_steps = Kept(), 0
        self._recorder = EpisodeRecorder(self._kept, num_environments)
        self.episodes, self.flush = self._kept.episodes, self._writer.flush
        self.flush_recorder = self._recorder.flush

    def __call__(self, row, version):
        self._writer(row, version + self._num_steps // 10)
        self._recorder(row)
        self._num_steps += 1


def collect(served, environment, num_steps):
    """Writes steps to the server; returns the complete episodes among them."""
    both = Both(served, environment.num_environments)
    replay.write_steps(both, environment, num_steps)
    both.flush_recorder()
    return both.episodes


def by_content(episodes):
    return sorted(b''.join(np.ascontiguousarray(leaf).tobytes() for leaf in leaves) for leaves in episodes)


@pytest.mark.parametrize('name', EXPERIENCES)
def test_all_episodes_of_a_checkpoint(serve, tmp_path, name):
    served = serve(EXPERIENCES[name])
    environment = Failing((3, 5, 9), (False, True, False))
    written = collect(served, environment, 61)
    if name == 'by the server':  # some items were drawn before
        list(backend.connect(served.address).samples(REPLAY, served.storage.item_shape, 1, 5_000).take(3))
    served.server.checkpoint()
    before = {path: path.read_bytes() for path in tmp_path.rglob('*') if path.is_file()}
    chunks = stored_episodes.read_chunks(tmp_path / 'replay' / 'checkpoints', served.storage)
    assert {path: path.read_bytes() for path in tmp_path.rglob('*') if path.is_file()} == before
    assert len(chunks) == served.table().size
    found, incomplete_rows = stored_episodes.join(chunks, served.storage)
    assert by_content(found) == by_content(written)
    assert all(leaves[0][-1] == ts.StepType.LAST for leaves in found), 'not those that were interrupted'
    assert 0 < incomplete_rows <= environment.num_lost_rows + 27  # and of one episode of each environment
    assert [leaf.dtype for leaf in found[0]] == [
        spec.dtype.as_numpy_dtype for spec in tf.nest.flatten(served.storage.data_spec)
    ]


def test_what_was_removed_from_the_table_is_counted(serve, tmp_path):
    served = serve(Experience(replay=Uniform(min_size=1, max_size=100, samples_per_insert=None), chunk_steps=10))
    written = by_content(collect(served, Numbers((3, 15)), 200))
    served.server.checkpoint()
    chunks = stored_episodes.read_chunks(tmp_path / 'replay' / 'checkpoints', served.storage)
    found, incomplete_rows = stored_episodes.join(chunks, served.storage)
    assert 0 < len(found) < len(written)
    assert set(by_content(found)) <= set(written)
    rows = sum(len(leaves[0]) for leaves in found)
    assert 0 < incomplete_rows < 40
    assert 80 < rows + incomplete_rows < 140


def test_what_could_continue_several_ways_is_left_out(serve, tmp_path):
    """Environments of equal rows, whose chunks end within an episode."""
    served = serve(EXPERIENCES['mirrored'])
    written = by_content(collect(served, fakes.CheckedEnvironment((40, 40, 3)), 200))
    served.server.checkpoint()
    chunks = stored_episodes.read_chunks(tmp_path / 'replay' / 'checkpoints', served.storage)
    found, incomplete_rows = stored_episodes.join(chunks, served.storage)
    assert set(by_content(found)) <= set(written)
    assert incomplete_rows > 0
    long = [leaves for leaves in found if len(leaves[0]) == 41]
    assert not long


def test_all_episodes_of_a_running_server(serve):
    served = serve(EXPERIENCES['mirrored'])
    written = collect(served, Numbers((3, 5)), 60)
    for _ in range(2):  # reading changes nothing
        chunks = backend.connect(served.address).scan(served.storage, REPLAY, 30.0, threading.Event())
        assert by_content(stored_episodes.join(chunks, served.storage)[0]) == by_content(written)


def test_wrong_checkpoints_are_refused(serve, tmp_path):
    served = serve(EXPERIENCES['mirrored'])
    checkpoints = tmp_path / 'replay' / 'checkpoints'
    with pytest.raises(ValueError, match='got no checkpoint of the replay in .*; or name the running server'):
        stored_episodes.read_chunks(checkpoints, served.storage)
    served.server.checkpoint()
    assert stored_episodes.read_chunks(checkpoints, served.storage) == []
    other = replay.Storage(EXPERIENCES['n-step'], replay.DATA_SPEC)
    with pytest.raises(ValueError, match='got the replay checkpoint .*; need .*; use the gin file of its run'):
        stored_episodes.read_chunks(checkpoints, other)
    for text in ('{}', '{"replay": 3}', '{"replay": {"signature": {"chunk": 3}}}'):
        (tmp_path / 'replay' / 'tables.json').write_text(text)
        with pytest.raises(ValueError, match='got a damaged .*tables.json, without the chunks of replay; need the one'):
            stored_episodes.read_chunks(checkpoints, served.storage)
    (tmp_path / 'replay' / 'tables.json').unlink()
    served.server.close()
    error = 'got the replay checkpoint .*, which cannot be read .there is no .*/tables.json, which belongs to it'
    with pytest.raises(ValueError, match=error):
        stored_episodes.read_chunks(checkpoints, served.storage)
    with pytest.raises(ValueError, match=error):
        serve(EXPERIENCES['mirrored'])


@lanes.classic
@pytest.mark.parametrize('content', [b'no record', forged.header(1 << 40), zlib.compress(forged.header(1 << 40))])
@pytest.mark.parametrize('name', ['tables', 'items', 'chunks'])
def test_a_damaged_file_of_a_checkpoint_is_an_error_in_one_line(serve, tmp_path, name, content):
    served = serve(EXPERIENCES['mirrored'])
    collect(served, Numbers((3, 5)), 12)
    served.server.checkpoint()
    (file,) = tmp_path.glob(f'replay/checkpoints/*/{name}.tfrecord')
    for damage in (lambda: file.write_bytes(content), file.unlink):
        damage()
        with pytest.raises(UserError, match='got the replay checkpoint .*, which cannot be read .*; need') as raised:
            stored_episodes.read_rows(tmp_path / 'replay' / 'checkpoints', 50)
        assert '\n' not in str(raised.value)
