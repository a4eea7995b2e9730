import dataclasses
import stat
import sys
import threading
import time
import types

import numpy as np
import pytest
import tensorflow as tf

from tests.testing import file_handles, lanes, written_summaries
from tests.testing import learner as small
from tflearn.core import strategies
from tflearn.core.errors import UserError
from tflearn.core.waiting import wait_until
from tflearn.files.run_dir import RunDir
from tflearn.learner.learner import Learner, LearnerOptions
from tflearn.learner.stop_conditions import StopConditions
from tflearn.learner.summaries import SummaryOptions, SummarySources
from tflearn.learner.train_loop import LoopOptions
from tflearn.learner.triggers import PeriodicAction
from tflearn.sampling.source import Source

# Batches are taken one by one, not in stacks for XLA, where a test is not about how they are taken.
ONE_BY_ONE = LoopOptions(jit_compile=False)
PLAIN = LearnerOptions(loop=ONE_BY_ONE)


def _values(agent):
    """All variables of the agent in a checkpoint, optimizer slots and target network included."""
    checkpoint = tf.train.Checkpoint(agent=agent)
    return [value.numpy() for value in tf.nest.flatten(sorted(_variables(checkpoint).items()))[1::2]]


def _variables(checkpoint):
    found = {}
    for view in tf.train.TrackableView(checkpoint).descendants():
        if isinstance(view, tf.Variable):
            found[view.name + str(len(found)).zfill(5)] = view
    return found


def _assert_equal(agent, other):
    ours, theirs = _values(agent), _values(other)
    assert len(ours) == len(theirs) > 8
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(a, b)


def test_trains_reports_means_traces_once_and_saves_at_the_end(tmp_path, make_agent, make_dataset_fn):
    agent, run_dir, traces, ends = make_agent(), RunDir(tmp_path / 'runs' / 'new'), [], []
    train = agent.train

    def counted(*args, **kwargs):
        traces.append(1)
        return train(*args, **kwargs)

    agent.train = counted
    before = [variable.numpy() for variable in agent.policy.variables()]
    trigger = PeriodicAction(ends.append, every_steps=100, at_end=True)
    with Learner(agent, make_dataset_fn(), run_dir, triggers=[trigger]) as learner:
        assert len(traces) == 1
        assert stat.S_IMODE(run_dir.root.stat().st_mode) == 0o700, 'as of every program'
        result = learner.run(10)
        assert (result.num_steps, learner.step) == (10, 10)
        assert np.isfinite(result.loss)
        assert result.info == {'policy_version': pytest.approx(4.5)}
        assert set(result.extra) == {'td_loss', 'td_error'}
        assert 0.0 <= result.data_wait_share <= 1.0
        assert any((a != b.numpy()).any() for a, b in zip(before, agent.policy.variables(), strict=True))
        for num_steps in (1, 2, 5, 1):
            learner.run(num_steps)
        assert len(traces) == learner.num_traces == 1
        assert learner.checkpoints.newest is None
    assert (learner.checkpoints.saved_step, ends) == (19, [19])
    assert learner.checkpoints.newest.endswith('ckpt-19')
    assert [path.name for path in run_dir.checkpoints.glob('*.index')] == ['ckpt-19.index']


class CountedSource(Source):
    """A `Source` of the same batches as `make_dataset_fn`'s, up to three in a draw."""

    max_draw_steps = 3
    num_traces = 0

    def grant(self, num_steps):
        return num_steps

    def draw(self, num_steps, seed):
        self.num_traces += 1
        return seed + tf.range(tf.cast(num_steps, tf.int64))

    def batch(self, drawn, i):
        step = tf.gather(drawn, i)
        return small.batch(step), {'policy_version': tf.fill((small.BATCH_SIZE, 2), step)}


def test_batch_source_trains_like_a_dataset_and_reports_info_of_the_last_batch(tmp_path, make_agent, make_dataset_fn):
    one, other, source = make_agent(), make_agent(), CountedSource()
    expected = Learner(one, make_dataset_fn(), RunDir(tmp_path / 'a'), options=PLAIN).run(5)
    got = Learner(other, source, RunDir(tmp_path / 'b')).run(5)
    assert source.num_traces == 2, 'for the specs, and in the program'
    assert got.loss == pytest.approx(expected.loss, rel=1e-5)
    assert got.extra == pytest.approx(expected.extra, rel=1e-5)
    assert got.info == {'policy_version': pytest.approx(4.0)}
    for a, b in zip(one.policy.variables(), other.policy.variables(), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5)


def test_names_data_of_another_kind(tmp_path, make_agent):
    with pytest.raises(TypeError, match='got data=.* for a learner; need a function .*, or a tflearn.Source'):
        Learner(make_agent(), object(), RunDir(tmp_path))


