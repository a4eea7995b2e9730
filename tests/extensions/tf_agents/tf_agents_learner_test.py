"""What TF-Agents' own tests do not check of the drop-in."""

import functools
import re

import numpy as np
import pytest
import tensorflow as tf
from tf_agents.agents.dqn import dqn_agent
from tf_agents.networks import q_network
from tf_agents.train import interval_trigger
from tf_agents.train import learner as peer
from tf_agents.train import triggers as peer_triggers

from tests.testing import lanes, recording_agent, written_summaries
from tests.testing.learner import SPECS, batch
from tflearn.core import strategies
from tflearn.core.train_step import create_train_step
from tflearn.extensions.tf_agents.tf_agents_learner import Learner
from tflearn.files.run_dir import RunDir
from tflearn.jobs import initial_values
from tflearn.jobs.train_settings import Initial
from tflearn.learner.triggers import PeriodicAction


def _learner(directory, agent, dataset_fn, learner_class=Learner, **arguments):
    return learner_class(str(directory), agent.train_step_counter, agent, dataset_fn, **arguments)


def _values(agent):
    return [variable.numpy() for variable in agent.policy.variables()]


def _count_calls(agent, name):
    calls, method = [], getattr(agent, name)

    def counted(*args, **kwargs):
        calls.append(1)
        return method(*args, **kwargs)

    setattr(agent, name, counted)
    return calls


def test_one_trace_per_signature(tmp_path, make_agent, make_dataset_fn):
    agent = make_agent()
    traces = _count_calls(agent, 'train')
    learner = _learner(tmp_path, agent, make_dataset_fn(), summary_interval=None)
    assert len(traces) == 1
    for iterations, parallel_iterations in ((1, 10), (5, 10), (2, 3)):
        learner.run(iterations, parallel_iterations=parallel_iterations)
    learner.run(3, iterator=learner.new_iterator())
    assert len(traces) == 1


