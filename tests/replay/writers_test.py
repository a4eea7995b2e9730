import threading
import time

import numpy as np
import pytest
import tensorflow as tf
from tf_agents.trajectories import time_step as ts

from tests import fakes
from tests.testing import experiences
from tests.testing.replay import NoFlush, read_items, write_steps
from tflearn.core.experience import BatchItems, Experience, Queue, Uniform
from tflearn.core.waiting import Stopped
from tflearn.replay.storage import ReplayStatistics
from tflearn.replay.writers import ReplayWriter

HELD_BACK = Experience(
    replay=Uniform(min_size=10, samples_per_insert=1.0, sampling='server'), batch=BatchItems(4), chunk_steps=1
)


def _writer(served, num_environments=1, stop=None, **changes):
    return ReplayWriter(served.address, served.storage, num_environments, stop or threading.Event(), **changes)


def _experience(chunk_steps, **changes):
    return experiences.experience(chunk_steps=chunk_steps, **{'min_size': 1, 'sampling': 'server', **changes})


@pytest.mark.parametrize('chunk_steps', [1, 4, 16])
@pytest.mark.parametrize('length', [2, 3, 4])
def test_after_termination_every_step_begins_an_item(serve, length, chunk_steps):
    served = serve(_experience(chunk_steps, sequence_length=length))
    writer = _writer(served, 2)
    write_steps(writer, fakes.CheckedEnvironment((3, 5)), 24)  # 6 episodes of 3 steps, 4 of 5, and a boundary each
    items = read_items(served)
    assert writer.num_sequences == len(items) == 6 * 3 + 4 * 5
    for item, version in items:
        assert (version == 7).all()
        assert item.step_type[0] != ts.StepType.LAST
        assert len(set(item.observation[:, 0].numpy())) == 1, 'an item crosses the end of an episode'
        steps = item.observation[:, 1].numpy()
        # Steps rise by one until the boundary row, which is repeated.
        ends = np.minimum(steps[0] + np.arange(length), steps.max())
        np.testing.assert_array_equal(steps, ends)


@pytest.mark.parametrize('chunk_steps', [1, 5])
def test_after_truncation_no_item_is_padded(serve, chunk_steps):
    served = serve(_experience(chunk_steps, sequence_length=4))
    write_steps(_writer(served), fakes.CheckedEnvironment((5,), truncated=True), 12)
    items = read_items(served)
    assert len(items) == 2 * (5 + 1 - 3)
    for item, _ in items:
        np.testing.assert_array_equal(np.diff(item.observation[:, 1]), 1.0)


def test_last_step_has_reward_discount_and_last_observation(serve):
    served = serve(_experience(16))
    write_steps(_writer(served), fakes.CheckedEnvironment((3,)), 4)
    last = [item for item, _ in read_items(served) if item.next_step_type[0] == ts.StepType.LAST]
    assert len(last) == 1
    assert last[0].reward[0] == 1.0
    assert last[0].discount[0] == 0.0
    np.testing.assert_array_equal(last[0].observation[1], [0.0, 3.0])


@pytest.mark.parametrize('chunk_steps', [1, 4])
def test_stride_spaces_the_items(serve, chunk_steps):
    served = serve(_experience(chunk_steps, sequence_length=3, stride=2))
    write_steps(_writer(served), fakes.CheckedEnvironment((8,), truncated=True), 9)
    assert sorted(float(item.observation[0, 1]) for item, _ in read_items(served)) == [0.0, 2.0, 4.0, 6.0]


@pytest.mark.parametrize('chunk_steps', [1, 4])
@pytest.mark.parametrize('truncated', [True, False])
def test_stride_leaves_out_no_transition(serve, truncated, chunk_steps):
    served = serve(_experience(chunk_steps, sequence_length=4, stride=3))
    write_steps(_writer(served), fakes.CheckedEnvironment((8,), truncated=truncated), 9)
    seen = {float(step) for item, _ in read_items(served) for step in item.observation[:-1, 1]}
    assert seen >= set(range(8))


