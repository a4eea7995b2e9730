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
from tflearn.distribute import strategies
from tflearn.experience import BatchItems, Experience, Prioritization, Prioritized, Uniform
from tflearn.learner.learner import Learner, LearnerOptions
from tflearn.learner.train_loop import LoopOptions
from tflearn.replay.storage import REPLAY
from tflearn.replay.writers import ReplayWriter
from tflearn.run_dir import RunDir
from tflearn.sampling.sampler import PrioritizedSampler
from tflearn.train_step import create_train_step
from tflearn.waiting import wait_until

BATCH = 16
LARGE_BATCH = 10_000  # of 82 bytes: above 512 KiB, so that batches are drawn one by one
LENGTHS = (3, 5)


@pytest.fixture
def open_sampler():
    """Returns a function served -> PrioritizedSampler; all are closed at the end."""
    with contextlib.ExitStack() as stack:

        def start(served):
            size = served.storage.experience.per_replica_batch_size
            sampler = PrioritizedSampler(served.address, served.storage, size, 60.0)
            stack.callback(sampler.close)
            return sampler

        yield start


def experience(*prioritization, batch_size=BATCH):
    return Experience(replay=Prioritized(100_000, 1, None, 0, *prioritization), batch=BatchItems(batch_size))


def fill(served, num_steps=24):
    writer = ReplayWriter(served.address, served.storage, len(LENGTHS), threading.Event())
    write_steps(writer, fakes.CheckedEnvironment(LENGTHS), num_steps)


def read_items(served):
    """Returns key -> (priority, episode, step) of all items."""
    client, size, found = reverb.Client(served.address), served.table().current_size, {}
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
    assert len(keys) == served.table().current_size
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


def test_draws_follow_priorities_and_weights_correct_for_them(serve, open_sampler):
    """A chi-squared test of the draws; exact weights; and the mean over all items, estimated without bias."""
    served = serve(experience(Prioritization(beta=1.0)))
    fill(served)
    wanted = set_priorities(served)
    total = sum(wanted.values())
    sampler = open_sampler(served)
    drawn, weights, keys = collections.Counter(), {}, []
    compiled = tf.function(sampler.draw, autograph=False)
    num_batches = 0
    while num_batches < 600:
        count = sampler.grant(8)
        _, info = compiled(tf.constant(count, tf.int64), tf.constant(0, tf.int64))
        keys += sampler._drawn.numpy().ravel().tolist()
        weights |= dict(zip(sampler._drawn.numpy().ravel().tolist(), info['weights'].numpy().ravel(), strict=True))
        num_batches += count
    drawn.update(keys)
    assert drawn.keys() == wanted.keys()
    for key, weight in weights.items():
        assert weight == pytest.approx(total / (len(wanted) * wanted[key]), rel=1e-4)
    expected = {key: len(keys) * value / total for key, value in wanted.items()}
    chi_squared = sum((drawn[key] - count) ** 2 / count for key, count in expected.items())
    freedom = len(wanted) - 1
    assert abs(chi_squared - freedom) < 6 * np.sqrt(2 * freedom)
    values = dict(zip(wanted, np.random.default_rng(1).normal(size=len(wanted)), strict=True))
    terms = np.array([weights[key] * values[key] for key in keys])
    error = terms.std() / np.sqrt(len(terms))
    assert abs(terms.mean() - np.mean(list(values.values()))) < 5 * error


@pytest.mark.parametrize('replicas', [1, 2])
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
    assert sampler._updater.flush(30)
    for priority, _, step in read_items(served).values():
        assert priority == pytest.approx((0.1 + 0.1 * step) ** 0.5, rel=1e-5)
    assert sampler.metrics() == {
        'priorities_sent': num_steps * batch_size,
        'priorities_dropped': 0,
        'priorities_not_finite': 0,
    }


@pytest.mark.parametrize('on_nonfinite', ['skip', 'stop'])
def test_errors_that_are_not_finite_do_not_change_priorities(tmp_path, serve, open_sampler, on_nonfinite):
    served = serve(experience(Prioritization(alpha=1.0, epsilon=0.0)))
    fill(served)
    sampler = open_sampler(served)
    agent = ErrorsOfData(lambda steps: tf.where(steps == 1.0, np.nan, 0.5 * tf.ones_like(steps)))
    run(learner_of(sampler, tmp_path, agent, on_nonfinite=on_nonfinite), 60)
    assert sampler._updater.flush(30)
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
    assert sampler._updater.flush(30)
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
    assert sampler._updater.flush(30)
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
    run(again, 60)
    assert sampler_back._updater.flush(30)
    assert {priority for priority, *_ in read_items(served).values()} == {0.5}


def test_rejects_uniform_replay(serve):
    served = serve(Experience(replay=Uniform(sampling='server')))
    with pytest.raises(TypeError, match=r'got Experience.replay=Uniform\(.*; need Prioritized'):
        PrioritizedSampler(served.address, served.storage, BATCH, 60.0)
