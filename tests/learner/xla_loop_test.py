"""Train steps in one XLA program: the same numbers as without, or not chosen.

Both compute in float32, in another order: after tens of steps of Adam, variables differ by about 1e-5.
"""

import functools
import logging

import numpy as np
import pytest
import tensorflow as tf

from tests.agents import example_data
from tests.testing import experiences, lanes, written_summaries
from tests.testing.algorithms import ALGORITHMS, names
from tflearn.agents import dqn, impala, ppo
from tflearn.core import strategies
from tflearn.core.experience import BatchItems, Experience, Iteration, Uniform
from tflearn.core.train_step import create_train_step
from tflearn.files.run_dir import RunDir
from tflearn.learner import xla_loop
from tflearn.learner.learner import Learner, LearnerOptions
from tflearn.learner.summaries import SummaryOptions
from tflearn.learner.train_loop import LoopOptions
from tflearn.networks.networks import NetworkOptions
from tflearn.optimization import schedules
from tflearn.optimization.optimizers import OptimizerOptions
from tflearn.replay.storage import Storage
from tflearn.sampling.minibatches import MinibatchSource
from tflearn.sampling.ring_source import LocalReplay
from tflearn.sampling.source import Source

LENGTH = 5
SLOW = pytest.mark.slow
SMALL = NetworkOptions(fc_layer_params=(8,))
REPLAY = Experience(replay=Uniform(max_size=500, min_size=1, samples_per_insert=1e9), batch=BatchItems(8))


class Stored(Source):
    """A `Source` of given batches, again and again, as many as are asked for; it takes one index at a time."""

    max_draw_steps = 40

    def __init__(self, *batches):
        self._batches, self._size = tf.nest.map_structure(lambda *parts: tf.stack(parts), *batches), len(batches)

    def grant(self, num_steps):
        return num_steps

    def draw(self, num_steps, seed):
        return (seed + tf.range(tf.cast(num_steps, tf.int64))) % self._size

    def batch(self, drawn, i):
        data = tf.nest.map_structure(lambda leaf: tf.gather(leaf, drawn[i]), self._batches)
        return data, {'policy_version': tf.fill(tf.nest.flatten(data)[0].shape[:2], drawn[i])}


def _fixed(agent):
    parts = tf.train.TrackableView(agent).descendants()
    trained = [part for part in parts if isinstance(part, tf.Variable) and part.trainable and part.dtype.is_floating]
    for i, variable in enumerate(trained):
        variable.assign(tf.random.stateless_uniform(variable.shape, (i, 3), -0.5, 0.5))
    return agent


def _dqn(**changes):
    settings = {
        'network': NetworkOptions(fc_layer_params=(8,)),
        'optimizer': OptimizerOptions(schedules.linear(1e-2, 1e-3, 100), gradient_clipping=1.0),
        'target_update_period': 7,
        **changes,
    }
    tf.random.set_seed(5)  # that of what the train steps draw
    agent = _fixed(dqn.make_agent(example_data.DISCRETE, create_train_step(), REPLAY, **settings))
    replay = LocalReplay(Storage(REPLAY, agent.collect_data_spec), 4, 8, seed=3)
    data = example_data.sequences(agent, 4, 60)
    types = np.tile(np.array([0, *[1] * 58, 2, 0], np.int32), (4, 1))  # an episode each
    data = data._replace(step_type=types[:, :-1], next_step_type=types[:, 1:])
    data = tf.nest.map_structure(np.asarray, data)
    for step in range(60):
        replay(tf.nest.map_structure(lambda leaf, step=step: leaf[:, step], data), step)
    return agent, replay


def _ppo():
    experience = experiences.changed(ppo.EXPERIENCE, sequence_length=LENGTH, stride=LENGTH - 1)
    agent = _fixed(ppo.make_agent(example_data.CONTINUOUS, create_train_step(), experience, network=SMALL))
    sequences = Stored(example_data.sequences(agent, 6, LENGTH))
    # 24 steps in minibatches of 8, of which the last has no more than 6.
    return agent, MinibatchSource(sequences, agent.prepare, Iteration(4, 7), strategies.make('default'))


