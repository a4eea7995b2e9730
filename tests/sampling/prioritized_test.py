"""Prioritized replay with a real server: draws, weights, and the errors sent back to the table."""

import collections
import contextlib
import threading

import numpy as np
import pytest
import reverb
import tensorflow as tf
from tf_agents.agents import tf_agent

from tests import fakes
from tests.testing.replay import draw, write_steps
from tflearn.core import strategies
from tflearn.core.experience import BatchItems, Experience, Prioritization, Prioritized, Uniform
from tflearn.core.train_step import create_train_step
from tflearn.core.waiting import wait_until
from tflearn.files.run_dir import RunDir
from tflearn.learner.learner import Learner, LearnerOptions
from tflearn.learner.train_loop import LoopOptions
from tflearn.replay import reader
from tflearn.replay.storage import REPLAY
from tflearn.replay.writers import ReplayWriter
from tflearn.sampling.replay_servers import PrioritizedDraws

BATCH = 16
LARGE_BATCH = 10_000  # of 82 bytes: above 512 KiB, so that batches are drawn one by one
LENGTHS = (3, 5)


@pytest.fixture
def open_sampler():
    """Returns a function servers -> PrioritizedDraws; all are closed at the end."""
    with contextlib.ExitStack() as stack:

        def start(served, *others):
            size = served.storage.experience.per_replica_batch_size
            addresses = [each.address for each in (served, *others)]
            sampler = PrioritizedDraws(addresses, served.storage, size, 60.0, seed=1)
            stack.callback(sampler.close)
            return sampler

        yield start


def experience(*prioritization, batch_size=BATCH):
    replay = Prioritized(100_000, 1, None, 0, *prioritization, sampling='server')
    return Experience(replay=replay, batch=BatchItems(batch_size))


def fill(served, num_steps=24):
    writer = ReplayWriter(served.address, served.storage, len(LENGTHS), threading.Event())
    write_steps(writer, fakes.CheckedEnvironment(LENGTHS), num_steps)


def read_items(served):
    """Returns key -> (priority, episode, step) of all items."""
    client, size, found = reverb.Client(served.address), served.table().size, {}
    for _ in range(200):
        for sample in client.sample(REPLAY, 2 * size, emit_timesteps=False):
            if sample.info.key not in found:
                row = served.storage.layout.unpack(tf.constant(sample.data[0]))
                found[sample.info.key] = (sample.info.priority, *row['trajectory'].observation[0].numpy().tolist())
        if len(found) == size:
            break
    return found


def set_priorities(served, seed=0):
    """Gives all items different priorities; returns them by key."""
    keys = sorted(read_items(served))
    assert len(keys) == served.table().size
    values = np.random.default_rng(seed).uniform(0.05, 1.0, len(keys)).tolist()
    updates = dict(zip(keys, values, strict=True))
    reverb.Client(served.address).mutate_priorities(REPLAY, updates)
    return updates


class ErrorsOfData(tf.Module):
    """An agent that learns nothing: the error of an item is its first observation."""

    def __init__(self, error=lambda steps: 0.1 + 0.1 * steps):
        super().__init__()
        self.train_step_counter = create_train_step()
        self._error = error

    def initialize(self):
        pass

    def train(self, trajectory, weights=None):
        self.train_step_counter.assign_add(1)
        return self.loss(trajectory, weights)

    def loss(self, trajectory, weights=None):
        error = self._error(trajectory.observation[:, 0, 1])
        scale = tf.ones_like(error) if weights is None else weights
        return tf_agent.LossInfo(tf.reduce_sum(scale), {'td_error': error})


def learner_of(sampler, directory, agent, strategy=None, **loop):
    options = LearnerOptions(None, None, loop=LoopOptions(**loop))
    return Learner(agent, sampler, RunDir(directory), strategy=strategy, options=options)


def run(learner, num_steps):
    while num_steps > 0:
        taken = learner.run(num_steps).num_steps
        assert taken
        num_steps -= taken


def test_new_items_have_the_initial_priority(serve):
    for value in (1.0, 0.25):
        served = serve(experience(Prioritization(initial_priority=value)))
        fill(served)
        assert {priority for priority, *_ in read_items(served).values()} == {value}


