"""Batches with numbers that are not finite, trained on by the learner with each agent."""

import numpy as np
import pytest
import tensorflow as tf
from tf_agents.agents.dqn import dqn_agent
from tf_agents.networks import q_network

from tests.agents import example_data
from tests.testing.algorithms import ALGORITHMS, names
from tests.testing.learner import without_autotuning
from tflearn.core import strategies
from tflearn.core.train_step import create_train_step
from tflearn.files.run_dir import RunDir
from tflearn.learner.learner import Learner, LearnerOptions
from tflearn.learner.train_loop import LoopOptions
from tflearn.optimization.optimizers import OptimizerOptions

POISONED = 3  # index of the batch whose first reward is not a number
# The others take long to compile.
KINDS = names('dqn', argument='optimizer')
SKIPPING = OptimizerOptions(skip_nonfinite=True)


def _agent(kind, strategy=None, **changes):
    with (strategy or strategies.make('default')).scope():
        return ALGORITHMS[kind].make(**changes)


def _learner(directory, agent, kind, on_nonfinite, bad=np.nan, strategy=None):
    strategy = strategy or strategies.make('default')
    replicas = strategy.num_replicas_in_sync

    def dataset_fn(context):
        data = [example_data.sequences(agent, 8, ALGORITHMS[kind].length, seed=i) for i in range(8 * replicas)]
        stacked = tf.nest.map_structure(lambda *parts: tf.stack(parts), *data)
        mask = np.zeros(stacked.reward.shape, bool)
        mask[POISONED * replicas, 0] = True  # on the first replica only
        stacked = stacked._replace(reward=tf.where(mask, bad, stacked.reward))
        return without_autotuning(tf.data.Dataset.from_tensor_slices(stacked).repeat())

    options = LearnerOptions(summaries=None, loop=LoopOptions(jit_compile=False, on_nonfinite=on_nonfinite))
    return Learner(agent, dataset_fn, RunDir(directory), strategy=strategy, options=options)


def _values(agent):
    parts = tf.train.TrackableView(agent).descendants()
    return [part.numpy() for part in parts if isinstance(part, tf.Variable) and part.dtype.is_floating]


def _finite(agent):
    return all(np.isfinite(value).all() for value in _values(agent))


@pytest.mark.parametrize('kind', KINDS)
def test_stop_saves_finite_variables(tmp_path, kind):
    agent = _agent(kind, optimizer=SKIPPING)
    learner = _learner(tmp_path, agent, kind, 'stop')
    message = f'not finite at train step {POISONED + 1}; its batch has .* in reward; need finite data; .*from .*ckpt-4'
    with pytest.raises(FloatingPointError, match=message):
        learner.run(6)
    learner.close()
    assert _finite(agent)
    again = _agent(kind, optimizer=SKIPPING)
    assert _learner(tmp_path, again, kind, 'stop').step == POISONED + 1
    assert _finite(again)


@pytest.mark.parametrize('kind', KINDS)
def test_stop_does_not_save_variables_that_are_not_finite(tmp_path, kind):
    agent = _agent(kind)
    learner = _learner(tmp_path, agent, kind, 'stop')
    learner.run(POISONED)
    learner.save()
    with pytest.raises(
        FloatingPointError, match='more variables are not finite either; its batch has .* in reward; .*ckpt-3'
    ):
        learner.run(6)
    learner.close()
    assert [path.name for path in RunDir(tmp_path).checkpoints.glob('*.index')] == ['ckpt-3.index']


@pytest.mark.parametrize(
    ('kind', 'bad', 'strategy'),
    [
        pytest.param('dqn', np.nan, 'default', marks=pytest.mark.slow),
        ('dqn', np.inf, 'default'),
        pytest.param('dqn', np.inf, 'mirrored:2', marks=pytest.mark.slow),
        pytest.param('sac', np.inf, 'default', marks=pytest.mark.slow),
        pytest.param('ppo', np.nan, 'default', marks=pytest.mark.slow),
        pytest.param('ppo', np.nan, 'mirrored:2', marks=pytest.mark.slow),
    ],
)
def test_skip_continues_without_the_batch(tmp_path, kind, bad, strategy):
    """An infinite Huber loss has finite gradients: they are not applied either."""
    strategy = strategies.make(strategy)
    agent = _agent(kind, strategy, optimizer=SKIPPING)
    learner = _learner(tmp_path, agent, kind, 'skip', bad, strategy)
    assert learner.run(POISONED).num_nonfinite == 0
    before = [variable.numpy() for variable in agent.collect_policy.variables()]
    assert learner.run(1).num_nonfinite == 1
    for a, b in zip(before, agent.collect_policy.variables(), strict=True):
        np.testing.assert_array_equal(a, b.numpy())
    result = learner.run(10)
    assert (result.num_steps, result.num_nonfinite, learner.step) == (10, 1, 14)
    assert np.isfinite(result.loss) and _finite(agent)
    assert any((a != b.numpy()).any() for a, b in zip(before, agent.collect_policy.variables(), strict=True))