def _impala():
    agent = _fixed(impala.make_agent(example_data.DISCRETE, create_train_step(), impala.EXPERIENCE, network=SMALL))
    return agent, Stored(*(example_data.sequences(agent, 4, 9, seed) for seed in range(50)))


def _drawn(name):
    tf.random.set_seed(5)  # that of what the train steps draw
    algorithm = ALGORITHMS[name]
    agent = _fixed(algorithm.make())
    return agent, Stored(*(example_data.sequences(agent, 8, algorithm.length, seed) for seed in range(40)))


def _sac():
    return _drawn('sac')


def _learner(directory, agent, source, summaries=None, **loop):
    return Learner(agent, source, RunDir(directory), options=LearnerOptions(None, summaries, loop=LoopOptions(**loop)))


def _trained(directory, made, counts, jit_compile, **loop):
    """Returns the results of calls of `run`, the agent's variables after them, and whether XLA was used."""
    agent, source = made
    learner = _learner(directory, agent, source, jit_compile=jit_compile, **loop)
    learner.prepare(1000)
    results = [learner.run(count) for count in counts]
    uses_xla = learner.jit_compiles
    parts = tf.train.TrackableView(agent).descendants()
    learner.close()
    return results, [part.numpy() for part in parts if isinstance(part, tf.Variable)], uses_xla


@lanes.compiles
@pytest.mark.parametrize(
    ('make', 'counts'),
    [
        pytest.param(_dqn, (1, 5, 150), marks=lanes.classic),  # XLA's program takes 128 at a time
        (_ppo, (3, 5, 40)),  # in parts of an iteration of 16, and three more
        pytest.param(_impala, (50,), marks=pytest.mark.slow),  # more than are drawn at a time
        (_sac, (40,)),  # these draw random numbers
        pytest.param(lambda: _dqn(noisy_sigma=0.5), (40,), marks=pytest.mark.slow),
        *(
            pytest.param(functools.partial(_drawn, name), (40,), marks=pytest.mark.slow, id=name)
            for name in names(action='continuous', data='uniform', argument='network')
            if name != 'sac'
        ),
    ],
)
def test_same_numbers_as_without(tmp_path, monkeypatch, make, counts):
    monkeypatch.setattr(xla_loop, 'AUTO_AFTER_STEPS', 0)
    plain, expected, _ = _trained(tmp_path / 'plain', make(), counts, False)
    results, variables, uses_xla = _trained(tmp_path / 'xla', make(), counts, 'auto' if make is _sac else True)
    assert uses_xla
    for ours, theirs in zip(results, plain, strict=True):
        assert ours.num_steps == theirs.num_steps > 0
        assert ours.data_ended == theirs.data_ended
        assert ours.loss == pytest.approx(theirs.loss, rel=1e-4, abs=1e-6)
        assert ours.extra == pytest.approx(theirs.extra, rel=1e-3, abs=1e-5)
        assert ours.info == theirs.info
    for ours, theirs in zip(variables, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-4)


def test_summarized_steps_are_taken_without(tmp_path):
    found = {}
    for jit_compile in (False, True):
        agent, source = _dqn()
        directory = tmp_path / str(jit_compile)
        learner = _learner(directory, agent, source, SummaryOptions(interval_steps=10), jit_compile=jit_compile)
        assert learner.run(35).num_steps == learner.step == 35
        learner.close()
        found[jit_compile] = written_summaries.scalars(RunDir(directory).summaries('train'))
    scalars = found[True]
    assert list(scalars['gradients/dqn/norm']) == [10, 20, 30]
    assert scalars['gradients/dqn/norm'] == pytest.approx(found[False]['gradients/dqn/norm'], rel=1e-3)
    assert list(scalars['train/loss']) == [10, 20, 30, 35]
    assert list(scalars['Losses/td_loss']) == [9, 19, 29], 'of the steps that are summarized'