def test_table_size_does_not_depend_on_the_rate_of_steps(monkeypatch, serve):
    monkeypatch.setattr('tflearn.replay.writers._PART_SECS', -1.0)  # each step is late
    served = serve(_experience(16, max_size=64))
    writer = _writer(served, 2)
    write_steps(writer, fakes.CheckedEnvironment((1000, 1000)), 1 + 5 * 16)
    assert writer.num_sequences == 2 * 5 * 16
    assert len(read_items(served)) == 64 == ReplayStatistics.of(served.table(), served.storage).size


@pytest.mark.parametrize(('sampling', 'stored'), [('learner', 0), ('server', 2)])
def test_flush_to_learner_keeps_chunks_of_a_mirrored_table_unfinished(serve, sampling, stored):
    served = serve(_experience(16, max_size=64, sampling=sampling))
    writer = _writer(served, 2)
    write_steps(NoFlush(writer), fakes.CheckedEnvironment((1000, 1000)), 6)
    writer.flush_to_learner()
    assert served.table().size == stored
    if sampling == 'learner':
        assert served.table('stream').size == 2


def test_single_sequence_item_is_sent_with_its_last_step(serve):
    served = serve(experiences.experience(Queue, chunk_steps=1, max_size=10))
    writer = _writer(served)
    write_steps(NoFlush(writer), fakes.CheckedEnvironment((1000,)), 4)
    assert writer.num_sequences == 3


def test_write_blocked_by_the_rate_limiter_can_be_stopped(serve):
    served = serve(HELD_BACK)
    stop = threading.Event()
    writer = _writer(served, 8, stop)
    threading.Timer(1.0, stop.set).start()
    start = time.monotonic()
    with pytest.raises(Stopped):
        write_steps(writer, fakes.CheckedEnvironment((50,) * 8), 1000)
    assert time.monotonic() - start < 30
    assert writer.lost_steps > 0
    # Ten before the first draw, the buffer of four batches, and items in flight.
    assert sum(len(item[1]) > 0 for item in read_items(served)) <= 10 + 16 + 8


def test_keep_waiting_can_end_a_blocked_write(serve):
    writer = _writer(serve(HELD_BACK), 8, keep_waiting=lambda: False)
    with pytest.raises(Stopped):
        write_steps(writer, fakes.CheckedEnvironment((50,) * 8), 1000)
    assert writer.lost_steps == 0, 'training is over, so they do not count'


def test_server_restart_loses_nothing(serve):
    experience = _experience(4)
    served = serve(experience)
    writer = _writer(served, 2)
    environment = fakes.CheckedEnvironment((3, 5))
    write_steps(writer, environment, 20)
    served.server.checkpoint()
    served.server.close()
    back = []
    restart = threading.Timer(1.0, lambda: back.append(serve(experience, served.server.port)))
    restart.start()
    write_steps(writer, environment, 400)
    restart.join(30)
    # The environment was reset in between: the items of two runs, each with complete and cut off episodes.
    assert len(read_items(back[0])) == writer.num_sequences


def test_gives_up_on_a_server_that_does_not_return(serve):
    served = serve(_experience(4))
    writer = _writer(served, server_timeout_secs=1.0)
    served.server.close()
    with pytest.raises(TimeoutError, match=f'waiting for the replay server at {served.address}'):
        write_steps(writer, fakes.CheckedEnvironment((5,)), 10)


def test_rejects_data_that_do_not_match_the_layout(serve):
    served = serve(_experience(4))
    writer = _writer(served)
    spec = served.storage.data_spec
    zeros = tf.nest.map_structure(lambda spec: np.zeros((1, *spec.shape), np.float64), spec)
    with pytest.raises(ValueError, match="column 'step_type'"):
        writer(zeros, 0)