def draw_keys(sampler, num_batches):
    """Draws batches; returns the keys of their items in order, and the newest weight by key."""
    keys, weights = [], {}
    while len(keys) < num_batches * BATCH:
        count = sampler.grant(8)
        _, info = sampler.draw(tf.constant(count, tf.int64), tf.constant(0, tf.int64))
        new = sampler._keys.numpy().ravel().tolist()
        weights |= dict(zip(new, info['weights'].numpy().ravel(), strict=True))
        keys += new
    return keys, weights


def assert_follow(keys, wanted):
    """A chi-squared test of drawn keys."""
    drawn, total = collections.Counter(keys), sum(wanted.values())
    assert drawn.keys() == wanted.keys()
    expected = {key: len(keys) * value / total for key, value in wanted.items()}
    chi_squared = sum((drawn[key] - count) ** 2 / count for key, count in expected.items())
    freedom = len(wanted) - 1
    assert abs(chi_squared - freedom) < 6 * np.sqrt(2 * freedom)


@pytest.mark.parametrize('num_servers', [1, 3])
def test_draws_follow_priorities_and_weights_correct_for_them(tmp_path, serve, open_sampler, num_servers):
    """The draws; exact weights; and the mean over all items, estimated without bias. Of several servers as of one."""
    settings = experience(Prioritization(beta=1.0))
    servers = [serve(settings, checkpoints=tmp_path / str(i) / 'checkpoints') for i in range(num_servers)]
    wanted = {}
    for i, served in enumerate(servers):
        fill(served, 24 if num_servers == 1 else 6 * (i + 1))  # servers with different numbers of items
        wanted |= set_priorities(served, seed=i)
    total = sum(wanted.values())
    sampler = open_sampler(*servers)
    keys, weights = draw_keys(sampler, 600)
    for key, weight in weights.items():
        assert weight == pytest.approx(total / (len(wanted) * wanted[key]), rel=1e-4)
    assert_follow(keys, wanted)
    values = dict(zip(wanted, np.random.default_rng(1).normal(size=len(wanted)), strict=True))
    terms = np.array([weights[key] * values[key] for key in keys])
    error = terms.std() / np.sqrt(len(terms))
    assert abs(terms.mean() - np.mean(list(values.values()))) < 5 * error


def test_weights_are_those_of_all_items_also_when_a_server_is_lost(tmp_path, serve, open_sampler, monkeypatch):
    """Three unequal servers, of which one ends: each weight is (N P)^-beta in float64, over the items that are left."""
    monkeypatch.setattr(reader, '_LOST_SECS', 0.5)
    beta = 0.6
    servers = [
        serve(experience(Prioritization(beta=beta)), checkpoints=tmp_path / str(i) / 'checkpoints') for i in range(3)
    ]
    held = []
    for i, served in enumerate(servers):
        fill(served, 6 * (i + 1))
        held.append(set_priorities(served, seed=i))
    sampler = open_sampler(*servers)

    def assert_exact(present):
        wanted = {key: priority for each in present for key, priority in each.items()}
        total = sum(wanted.values())
        keys, weights = draw_keys(sampler, 200)
        assert weights.keys() == wanted.keys()
        for key, weight in weights.items():
            assert weight == pytest.approx((len(wanted) * wanted[key] / total) ** -beta, rel=1e-6)
        assert_follow(keys, wanted)

    assert_exact(held)
    servers[1].server.close()
    # Its items that were read before are drawn first.
    wait_until(lambda: not set(draw_keys(sampler, 20)[0]) & held[1].keys(), 'batches without the lost server', 30)
    assert_exact([held[0], held[2]])


def test_errors_reach_the_server_that_has_the_item(tmp_path, serve, open_sampler):
    settings = experience(Prioritization(alpha=0.5, epsilon=0.0))
    servers = [serve(settings, checkpoints=tmp_path / name / 'checkpoints') for name in 'ab']
    for served in servers:
        fill(served, 12)
    sampler = open_sampler(*servers)
    run(learner_of(sampler, tmp_path, ErrorsOfData()), 60)
    assert sampler.flush(30)
    for served in servers:
        for priority, _, step in read_items(served).values():
            assert priority == pytest.approx((0.1 + 0.1 * step) ** 0.5, rel=1e-5)
    metrics = sampler.metrics()
    assert 0 <= metrics.pop('priorities_clipped') <= 60 * BATCH, 'as many as were drawn of an error of 1'
    assert metrics == {'priorities_sent': 60 * BATCH, 'priorities_dropped': 0, 'priorities_not_finite': 0}