@pytest.mark.parametrize('on_nonfinite', ['stop', *(pytest.param(how, marks=SLOW) for how in ('skip', 'ignore'))])
def test_losses_that_are_not_finite(tmp_path, on_nonfinite):
    def make():
        skipping = OptimizerOptions(skip_nonfinite=True)
        agent = _fixed(
            dqn.make_agent(
                example_data.DISCRETE,
                create_train_step(),
                REPLAY,
                network=NetworkOptions(fc_layer_params=(8,)),
                optimizer=skipping,
            )
        )
        batches = [example_data.sequences(agent, 4, 2, seed) for seed in range(20)]
        batches[6] = batches[6]._replace(reward=batches[6].reward * np.nan)
        return agent, Stored(*batches)

    outcomes = []
    for jit_compile in (False, True):
        agent, source = make()
        loop = {'jit_compile': jit_compile, 'on_nonfinite': on_nonfinite}
        learner = _learner(tmp_path / str(jit_compile), agent, source, **loop)
        if on_nonfinite == 'stop':
            with pytest.raises(FloatingPointError, match='not finite at train step 7'):
                learner.run(12)
        else:
            result = learner.run(12)
            assert result.num_steps == 12
            assert result.num_nonfinite == (on_nonfinite == 'skip')
            outcomes.append(result.loss)
        outcomes += [variable.numpy() for variable in agent.collect_policy.variables()]
        assert learner.step == (7 if on_nonfinite == 'stop' else 12)
    for ours, theirs in zip(outcomes[len(outcomes) // 2 :], outcomes[: len(outcomes) // 2], strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-5)


def test_trains_without_where_xla_cannot_compile(tmp_path, caplog):
    seen = []

    def after_step(element, loss_info):
        tf.py_function(lambda loss: seen.append(float(loss)), [loss_info.loss], [])

    made = _dqn()
    with caplog.at_level(logging.INFO, 'absl'):
        (result, again), _, uses_xla = _trained(tmp_path, made, (6, 6), True, after_step=after_step)
    assert not uses_xla
    assert result.num_steps == again.num_steps == 6
    assert len(seen) == 12
    assert sum('trains without XLA' in record.message for record in caplog.records) == 1


def test_auto_leaves_out_large_networks(tmp_path, monkeypatch):
    monkeypatch.setattr(xla_loop, 'AUTO_AFTER_STEPS', 0)
    with _learner(tmp_path, *_dqn(network=NetworkOptions(fc_layer_params=(1024, 1024)))) as learner:
        learner.prepare(1000)
        assert not learner.jit_compiles


@lanes.compiles
def test_the_default_compiles_after_many_steps(tmp_path, monkeypatch):
    monkeypatch.setattr(xla_loop, 'AUTO_AFTER_STEPS', 20)
    learner = _learner(tmp_path, *_dqn())
    learner.prepare(10**6)
    for count, compiles in ((3, False), (12, False), (8, False), (3, False), (4, True)):
        assert learner.run(count).num_steps == count
        assert learner.jit_compiles == compiles, 'calls of less than four steps do not count'
    learner.close()


@pytest.mark.parametrize(
    ('shape', 'reason'), [((8, 8), None), ((3000, 3000), 'too large'), ((None, 8), 'varying size')]
)
def test_rule_counts_matrix_products(shape, reason):
    def product(a):
        return a @ tf.ones((shape[1], 8))

    found = xla_loop.why_slower_in_xla(tf.function(product).get_concrete_function(tf.TensorSpec(shape)).graph)
    assert (reason in found) if reason else found is None


def _loop(a):
    return tf.while_loop(lambda i, _: i < 3, lambda i, a: (i + 1, a @ tf.ones((8, 8))), (0, a))


@pytest.mark.parametrize(
    ('function', 'shape', 'reason'),
    [
        (lambda _: tf.random.normal((3,), seed=1), (8, 8), 'random numbers'),
        (_loop, (8, 8), 'in loops'),  # whose number is not known
        (lambda x: tf.nn.conv2d(x, tf.ones((3, 3, 1, 2)), 1, 'SAME'), (1, 8, 8, 1), 'convolutions'),
    ],
)
def test_rule_names_what_is_slower_in_xla(function, shape, reason):
    graph = tf.function(function).get_concrete_function(tf.TensorSpec(shape)).graph
    assert reason in xla_loop.why_slower_in_xla(graph)