@pytest.mark.parametrize('kind', KINDS)
def test_skip_needs_an_optimizer_that_skips(tmp_path, kind):
    learner = _learner(tmp_path, _agent(kind), kind, 'skip')
    with pytest.raises(FloatingPointError, match=r'are not finite either; .*OptimizerOptions\(skip_nonfinite=True\)'):
        learner.run(6)


@pytest.mark.parametrize('kind', KINDS)
def test_ignore_continues(tmp_path, kind):
    learner = _learner(tmp_path, _agent(kind), kind, 'ignore')
    result = learner.run(6)
    assert (result.num_steps, result.num_nonfinite) == (6, 0)
    assert not np.isfinite(result.loss)


def test_agent_that_raises_itself(tmp_path):
    specs = ALGORITHMS['dqn'].specs
    agent = dqn_agent.DqnAgent(
        specs.time_step,
        specs.action,
        q_network=q_network.QNetwork(specs.observation, specs.action, fc_layer_params=(8,)),
        optimizer=tf.keras.optimizers.Adam(1e-3),
        train_step_counter=create_train_step(),
    )
    learner = _learner(tmp_path, agent, 'dqn', 'skip')
    with pytest.raises(
        FloatingPointError, match=r'got a loss that is not finite at train step \d; continue from the b'
    ):
        learner.run(6)


def _spoilt_at_step_3(directory, on_nonfinite, variables):
    """A learner whose third train step has a finite loss, but writes NaN to weights or the optimizer's variables."""
    agent = _agent('dqn')

    def spoil(data, loss_info):
        for variable in variables(agent):
            variable.assign(tf.where(tf.equal(agent.train_step_counter, 3), np.nan, variable))

    loop = LoopOptions(jit_compile=False, on_nonfinite=on_nonfinite, after_step=spoil)
    options = LearnerOptions(1, None, loop=loop)
    data = example_data.sequences(agent, 8, 2)
    dataset_fn = lambda context: without_autotuning(tf.data.Dataset.from_tensors(data).repeat())  # noqa: E731
    return agent, Learner(agent, dataset_fn, RunDir(directory), options=options)


def _weights(agent):
    return agent.collect_policy.variables()[:1]


def _slots(agent):
    return [variable for variable in agent._optimizer.variables if variable.dtype.is_floating][:1]


@pytest.mark.parametrize(('variables', 'on_nonfinite'), [(_weights, 'skip'), (_slots, 'stop')])
def test_does_not_save_bad_weights_after_a_finite_loss(tmp_path, variables, on_nonfinite):
    _, learner = _spoilt_at_step_3(tmp_path, on_nonfinite, variables)
    learner.run(2)
    assert np.isfinite(learner.run(1).loss)
    learner.checkpoints._background.join(60)
    with pytest.raises(FloatingPointError, match='variables at train step 3 .* the newest checkpoint is .*ckpt-2$'):
        learner.run(1)
    learner.close()
    assert sorted(path.name for path in RunDir(tmp_path).checkpoints.glob('*.index')) == ['ckpt-2.index']


def test_refuses_the_last_checkpoint_too(tmp_path):
    _, learner = _spoilt_at_step_3(tmp_path, 'stop', _weights)
    learner.run(2)
    learner.run(1)
    with pytest.raises(FloatingPointError, match='variables at train step 3'):
        learner.close()


def test_ignore_resumes_from_the_previous_checkpoint(tmp_path, caplog):
    _, learner = _spoilt_at_step_3(tmp_path, 'ignore', _weights)
    learner.run(2)
    learner.run(1)
    assert learner.run(2).num_steps == 2
    learner.close()
    assert [path.name for path in RunDir(tmp_path).checkpoints.glob('*.index')] == ['ckpt-2.index']
    assert 'they were not saved' in caplog.text
    again, goes_on = _spoilt_at_step_3(tmp_path, 'stop', lambda agent: [])
    assert goes_on.step == 2 and _finite(again)
    assert goes_on.run(2).num_steps == 2
    goes_on.close()