@lanes.classic
def test_prepare_compiles_the_summary_program_if_needed(tmp_path, make_agent):
    agent, options = make_agent(), LearnerOptions(None, SummaryOptions(4), loop=LoopOptions(jit_compile=False))
    learner = Learner(agent, CountedSource(), RunDir(tmp_path), options=options)
    built, before = learner.num_traces, [variable.numpy() for variable in agent.policy.variables()]
    learner.prepare(3)
    assert learner.num_traces == built, 'none of three steps is summarized'
    learner.prepare(4)
    learner._loop._tracing.join(60.0)  # training would begin meanwhile
    prepared = learner.num_traces
    assert prepared > built
    assert learner.step == 0
    for variable, value in zip(agent.policy.variables(), before, strict=True):
        np.testing.assert_array_equal(variable, value)
    learner.run(5)
    learner.close()
    assert learner.num_traces == prepared
    assert list(written_summaries.scalars(RunDir(tmp_path).summaries('train'))['gradients/dqn/norm']) == [4]


@lanes.classic
def test_prepare_does_not_wait_for_the_program_of_a_late_summary(tmp_path, make_agent):
    options = LearnerOptions(None, SummaryOptions(5_000), loop=LoopOptions(jit_compile=False))
    learner = Learner(make_agent(), CountedSource(), RunDir(tmp_path), options=options)
    built = learner.num_traces
    learner.prepare(5_000)
    assert learner.num_traces == built


@lanes.classic
def test_prepare_takes_nothing_from_a_dataset(tmp_path, make_agent, make_dataset_fn):
    options = LearnerOptions(None, SummaryOptions(1))
    learner = Learner(make_agent(), make_dataset_fn(), RunDir(tmp_path), options=options)
    learner.prepare(4)
    assert learner.run(1).info == {'policy_version': 0}


@lanes.classic
def test_data_of_one_replica_end_first(tmp_path, make_agent, make_dataset_fn):
    """Five batches for two replicas make two train steps."""
    strategy, contexts = strategies.make('mirrored:2'), []

    def dataset_fn(context):
        contexts.append((context.num_replicas_in_sync, context.num_input_pipelines))
        return make_dataset_fn()(context).take(5)

    learner = Learner(make_agent(strategy), dataset_fn, RunDir(tmp_path), strategy=strategy)
    assert contexts == [(2, 1)]
    result = learner.run(10)
    assert (result.num_steps, learner.step) == (2, 2)
    assert np.isfinite([result.loss, *result.extra.values()]).all()
    assert result.info == {'policy_version': pytest.approx(0.5)}, 'the mean over replicas and steps'


def test_resumed_run_equals_uninterrupted_run_whose_loss_is_the_mean_over_the_steps(
    tmp_path, make_agent, make_dataset_fn
):
    straight = make_agent()
    whole = Learner(straight, make_dataset_fn(), RunDir(tmp_path / 'straight'), options=PLAIN).run(20)

    first = Learner(make_agent(), make_dataset_fn(0, 10), RunDir(tmp_path / 'resumed'), options=PLAIN)
    losses = [first.run(1).loss for _ in range(10)]
    first.close()
    resumed = make_agent()
    second = Learner(resumed, make_dataset_fn(10), RunDir(tmp_path / 'resumed'), options=PLAIN)
    assert second.step == 10
    losses += [second.run(1).loss for _ in range(10)]
    _assert_equal(resumed, straight)
    assert whole.loss == pytest.approx(np.mean(losses), rel=1e-5)


def test_a_changed_learning_rate_counts_after_a_restore(tmp_path, make_agent, make_dataset_fn, caplog):
    options = LearnerOptions(summaries=None, loop=ONE_BY_ONE)

    def learner(rate):
        agent = make_agent()
        agent.own_optimizer = tf.keras.optimizers.Adam(rate)  # as an agent of one's own has it
        agent.own_optimizer.build(agent.policy.variables())
        return Learner(agent, make_dataset_fn(), RunDir(tmp_path), options=options)

    with learner(0.125) as first:
        first.run(2)
        first.agent.own_optimizer.learning_rate.assign(0.0625)  # as a trigger does
    with learner(0.125) as same:
        assert float(same.agent.own_optimizer.learning_rate) == 0.0625
        same.run(1)
    caplog.clear()
    with learner(0.25) as changed:
        assert float(changed.agent.own_optimizer.learning_rate) == 0.25
    assert [line for line in caplog.messages if 'as the program says' in line] == [
        'learning_rate of optimizer 0 (Adam) is 0.25, as the program says; the checkpoint has 0.0625'
    ]