@lanes.compiles
@pytest.mark.parametrize('own', [True, pytest.param(False, marks=pytest.mark.slow)])
def test_many_train_steps_in_xla_equal_those_without(tmp_path, make_agent, own, caplog):
    """To the end of the data, with what does not fill a stack of 128, and with batches that `loss` takes."""
    dataset_fn = lambda: tf.data.Dataset.range(302).map(lambda number: (batch(number), ()))  # noqa: E731
    found = {}
    for jit_compile in (False, True):
        agent = make_agent() if own else _agent_of_tf_agents()
        learner = _learner(
            tmp_path / f'{jit_compile}', agent, dataset_fn, jit_compile=jit_compile, summary_interval=100
        )
        calls = learner.loss, *(functools.partial(learner.run, count) for count in (3, 150)), learner.loss
        losses = [call().loss for call in (*calls, functools.partial(learner.run, 200))]
        assert int(learner.train_step_numpy) == 300
        learner.close()
        summaries = written_summaries.scalars(tmp_path / f'{jit_compile}' / 'train')['train/loss']
        assert list(summaries) == [100, 200, 300]
        if own:
            _assert_gradients(tmp_path / f'{jit_compile}' / 'train', [100, 200, 300])
        found[jit_compile] = [*losses, *summaries.values(), *_values(agent)]
        compiled = [line for line in caplog.messages if 'XLA takes up to 128 train steps' in line]
        assert len(compiled) == jit_compile
    for ours, theirs in zip(found[True], found[False], strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize('jit_compile', [True, False])
def test_the_own_data_end_once(tmp_path, make_agent, make_dataset_fn, jit_compile):
    """Also where the first call takes one train step: then batches are read singly."""
    dataset_fn = lambda: tf.data.Dataset.range(9).map(lambda number: (batch(number), ()))  # noqa: E731
    learner = _learner(tmp_path, make_agent(), dataset_fn, jit_compile=jit_compile)
    for count in (1, 5, 5):
        learner.run(count)
    assert int(learner.train_step_numpy) == 9
    with pytest.raises(tf.errors.OutOfRangeError, match='the data ended at train step 9'):
        learner.run()
    with pytest.raises(StopIteration):
        learner.loss()


def _agent_of_tf_agents():
    tf.random.set_seed(1)
    network = q_network.QNetwork(SPECS.observation, SPECS.action, fc_layer_params=(7,))
    agent = dqn_agent.DqnAgent(
        SPECS.time_step,
        SPECS.action,
        q_network=network,
        optimizer=tf.keras.optimizers.Adam(1e-3),
        train_step_counter=create_train_step(),
    )
    agent.initialize()
    for i, variable in enumerate(agent.policy.variables()):
        variable.assign(tf.random.stateless_uniform(variable.shape, (i, 2), -0.5, 0.5))
    return agent


@pytest.mark.parametrize(
    'own', ['iterator', *(pytest.param(each, marks=pytest.mark.slow) for each in ('callback', 'shapes', 'subclass'))]
)
def test_what_xla_cannot_take_is_without_it(tmp_path, make_agent, own, caplog):
    class OwnStep(Learner):
        def single_train_step(self, iterator):
            return super().single_train_step(iterator)

    dataset = tf.data.Dataset.range(20).map(lambda number: (batch(number, 4), ()))
    if own == 'shapes':
        dataset = dataset.unbatch().batch(4)
    arguments = {'after_train_strategy_step_fn': lambda *_: None} if own == 'callback' else {}
    learner_class = OwnStep if own == 'subclass' else Learner
    learner = _learner(tmp_path, make_agent(), lambda: dataset, learner_class, jit_compile=True, **arguments)
    learner.run(8, iterator=learner.new_iterator() if own == 'iterator' else None)
    assert int(learner.train_step_numpy) == 8
    assert not [line for line in caplog.messages if 'XLA takes' in line]


@pytest.mark.parametrize('replicas', [2, pytest.param(4, marks=pytest.mark.slow)])
def test_one_trace_on_replicas_whose_data_may_end(tmp_path, make_agent, make_dataset_fn, replicas):
    strategy = strategies.make(f'mirrored:{replicas}')
    agent, contexts = make_agent(strategy), []
    traces = _count_calls(agent, 'train')

    def dataset_fn(context):
        contexts.append(context.num_replicas_in_sync)
        return make_dataset_fn()(context)

    learner = _learner(tmp_path, agent, dataset_fn, strategy=strategy, summary_interval=4)
    assert contexts == [replicas]
    assert len(traces) == replicas
    learner.run(2)
    assert len(traces) == replicas
    learner.run(2)
    learner.close()
    assert list(written_summaries.scalars(tmp_path / 'train')['gradients/dqn/norm']) == [4]


def test_returns_the_last_steps_loss_and_mean_extras_and_summarizes_the_mean_loss(
    tmp_path, make_agent, make_dataset_fn
):
    single = _learner(tmp_path / 'a', make_agent(), make_dataset_fn(), summary_interval=None)
    infos = [single.run() for _ in range(8)]
    learner = _learner(tmp_path, make_agent(), make_dataset_fn(), summary_interval=4)
    last = learner.run(8)
    learner.close()
    np.testing.assert_allclose(last.loss, infos[-1].loss, rtol=1e-5)
    assert type(last).__name__ == 'LossInfo'
    assert type(last.extra).__name__ == 'DqnLossInfo'
    assert last.loss.shape == last.extra.td_error.shape == ()
    np.testing.assert_allclose(last.extra.td_loss, last.loss, rtol=1e-4)  # a sum would be 8 times as large
    losses = [info.loss.numpy() for info in infos]
    expected = {4: pytest.approx(np.mean(losses[:4]), rel=1e-4), 8: pytest.approx(np.mean(losses[4:]), rel=1e-4)}
    assert written_summaries.scalars(tmp_path / 'train')['train/loss'] == expected, 'since the last summary'
    _assert_gradients(tmp_path / 'train', [4, 8])


def _assert_gradients(directory, steps):
    """Checks norms and histograms of gradients, which are not operations of the agent, but returned by its step."""
    norms = written_summaries.scalars(directory)['gradients/dqn/norm']
    assert list(norms) == steps
    assert min(norms.values()) > 0
    histograms = {
        tag: found for tag, found in written_summaries.histograms(directory).items() if 'gradients/dqn' in tag
    }
    assert len(histograms) > 4
    assert all(list(found) == steps for found in histograms.values())


@pytest.mark.slow  # replicas_test has such a test of `tflearn.Learner`
@pytest.mark.parametrize('replicas', [2, 4])
def test_replicas_agree_with_one(tmp_path, make_agent, make_dataset_fn, replicas):
    strategy = strategies.make(f'mirrored:{replicas}')
    one, several = make_agent(), make_agent(strategy)
    alone = _learner(tmp_path / 'one', one, make_dataset_fn())
    together = _learner(tmp_path / 'several', several, make_dataset_fn(), strategy=strategy)
    for reduce_op in (tf.distribute.ReduceOp.SUM, tf.distribute.ReduceOp.MEAN):
        expected, got = alone.loss(reduce_op=reduce_op), together.loss(reduce_op=reduce_op)
        np.testing.assert_allclose(tf.nest.flatten(got), tf.nest.flatten(expected), rtol=1e-4)
    np.testing.assert_allclose(tf.nest.flatten(together.run(10)), tf.nest.flatten(alone.run(10)), rtol=1e-3)
    for a, b in zip(_values(one), _values(several), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5)


def test_extra_reductions(tmp_path, make_agent, make_dataset_fn):
    mean = _learner(tmp_path / 'a', make_agent(), make_dataset_fn()).loss()
    summed = _learner(tmp_path / 'b', make_agent(), make_dataset_fn(), extra_reductions={'td_loss': 'sum'}).loss()
    np.testing.assert_allclose(summed.extra.td_loss, 8 * mean.extra.td_loss, rtol=1e-5)


def test_loss_has_no_other_effect(tmp_path, make_agent, make_dataset_fn):
    agent, called = make_agent(), []
    learner = _learner(
        tmp_path, agent, make_dataset_fn(), after_train_strategy_step_fn=lambda *_: called.append(1), summary_interval=1
    )
    before = [variable.numpy() for variable in (*agent.policy.variables(), agent.train_step_counter)]
    traced = len(called)
    learner.loss()
    sample = next(iter(make_dataset_fn()(tf.distribute.InputContext())))
    assert np.isfinite(learner.loss(sample).loss)
    learner.close()
    assert len(called) == traced
    for a, b in zip(before, (*agent.policy.variables(), agent.train_step_counter), strict=True):
        np.testing.assert_array_equal(a, b)
    assert written_summaries.tags(tmp_path / 'train') == set()


def test_callback_gets_the_sample_and_the_loss(tmp_path, make_agent, make_dataset_fn):
    total = tf.Variable(0.0)

    def after_step(sample, loss_info):
        experience, info = sample
        assert experience.reward.shape == (8, 2)
        assert set(info) == {'policy_version'}
        total.assign_add(loss_info.loss)

    learner = _learner(tmp_path, make_agent(), make_dataset_fn(), after_train_strategy_step_fn=after_step)
    losses = [learner.run().loss for _ in range(3)]
    np.testing.assert_allclose(total.numpy(), np.sum(losses), rtol=1e-5)


def test_calls_the_callers_triggers(tmp_path, make_agent, make_dataset_fn):
    fired, called, own = [], [], []
    triggers = [
        interval_trigger.IntervalTrigger(4, lambda: fired.append(int(agent.train_step_counter))),
        called.append,
        PeriodicAction(own.append, every_steps=4, at_end=True),
    ]
    agent, kept = make_agent(), list(triggers)
    train = agent.train
    learner = _learner(tmp_path, agent, make_dataset_fn(), triggers=triggers, checkpoint_interval=2)
    assert triggers == kept
    assert agent.train == train
    for _ in range(5):
        learner.run(2)
    assert (called, fired, own) == ([2, 4, 6, 8, 10], [4, 8], [4, 8])
    learner.close()
    assert (fired, own) == ([4, 8, 10], [4, 8, 10])
    again = _learner(tmp_path / 'again', make_agent(), make_dataset_fn(), triggers=triggers)
    again.run(1)
    assert len(learner._checkpointer.manager.checkpoints) == 3


def test_a_trigger_keeps_its_own_start_until_there_is_a_checkpoint(tmp_path, make_agent, make_dataset_fn):
    """The first run exports at once, as its caller requests; a resumed run counts from its train step."""
    for steps in ([1], []):
        fired, agent = [], make_agent()
        act = lambda agent=agent, fired=fired: fired.append(int(agent.train_step_counter))  # noqa: E731
        trigger = interval_trigger.IntervalTrigger(100, act, start=-100)
        learner = _learner(tmp_path, agent, make_dataset_fn(), triggers=[trigger], checkpoint_interval=1)
        learner.run(1)
        assert fired == steps


@pytest.mark.filterwarnings('ignore')
def test_tf_agents_policy_trigger_works(tmp_path, make_agent, make_dataset_fn):
    agent = make_agent()
    export = peer_triggers.PolicySavedModelTrigger(
        str(tmp_path / peer.POLICY_SAVED_MODEL_DIR), agent, agent.train_step_counter, interval=5
    )
    rate = peer_triggers.StepPerSecondLogTrigger(agent.train_step_counter, interval=5)
    learner = _learner(tmp_path, agent, make_dataset_fn(), triggers=[export, rate])
    learner.run(5)
    learner.close()
    names = {path.name for path in (tmp_path / 'policies' / 'checkpoints').iterdir()}
    assert 'policy_checkpoint_0000000005' in names
    assert 'RunTime/train_steps_per_sec' in written_summaries.tags(tmp_path / 'train')
    # Its SavedModel is untrained: a run does not begin with it, but with what the message's call makes of it.
    with pytest.raises(FileNotFoundError, match='which TF-Agents wrote before it trained') as refused:
        _begin_with(tmp_path, agent, tmp_path)
    exec(re.search('from tf_agents.*; .*?(?=`)', str(refused.value))[0], {})
    trained = _values(agent)
    for variable in agent.policy.variables():
        variable.assign(tf.zeros_like(variable))
    _begin_with(tmp_path, agent, tmp_path / 'policies' / 'greedy_policy_trained')
    for value, now in zip(trained, _values(agent), strict=True):
        np.testing.assert_array_equal(now, value)


def _begin_with(tmp_path, agent, policy):
    initial_values.load(agent, Initial(policy=str(policy)), RunDir(tmp_path / 'new'))


@pytest.mark.filterwarnings('ignore')
def test_checkpoints_are_tf_agents(tmp_path, make_agent, make_dataset_fn):
    """Theirs is restored by ours, and ours by theirs."""
    dataset_fn = lambda: make_dataset_fn()(tf.distribute.InputContext())  # noqa: E731
    step, before = 0, None
    for learner_class in (peer.Learner, Learner, peer.Learner):
        agent = make_agent()
        learner = _learner(tmp_path, agent, dataset_fn, learner_class, checkpoint_interval=3)
        assert learner.train_step_numpy == step
        if step:
            np.testing.assert_equal(_all_values(agent), before)
        if step < 6:
            assert learner.run(3).loss.numpy() > 0
        step, before = step + 3, _all_values(agent)
    assert len(before) > 5


def _all_values(agent):
    parts = tf.train.TrackableView(agent).descendants()
    return [part.numpy() for part in parts if isinstance(part, tf.Variable)]


def test_rejects_a_checkpoint_that_does_not_fit(tmp_path, make_agent, make_dataset_fn):
    _learner(tmp_path, make_agent(), make_dataset_fn(), checkpoint_interval=1).run(1)
    with pytest.raises(ValueError, match=r'kernel is float32\[3, 7\] in the checkpoint, float32\[3, 9\] here'):
        _learner(tmp_path, make_agent(units=(9,)), make_dataset_fn())


def test_restores_variables_that_are_made_later(tmp_path, make_agent, make_dataset_fn):
    trained, restored = make_agent(), make_agent()
    straight = _learner(tmp_path, trained, make_dataset_fn(), checkpoint_interval=3)
    straight.run(3)
    learner = _learner(tmp_path, restored, make_dataset_fn(3), run_optimizer_variable_init=False)
    assert learner.train_step_numpy == 3
    straight.run(2)
    learner.run(2)
    for a, b in zip(_values(trained), _values(restored), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5)


@pytest.mark.parametrize('strategy', ['default', 'mirrored:2'])
def test_data_end(tmp_path, make_agent, make_dataset_fn, strategy):
    """The second replica runs out of data first; the steps before count, and the next call raises an error."""
    strategy, called = strategies.make(strategy), []
    agent = make_agent(strategy)
    uneven = lambda context: make_dataset_fn()(context).take(7)  # noqa: E731
    learner = _learner(tmp_path, agent, uneven, triggers=[called.append], checkpoint_interval=3, strategy=strategy)
    taken = 7 // strategy.num_replicas_in_sync
    assert np.isfinite(learner.run(100).loss)
    assert (learner.train_step_numpy, called) == (taken, [taken])
    assert [path.rpartition('-')[2] for path in learner._checkpointer.manager.checkpoints] == [str(taken)]
    with pytest.raises(tf.errors.OutOfRangeError, match=f'the data ended at train step {taken}'):
        learner.run(1)


def test_warns_of_a_train_step_that_is_not_the_agents(tmp_path, make_agent, make_dataset_fn, caplog):
    agent = make_agent()
    Learner(str(tmp_path), tf.Variable(0, dtype=tf.int64), agent, make_dataset_fn()).run(2)
    assert "not the agent's train_step_counter" in caplog.text
    assert agent.train_step_counter == 2


def test_rejects_invalid_arguments(tmp_path, make_agent, make_dataset_fn):
    learner = _learner(tmp_path, make_agent(), None)
    with pytest.raises(ValueError, match='neither an iterator nor experience_dataset_fn'):
        learner.run()
    assert learner.run(1, iterator=iter(make_dataset_fn()(tf.distribute.InputContext()))).loss > 0
    with pytest.raises(AssertionError, match='Iterations must be greater or equal to 1, was 0'):
        learner.run(0)
    with pytest.raises(ValueError, match='need SUM or MEAN'):
        learner.loss(reduce_op='MAX')


@pytest.mark.parametrize('replicas', [1, pytest.param(2, marks=pytest.mark.slow)])
def test_the_train_step_of_a_subclass(tmp_path, make_agent, make_dataset_fn, replicas):
    """It is traced, by AutoGraph as in TF-Agents; it may take several elements, and change the LossInfo."""

    class EverySecond(Learner):
        skipped = tf.Variable(0)

        def single_train_step(self, iterator):
            next(iterator)
            if self.train_step >= 2:
                self.skipped.assign_add(1)
            loss_info = super().single_train_step(iterator)
            return loss_info._replace(loss=self.strategy.run(lambda loss: 0.0 * loss + 1.0, (loss_info.loss,)))

    strategy = strategies.make(f'mirrored:{replicas}') if replicas > 1 else None
    agent, other = make_agent(strategy), make_agent(strategy)
    learner = _learner(tmp_path / 'a', agent, make_dataset_fn(0, 9), EverySecond, strategy=strategy)
    numbered = lambda context: make_dataset_fn(0, 8)(context).enumerate()  # noqa: E731
    seconds = lambda context: numbered(context).filter(lambda i, _: i // replicas % 2 == 1)  # noqa: E731
    plain = lambda context: seconds(context).map(lambda _, element: element)  # noqa: E731
    expected = _learner(tmp_path / 'b', other, plain, strategy=strategy)
    assert learner.run(4).loss == replicas
    expected.run(4)
    assert int(learner.skipped) == 2
    for a, b in zip(_values(agent), _values(other), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5)


@lanes.classic
def test_a_root_in_an_object_store(tmp_path, make_agent, make_dataset_fn):
    fsspec = pytest.importorskip('fsspec', reason='needs pip install ".[stores]"')
    root = f'memory://{tmp_path.name}/run'
    agent = make_agent()
    learner = Learner(root, agent.train_step_counter, agent, make_dataset_fn(), checkpoint_interval=2)
    learner.run(2)
    assert fsspec.filesystem('memory').glob(f'/{tmp_path.name}/run/train/checkpoints/ckpt-2.index')
    learner.run(1)
    learner.close()
    assert fsspec.filesystem('memory').glob(f'/{tmp_path.name}/run/train/events*')
    restored = make_agent()
    again = Learner(root, restored.train_step_counter, restored, make_dataset_fn())
    assert again.train_step_numpy == 3
    for a, b in zip(_values(agent), _values(restored), strict=True):
        np.testing.assert_array_equal(a, b)
    again.close()


# Inputs of the drop-in: formats of samples, keywords, input contexts.


def test_forms_of_samples(tmp_path, make_agent, make_dataset_fn):
    expected = _learner(tmp_path / 'pair', make_agent(), make_dataset_fn(1)).run(3).loss.numpy()

    def loss(name, change, **arguments):
        samples = lambda context: make_dataset_fn()(context).map(change)  # noqa: E731
        learner = _learner(tmp_path / name, make_agent(), samples, **arguments)
        assert np.isfinite(learner.loss().loss)
        return learner.run(3).loss.numpy()

    assert loss('direct', lambda data, info: data, direct_sampling=True) == pytest.approx(expected)
    keywords = lambda data, info: ({'experience': data, 'weights': tf.ones(8)}, info)  # noqa: E731
    assert loss('keywords', keywords, use_kwargs_in_agent_train=True) == pytest.approx(expected)
    with pytest.raises(ValueError, match=r'need \(experience, sample_info\), or direct_sampling=True'):
        loss('wrong', lambda data, info: data)


def test_keywords_reach_the_agent_and_the_callback(tmp_path, make_agent, make_dataset_fn):
    seen = []
    zeros = lambda context: make_dataset_fn()(context).map(  # noqa: E731
        lambda data, info: ({'experience': data, 'weights': tf.zeros(8)}, info)
    )
    learner = _learner(
        tmp_path,
        make_agent(),
        zeros,
        use_kwargs_in_agent_train=True,
        after_train_strategy_step_fn=lambda experience, loss_info: seen.append(set(experience[0])),
    )
    assert learner.run(2).loss == 0.0
    assert seen[-1] == {'experience', 'weights'}


def test_dataset_functions_need_not_take_the_input_context(tmp_path, make_agent, make_dataset_fn):
    without = lambda size=4: make_dataset_fn()(tf.distribute.InputContext())  # noqa: E731
    assert _learner(tmp_path, make_agent(), without).run(1).loss > 0


# The summaries of the drop-in: its own and the agent's.


@pytest.mark.parametrize('interval', [None, 0, pytest.param(-1, marks=pytest.mark.slow)])  # as 0
def test_no_summaries(tmp_path, make_agent, make_dataset_fn, interval):
    """They are not written to the caller's writer either."""
    with tf.summary.create_file_writer(str(tmp_path / 'mine')).as_default(step=0):
        learner = _learner(tmp_path, recording_agent.make(), make_dataset_fn(), summary_interval=interval)
        learner.run(3)
        learner.loss()
    learner.close()
    assert written_summaries.tags(tmp_path / 'mine') == set()
    assert not list(tmp_path.glob('train/events*'))


@pytest.mark.slow
def test_summaries_at_the_multiples(tmp_path, make_dataset_fn):
    tf.random.set_seed(1)
    learner = _learner(
        tmp_path, recording_agent.make(), make_dataset_fn(), summary_interval=4, summary_root_dir=tmp_path / 'summaries'
    )
    for iterations in (3, 7, 2):
        learner.run(iterations)
    learner.close()
    directory = tmp_path / 'summaries' / 'train'
    assert set(written_summaries.scalars(directory)['train/loss']) == {4, 8, 12}
    assert len(written_summaries.scalars(directory)['Losses/td_loss']) == 3  # the agent's own


# The second call has two summaries.
@pytest.mark.parametrize('calls', [(1, 5, 3), pytest.param((9,), marks=pytest.mark.slow)])
def test_summaries_are_at_the_step_of_the_variable(tmp_path, make_dataset_fn, calls):
    """The variable grows by 2 with each train step: 6, 10 and 16 are the first values that reach 5, 10 and 15."""
    agent = recording_agent.make(counts_twice=True)
    learner = _learner(tmp_path, agent, make_dataset_fn(), summary_interval=5)
    for iterations in calls:
        learner.run(iterations)
    learner.close()
    assert int(agent.train_step_counter) == 18
    assert list(written_summaries.scalars(tmp_path / 'train')['train/loss']) == [6, 10, 16]
    assert len(written_summaries.scalars(tmp_path / 'train')['Losses/td_loss']) == 3