def test_a_server_without_items_is_left_out_until_it_has_some(tmp_path, serve, open_sampler):
    settings = experience(Prioritization(beta=1.0))
    full, empty = (serve(settings, checkpoints=tmp_path / name / 'checkpoints') for name in 'ab')
    fill(full, 12)
    sampler = open_sampler(full, empty)
    wanted = dict.fromkeys(read_items(full), 1.0)
    keys, weights = draw_keys(sampler, 50)
    assert set(keys) == wanted.keys() and [*weights.values()] == pytest.approx([1.0] * len(weights))
    fill(empty, 12)
    others = dict.fromkeys(read_items(empty), 1.0)
    wait_until(lambda: set(draw_keys(sampler, 1)[0]) & others.keys(), 'items of the other server', 30)
    draw_keys(sampler, 20)  # which were made before
    assert_follow(draw_keys(sampler, 300)[0], wanted | others)


def test_priorities_that_move_to_another_server_are_noticed(tmp_path, serve, open_sampler):
    """Also by a server from which hardly anything was drawn."""
    settings = experience(Prioritization(beta=1.0))
    one, other = (serve(settings, checkpoints=tmp_path / name / 'checkpoints') for name in 'ab')
    for served in (one, other):
        fill(served, 12)
    wanted = [dict.fromkeys(read_items(served), 1.0) for served in (one, other)]
    reverb.Client(other.address).mutate_priorities(REPLAY, dict.fromkeys(wanted[1], 1e-9))
    sampler = open_sampler(one, other)
    assert set(draw_keys(sampler, 50)[0]) == wanted[0].keys()
    reverb.Client(other.address).mutate_priorities(REPLAY, wanted[1])
    wait_until(lambda: set(draw_keys(sampler, 1)[0]) & wanted[1].keys(), 'items of the other server', 30)
    draw_keys(sampler, 20)
    assert_follow(draw_keys(sampler, 300)[0], wanted[0] | wanted[1])


# One replica: by default `test_errors_reach_the_server_that_has_the_item` shows the same.
@pytest.mark.parametrize('replicas', [pytest.param(1, marks=pytest.mark.slow), 2])
@pytest.mark.parametrize(('batch_size', 'num_steps'), [(BATCH, 60), (LARGE_BATCH, 4)])
def test_errors_become_the_priorities_of_their_own_items(
    tmp_path, serve, open_sampler, replicas, batch_size, num_steps
):
    prioritization = Prioritization(alpha=0.5, epsilon=0.0)
    served = serve(experience(prioritization, batch_size=batch_size))
    fill(served)
    sampler = open_sampler(served)
    assert (sampler.max_draw_steps == 1) == (batch_size == LARGE_BATCH)
    strategy = strategies.make(f'mirrored:{replicas}') if replicas > 1 else tf.distribute.get_strategy()
    with strategy.scope():
        agent = ErrorsOfData()
    run(learner_of(sampler, tmp_path, agent, strategy), num_steps)
    assert sampler.flush(30)
    for priority, _, step in read_items(served).values():
        assert priority == pytest.approx((0.1 + 0.1 * step) ** 0.5, rel=1e-5)
    num_sent, metrics = num_steps * batch_size, sampler.metrics()
    assert 0 <= metrics.pop('priorities_clipped') <= num_sent, 'as many as were drawn of an error of 1'
    assert metrics == {'priorities_sent': num_sent, 'priorities_dropped': 0, 'priorities_not_finite': 0}