@lanes.classic
@pytest.mark.parametrize(
    ('rule', 'terminal', 'answer', 'saved'),
    [
        ('never', True, 'y', False),
        ('ask', True, 'n', False),
        ('ask', False, 'n', True),
    ],
)
def test_an_error_is_followed_by_a_checkpoint_if_that_is_wanted(
    tmp_path, make_agent, make_dataset_fn, monkeypatch, rule, terminal, answer, saved
):
    monkeypatch.setattr('builtins.input', lambda question: answer)
    monkeypatch.setattr(sys, 'stdin', types.SimpleNamespace(isatty=lambda: terminal))
    options = LearnerOptions(summaries=None, checkpoint_on_error=rule, loop=ONE_BY_ONE)
    with (
        pytest.raises(ZeroDivisionError),
        Learner(make_agent(), make_dataset_fn(), RunDir(tmp_path), options=options) as learner,
    ):
        learner.run(3)
        raise ZeroDivisionError
    assert (learner.checkpoints.newest is not None) == saved


def test_steps_before_data_without_info_end_count(tmp_path, make_agent, make_dataset_fn, caplog):
    fired = []
    triggers = [PeriodicAction(fired.append, every_steps=5)]
    dataset_fn = lambda context: make_dataset_fn(0, 7)(context).map(lambda data, info: data)  # noqa: E731
    learner = Learner(make_agent(), dataset_fn, RunDir(tmp_path), triggers=triggers)
    result = learner.run(100)
    assert result.info == {}
    assert (result.num_steps, learner.step, fired) == (7, 7, [7])
    assert np.isfinite(result.loss)
    assert result.data_ended
    assert 'the data ended after 7 of 100 train steps' in caplog.text
    for _ in range(2):
        with pytest.raises(RuntimeError, match='got no more data at train step 7: they have ended; need') as raised:
            learner.run(10)
    assert isinstance(raised.value, UserError)
    with pytest.raises(RuntimeError, match='got no more data at train step 7'):
        learner.loss()
    assert (learner.step, fired) == (7, [7])
    learner.close()
    assert learner.checkpoints.saved_step == 7


def test_an_agent_of_another_scope_is_refused(tmp_path, make_agent, make_dataset_fn):
    mirrored = strategies.make('mirrored:2')
    for made_in, trained_in in ((None, mirrored), (mirrored, None)):
        with pytest.raises(UserError, match='got an agent whose variable .* was not made in the scope of the'):
            Learner(make_agent(made_in), make_dataset_fn(), RunDir(tmp_path), strategy=trained_in)


def test_data_without_a_batch_are_refused(tmp_path, make_agent, make_dataset_fn):
    learner = Learner(make_agent(), make_dataset_fn(0, 0), RunDir(tmp_path))
    with pytest.raises(UserError, match='got data that give no batch; need one at least; check that'):
        learner.run(10)


@lanes.classic
def test_data_end_between_two_calls(tmp_path, make_agent, make_dataset_fn):
    learner = Learner(make_agent(), make_dataset_fn(0, 7), RunDir(tmp_path), options=PLAIN)
    assert not learner.run(7).data_ended
    result = learner.run(7)
    assert (result.num_steps, result.data_ended) == (0, True)
    assert np.isnan(result.loss), 'no loss at all is not a loss of 0'
    with pytest.raises(RuntimeError, match='got no more data'):
        learner.run(7)


@lanes.classic
def test_order_of_triggers_and_checkpoints(tmp_path, make_agent, make_dataset_fn):
    run_dir = RunDir(tmp_path)
    saved_when_fired = []
    triggers = [
        PeriodicAction(lambda step: saved_when_fired.append(learner.checkpoints.saved_step == step), every_steps=10)
    ]
    learner = Learner(
        make_agent(),
        make_dataset_fn(),
        run_dir,
        triggers=triggers,
        options=LearnerOptions(checkpoint_interval_steps=10, loop=ONE_BY_ONE),
    )
    assert not run_dir.checkpoints.exists(), 'nothing is saved unasked'
    for _ in range(6):
        learner.run(5)
        learner.checkpoints.wait()  # a newer one replaces one that has not begun
    assert saved_when_fired == [True] * 3
    assert len(triggers) == 1, "the caller's list is the caller's"
    learner.close()
    assert len(list(run_dir.checkpoints.glob('*.index'))) == 3


@pytest.mark.parametrize(('secs', 'saved'), [(1e-6, ['ckpt-10', 'ckpt-15', 'ckpt-20']), (1e9, ['ckpt-20'])])
def test_saves_at_intervals_of_seconds(tmp_path, make_agent, make_dataset_fn, secs, saved):
    options = dataclasses.replace(PLAIN, checkpoint_interval_steps=None, checkpoint_interval_secs=secs)
    with Learner(make_agent(), make_dataset_fn(), RunDir(tmp_path), options=options) as learner:
        for _ in range(4):
            learner.run(5)
            learner.checkpoints.wait()  # a newer one replaces one that has not begun
    # The first call compiled: the clock starts after it.
    assert sorted(path.stem for path in RunDir(tmp_path).checkpoints.glob('*.index')) == saved


