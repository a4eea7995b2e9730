"""Options and methods of the learner."""

import dataclasses
import threading

import numpy as np
import pytest
import tensorflow as tf

from tests.testing import lanes, written_summaries
from tests.testing import learner as small
from tflearn.core import strategies
from tflearn.files import lock
from tflearn.files.run_dir import RunDir
from tflearn.learner.learner import Learner, LearnerOptions
from tflearn.learner.stop_conditions import StopConditions
from tflearn.learner.summaries import SummaryOptions
from tflearn.learner.train_loop import LoopOptions
from tflearn.learner.triggers import PeriodicAction


def _options(jit_compile=False, **loop):
    """Options of a learner that takes batches one by one, unless it is for XLA, which takes them in stacks."""
    loop_options = LoopOptions(jit_compile=jit_compile, **loop)
    return LearnerOptions(checkpoint_interval_steps=None, summaries=None, loop=loop_options)


def _values(agent):
    views = tf.train.TrackableView(agent).descendants()
    return [view.numpy() for view in views if isinstance(view, tf.Variable)]


def test_own_triggers_are_called_after_all_others(tmp_path, make_agent, make_dataset_fn):
    calls = []

    def make_triggers(learner):
        def report(step):
            calls.append(('own', step, len(learner.agent.policy.variables())))
            learner.summarize({'own': step})

        return [PeriodicAction(report, every_steps=3)]

    summaries = SummaryOptions(interval_steps=100)
    options = dataclasses.replace(_options(), summaries=summaries, make_triggers=make_triggers)
    given = [PeriodicAction(lambda step: calls.append(('given', step)), every_steps=3)]
    with Learner(make_agent(), make_dataset_fn(), RunDir(tmp_path), triggers=given, options=options) as learner:
        for _ in range(3):
            learner.run(2)
    assert calls == [('given', 4), ('own', 4, 4), ('given', 6), ('own', 6, 4)]
    assert written_summaries.scalars(RunDir(tmp_path).summaries('train'))['train/own'] == {4: 4, 6: 6}


def test_own_triggers_are_a_list(tmp_path, make_agent, make_dataset_fn):
    options = dataclasses.replace(_options(), make_triggers=lambda learner: None)
    with pytest.raises(TypeError, match='got None from make_triggers; need a list of triggers; return one'):
        Learner(make_agent(), make_dataset_fn(), RunDir(tmp_path), options=options)


def test_loss_of_a_batch_has_no_other_effect(tmp_path, make_agent, make_dataset_fn):
    strategy = strategies.make('mirrored:2')
    agent, called = make_agent(strategy), []
    options = _options(after_step=lambda element, loss_info: called.append(1))
    learner = Learner(agent, make_dataset_fn(), RunDir(tmp_path), strategy=strategy, options=options)
    called.clear()
    before = _values(agent)
    element = learner._batches.next()
    first, again = learner.loss(element), learner.loss(element)
    assert first.loss == again.loss
    assert np.isfinite([first.loss, *first.extra.values()]).all()
    assert (called, learner.step) == ([], 0)
    for a, b in zip(before, _values(agent), strict=True):
        np.testing.assert_array_equal(a, b)
    # The agent's own loss is its share of the global batch, summed.
    element = next(iter(make_dataset_fn()(tf.distribute.InputContext())))[0]
    assert first.loss == pytest.approx(float(agent.loss(element).loss), rel=1e-4)


@pytest.mark.parametrize('name', ['mirrored:2', pytest.param('mirrored:4', marks=pytest.mark.slow)])
def test_declared_reductions_are_the_same_on_any_number_of_replicas(tmp_path, make_agent, make_dataset_fn, name):
    found, agent = [], make_agent()
    agent.initialize()
    items = agent.loss(small.batch(0)).extra
    for strategy_name in ('default', name):
        strategy = strategies.make(strategy_name)
        rules = {'td_loss': 'max', 'td_error': 'min'}
        learner = Learner(
            make_agent(strategy),
            make_dataset_fn(),
            RunDir(tmp_path / strategy_name.replace(':', '')),
            strategy=strategy,
            options=_options(extra_reductions=rules),
        )
        first = learner.run(1)
        # The mean over the steps of the extremes over the items; at first the agents are equal.
        expected = {'td_loss': tf.reduce_max(items.td_loss), 'td_error': tf.reduce_min(items.td_error)}
        assert first.extra == pytest.approx({name: float(value) for name, value in expected.items()}, rel=1e-4)
        found.append(learner.run(2))
    one, several = found
    assert several.extra == pytest.approx(one.extra, rel=1e-4)
    assert one.extra['td_loss'] > one.loss, 'the mean over the items'


def test_callbacks_after_steps_and_calls(tmp_path, make_agent, make_dataset_fn):
    seen = tf.Variable(0.0)
    results = []

    def after_step(element, loss_info):
        data, info = element
        assert data.observation.shape[-1] == 3
        assert set(info) == {'policy_version'}
        seen.assign_add(tf.reduce_sum(loss_info.loss))

    options = dataclasses.replace(_options(after_step=after_step), after_run=results.append)
    learner = Learner(make_agent(), make_dataset_fn(), RunDir(tmp_path), options=options)
    learner.run(4)
    learner.run(3)
    assert [result.num_steps for result in results] == [4, 3]
    assert float(seen) == pytest.approx(4 * results[0].loss + 3 * results[1].loss, rel=1e-5)