@pytest.mark.parametrize('on_nonfinite', ['skip', 'stop'])
def test_errors_that_are_not_finite_do_not_change_priorities(tmp_path, serve, open_sampler, on_nonfinite):
    served = serve(experience(Prioritization(alpha=1.0, epsilon=0.0)))
    fill(served)
    sampler = open_sampler(served)
    agent = ErrorsOfData(lambda steps: tf.where(steps == 1.0, np.nan, 0.5 * tf.ones_like(steps)))
    run(learner_of(sampler, tmp_path, agent, on_nonfinite=on_nonfinite), 60)
    assert sampler.flush(30)
    for priority, _, step in read_items(served).values():
        assert priority == (1.0 if step == 1.0 else 0.5)
    assert sampler.metrics()['priorities_not_finite'] > 0


def test_loss_that_stops_training_still_sends_earlier_errors(tmp_path, serve, open_sampler):
    class Stops(ErrorsOfData):
        def loss(self, trajectory, weights=None):
            found = super().loss(trajectory, weights)
            return found._replace(loss=tf.where(self.train_step_counter >= 3, np.nan, found.loss))

    served = serve(experience())
    fill(served)
    sampler = open_sampler(served)
    learner = learner_of(sampler, tmp_path, Stops())
    sampler.grant(1)  # begins to read
    wait_until(lambda: sampler._reader.size() >= 8, 'batches', 30)
    with pytest.raises(FloatingPointError):
        run(learner, 8)
    assert sampler.flush(30)
    assert sampler.metrics()['priorities_sent'] == 3 * BATCH


def test_normalizes_weights_by_the_maximum_of_the_batch(tmp_path, serve, open_sampler):
    served = serve(experience(Prioritization(alpha=0.0, beta=0.5, normalize_by_max=True)))
    fill(served)
    set_priorities(served)
    sampler = open_sampler(served)
    learner = learner_of(sampler, tmp_path, ErrorsOfData())
    _, info = draw(sampler)
    assert info['weights'].numpy().max() != pytest.approx(1.0)  # as the sampler gives them
    for _ in range(5):
        result = learner.run(1)  # its loss is the sum of the weights
        assert 1.0 <= result.loss < BATCH
        assert result.info['weights'] != pytest.approx(result.loss / BATCH)


def test_loss_updates_no_priority(tmp_path, serve, open_sampler):
    served = serve(experience(Prioritization(alpha=1.0)))
    fill(served)
    sampler = open_sampler(served)
    learner = learner_of(sampler, tmp_path, ErrorsOfData())
    learner.loss()
    learner.run(1)
    assert sampler.flush(30)
    assert sampler.metrics()['priorities_sent'] == BATCH
    changed = {(step, priority) for priority, _, step in read_items(served).values() if priority != 1.0}
    assert changed
    for step, priority in changed:
        assert priority == pytest.approx(0.1 + 0.1 * step, rel=1e-4)


def test_rejects_agent_without_errors(tmp_path, serve, open_sampler):
    served = serve(experience(Prioritization(error='q_error')))
    sampler = open_sampler(served)
    with pytest.raises(ValueError, match=r"extra metrics \{'td_error': \[16\]\}; need 'q_error' with one number"):
        learner_of(sampler, tmp_path, ErrorsOfData())


def test_continues_after_a_restart_of_server_and_learner(tmp_path, serve, open_sampler):
    """The server's checkpoint restores priorities."""
    settings = experience(Prioritization(alpha=1.0, epsilon=0.0))
    served = serve(settings)
    fill(served)
    sampler = open_sampler(served)
    learner = learner_of(sampler, tmp_path / 'learner', ErrorsOfData())
    run(learner, 20)
    learner.close()
    before = read_items(served)
    served.server.checkpoint()
    served.server.close()
    served = serve(settings)
    assert read_items(served) == before
    sampler_back = open_sampler(served)
    again = learner_of(sampler_back, tmp_path / 'learner', ErrorsOfData(lambda steps: 0.5 + 0.0 * steps))
    assert again.step == 20
    run(again, 400)  # so that it draws each of them at least once: by chance 60 left one out
    assert sampler_back.flush(30)
    assert {priority for priority, *_ in read_items(served).values()} == {0.5}


def test_rejects_uniform_replay(serve):
    served = serve(Experience(replay=Uniform(sampling='server')))
    with pytest.raises(TypeError, match=r'got Experience.replay=Uniform\(.*; need Prioritized'):
        PrioritizedDraws([served.address], served.storage, BATCH, 60.0)