@lanes.classic
def test_reports_time_spent_waiting_for_data(tmp_path, make_agent, make_dataset_fn):
    def slowly(data, info):
        tf.numpy_function(lambda: time_passes(), (), ())
        return data, info

    def time_passes():
        threading.Event().wait(0.05)

    dataset_fn = lambda context: make_dataset_fn()(context).map(slowly)  # noqa: E731
    learner = Learner(make_agent(), dataset_fn, RunDir(tmp_path), options=PLAIN)
    learner.run(1)
    start = time.monotonic()
    result = learner.run(20)
    assert result.data_wait_share > 0.5
    assert result.data_wait_share * (time.monotonic() - start) < 20 * 0.5


@pytest.mark.parametrize(
    ('kind', 'jit_compile'),
    [
        ('default', False),
        pytest.param('default', True, marks=lanes.compiles),
        pytest.param('mirrored:2', False, marks=pytest.mark.slow),
    ],
)
def test_other_threads_see_how_long_it_waits_for_a_dataset(tmp_path, make_agent, kind, jit_compile):
    strategy, arrived = strategies.make(kind), threading.Event()

    def element(number):
        tf.numpy_function(lambda number: number < 4 or arrived.wait(60), [number], tf.bool)
        return small.batch(number)

    def dataset_fn(context):
        return small.without_autotuning(tf.data.Dataset.range(20).repeat().map(element))

    options = LearnerOptions(None, None, loop=LoopOptions(jit_compile=jit_compile))
    agent, results = make_agent(strategy), []
    with Learner(agent, dataset_fn, RunDir(tmp_path), strategy=strategy, options=options) as learner:
        assert learner.jit_compiles == jit_compile and learner.waiting_secs == 0
        running = threading.Thread(target=lambda: results.append(learner.run(8)))
        running.start()
        try:
            waited = wait_until(lambda: max(0.0, learner.waiting_secs - 0.2), 'the wait for a batch', 60.0)
            assert learner.waiting_secs > 0.2 + waited
        finally:
            arrived.set()
            running.join(60)
        assert results[0].num_steps == 8 and results[0].waited_secs > 0.2
        assert learner.waiting_secs == 0


@lanes.classic
def test_an_action_that_fails_again_at_the_end_costs_no_train_step(tmp_path, make_agent, make_dataset_fn):
    ends = []

    def fail(step):
        raise RuntimeError(f'no room on the web server at train step {step}')

    class Ending:
        def __call__(self, before, after):
            return False

        def end(self, step):
            ends.append(step)

    triggers = [PeriodicAction(fail, every_steps=6), PeriodicAction(fail, every_steps=100, at_end=True), Ending()]
    given = {'data': make_dataset_fn(), 'run_dir': RunDir(tmp_path), 'options': PLAIN}
    with (
        pytest.raises(RuntimeError, match='no room on the web server at train step 8'),
        Learner(make_agent(), triggers=triggers, **given) as learner,
    ):
        learner.train(StopConditions(40), steps_per_call=4)
    assert learner.checkpoints.saved_step == 8
    assert ends == [8]
    with Learner(make_agent(), **given) as restarted:
        assert restarted.step == 8


@lanes.classic
def test_without_a_free_file_handle_training_goes_on(tmp_path, make_agent, make_dataset_fn):
    options = LearnerOptions(None, SummaryOptions(2), loop=ONE_BY_ONE)
    with Learner(make_agent(), make_dataset_fn(), RunDir(tmp_path), options=options) as learner:
        learner.run(1)
        with file_handles.none_free():
            assert learner.run(4).num_steps == 4
        learner.run(3)
    found = written_summaries.scalars(RunDir(tmp_path).summaries('train'))
    assert list(found['train/loss']) == [6, 8]


@lanes.classic
def test_metrics_that_fail_are_asked_for_again(tmp_path, make_agent, make_dataset_fn):
    calls = []

    def fail_once(*unused):
        calls.append(1)
        if len(calls) <= 3:  # the texts, the metrics, the check
            raise ConnectionError('the database does not answer')
        return {'mine': 'a text'} if len(calls) == 4 else {'mine': 1.0}

    sources = SummarySources(metrics=fail_once, texts=fail_once, watch=fail_once)
    options = LearnerOptions(None, SummaryOptions(2, sources=sources), loop=ONE_BY_ONE)
    with Learner(make_agent(), make_dataset_fn(), RunDir(tmp_path), options=options) as learner:
        for _ in range(2):
            learner.run(2)
    directory = RunDir(tmp_path).summaries('train')
    found = written_summaries.scalars(directory)
    assert (list(found['train/loss']), list(found['train/mine'])) == ([2, 4], [4])
    assert written_summaries.texts(directory) == {'mine': 'a text'}