@lanes.compiles
def test_xla_gives_the_same_on_several_replicas(tmp_path, make_agent, make_dataset_fn, monkeypatch):
    results, compiled, function = [], [], tf.function

    def counted(*arguments, **settings):
        compiled.append(settings.get('jit_compile'))
        return function(*arguments, **settings)

    monkeypatch.setattr(tf, 'function', counted)
    for jit_compile in (False, True):
        strategy = strategies.make('mirrored:2')
        agent, run_dir = make_agent(strategy), RunDir(tmp_path / str(jit_compile))
        options = _options(jit_compile=jit_compile)
        with Learner(agent, make_dataset_fn(), run_dir, strategy=strategy, options=options) as learner:
            results.append((learner.run(10), _values(agent)))
        assert compiled.count(True) == 2 * jit_compile, 'the gradients of each replica'
    (plain, expected), (in_xla, found) = results
    assert in_xla.loss == pytest.approx(plain.loss, rel=1e-5)
    for one, other in zip(expected, found, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)


def test_rejects_xla_on_several_replicas_of_another_agent(tmp_path, make_agent, make_dataset_fn):
    strategy = strategies.make('mirrored:2')
    agent = make_agent(strategy)
    agent.__class__ = type('OwnAgent', (type(agent),), {})
    with pytest.raises(ValueError, match='got jit_compile=True with 2 replicas and OwnAgent; need one replica, or one'):
        Learner(agent, make_dataset_fn(), RunDir(tmp_path), strategy=strategy, options=_options(jit_compile=True))


def test_train_ends_at_stop_conditions(tmp_path, make_agent, make_dataset_fn):
    options = _options()
    learner = Learner(make_agent(), make_dataset_fn(), RunDir(tmp_path), options=options)
    assert learner.train(StopConditions(25, None, None), steps_per_call=10) == 'num_train_steps 25 reached'
    assert (learner.step, learner.checkpoints.saved_step) == (25, 25)

    resumed = Learner(make_agent(), make_dataset_fn(25), RunDir(tmp_path), options=options)
    env_steps = iter(range(0, 1000, 30))
    assert resumed.train(StopConditions(10**6, 100, None), 10, lambda: next(env_steps)) == 'max_env_steps 100 reached'
    assert resumed.step == 25 + 4 * 10


def test_max_secs_does_not_count_compiling(tmp_path, make_agent, make_dataset_fn):
    calls = []

    def first_takes_long(result):
        calls.append(result.num_steps)
        if len(calls) == 1:
            threading.Event().wait(1.2)

    options = dataclasses.replace(_options(), after_run=first_takes_long)
    learner = Learner(make_agent(), make_dataset_fn(), RunDir(tmp_path), options=options)
    assert learner.train(StopConditions(10**9, max_secs=1.0), steps_per_call=1) == 'max_secs 1 reached'
    assert len(calls) > 1


def test_rejects_another_reduction():
    with pytest.raises(ValueError, match="'median'; need one of mean, sum, max, min"):
        LoopOptions(extra_reductions={'td_loss': 'median'})


def test_training_ends_when_checkpoints_cannot_be_saved_again_and_again(tmp_path, make_agent, make_dataset_fn):
    run_dir = RunDir(tmp_path / 'run')
    options = dataclasses.replace(_options(), checkpoint_interval_steps=2, max_failed_saves=2)
    learner = Learner(make_agent(), make_dataset_fn(), run_dir, options=options)
    learner.run(2)
    learner.checkpoints.wait()
    moved = run_dir.checkpoints.rename(tmp_path / 'moved')
    run_dir.checkpoints.write_text('a file in its place')
    for failed in (1, 2):
        learner.run(2)
        with pytest.raises(OSError, match='could not save'):
            learner.checkpoints.wait()
        assert learner.checkpoints.num_failed == failed
    message = (
        'got 2 checkpoints in a row that could not be saved in .*, up to train step 6; need room for them; make room'
    )
    with pytest.raises(OSError, match=message):
        learner.run(2)
    learner.close()  # without another error
    run_dir.checkpoints.unlink()
    moved.rename(run_dir.checkpoints)
    with Learner(make_agent(), make_dataset_fn(), run_dir, options=options) as learner:
        assert learner.step == 2
        learner.run(2)
        learner.checkpoints.wait()
        assert learner.checkpoints.num_failed == 0


def test_a_learner_that_another_one_replaced_saves_nothing(tmp_path, make_agent, make_dataset_fn, monkeypatch):
    monkeypatch.setattr(lock, '_CHECK_SECS', 0.0)
    run_dir = RunDir(tmp_path)
    with run_dir.own('train', threading.Event()):
        learner = Learner(make_agent(), make_dataset_fn(), run_dir, options=_options())
        learner.run(2)
        (run_dir.owners / 'train-000002.json').write_text('{"pid": 1, "host": "other", "since": 0}')
        with pytest.raises(RuntimeError, match=r'got another train job \(pid 1 on other, for'):
            learner.save()
    assert not list(run_dir.root.glob('train/checkpoints/*'))
