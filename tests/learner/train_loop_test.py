"""Train steps with their summaries, through the Learner."""

import numpy as np
import pytest
import tensorflow as tf

from tests.testing import lanes, recording_agent, written_summaries
from tflearn.core import strategies
from tflearn.files.run_dir import RunDir
from tflearn.learner.learner import Learner, LearnerOptions
from tflearn.learner.summaries import SummaryOptions, SummarySources
from tflearn.learner.train_loop import LoopOptions

STRATEGIES = ['default', *(pytest.param(f'mirrored:{count}', marks=pytest.mark.slow) for count in (2, 4))]


def _options(summaries):
    return LearnerOptions(None, summaries, loop=LoopOptions(jit_compile=False))


@pytest.fixture
def train(tmp_path, make_agent, make_dataset_fn):
    """Returns a function that trains; it returns the agent, the results of the calls, and the summaries' directory."""

    def train(calls, strategy='default', name='run', debug_summaries=False, **settings):
        made, run_dir = strategies.make(strategy), RunDir(tmp_path / name)
        agent = make_agent(made, debug_summaries=debug_summaries)
        options = _options(SummaryOptions(**settings))
        learner = Learner(agent, make_dataset_fn(), run_dir, strategy=made, options=options)
        results = [learner.run(num_steps) for num_steps in calls]
        learner.close()
        return agent, results, run_dir.summaries('train')

    return train


def _operations(graph):
    """The types of all operations of a graph and of all functions that it knows."""
    definition = graph.as_graph_def()
    nodes = [*definition.node, *(node for function in definition.library.function for node in function.node_def)]
    return {node.op for node in nodes}


@lanes.classic
@pytest.mark.parametrize('strategy', STRATEGIES[:2])
def test_only_the_summary_program_writes_summaries(tmp_path, make_agent, make_dataset_fn, strategy):
    made, graphs = strategies.make(strategy), {}
    agent = make_agent(made)
    agent.train = _noting_graphs(agent.train, graphs)
    writer = tf.summary.create_file_writer(str(tmp_path / 'of_the_caller'))
    options = LearnerOptions(None, SummaryOptions(3))
    with writer.as_default(step=0):
        learner = Learner(agent, make_dataset_fn(), RunDir(tmp_path), strategy=made, options=options)
    plain = list(graphs.values())
    learner.run(2)
    assert list(graphs.values()) == plain, 'the summary program is not compiled before it is needed'
    learner.run(2)
    summary = list(graphs.values())[len(plain) :]
    learner.close()
    for graph in plain:
        assert not {name for name in _operations(graph) if 'Summary' in name}
    for graph in summary:
        assert 'WriteSummary' in _operations(graph)


@lanes.classic
def test_summaries_are_at_the_step_of_the_variable(tmp_path, make_dataset_fn):
    """Here the variable grows by 2 with each train step, which is known after the first call."""
    agent, run_dir = recording_agent.make(counts_twice=True), RunDir(tmp_path)
    learner = Learner(agent, make_dataset_fn(), run_dir, options=_options(SummaryOptions(5)))
    for num_steps in (1, 8):
        assert learner.run(num_steps).num_steps == num_steps
    learner.close()
    assert learner.step == 18
    scalars = written_summaries.scalars(run_dir.summaries('train'))
    assert list(scalars['train/loss']) == [6, 10, 16, 18]
    assert len(scalars['Losses/td_loss']) == 3


def _noting_graphs(train, graphs):
    def noting(*args, **kwargs):
        graph = tf.compat.v1.get_default_graph()
        graphs[id(graph)] = graph
        return train(*args, **kwargs)

    return noting


@lanes.classic
@pytest.mark.parametrize('strategy', STRATEGIES)
def test_losses_are_means_over_the_interval_on_any_number_of_replicas(train, strategy):
    _, singles, _ = train([1] * 12, name='singles', interval_steps=None)
    losses = [result.loss for result in singles]
    errors = [result.extra['td_loss'] for result in singles]
    _, _, directory = train([5, 7], strategy, interval_steps=6, actions=False)
    scalars = written_summaries.scalars(directory)
    for tag, values in {'train/loss': losses, 'train/extra/td_loss': errors}.items():
        expected = {6: np.mean(values[:6]), 12: np.mean(values[6:])}
        assert scalars[tag] == pytest.approx(expected, rel=1e-4)
    assert scalars['train/info/policy_version'] == pytest.approx({6: 2.5, 12: 8.5})


@pytest.mark.parametrize('strategy', STRATEGIES[:2])
def test_summary_has_gradients_actions_policy_lag_and_metrics_of_agent_and_learner(train, strategy):
    metrics = {'replay_size': 7.0, 'mean_return': None}
    sources = SummarySources(policy_version=lambda: 9, metrics=lambda: metrics)
    _, _, directory = train([1, 2, 3, 4], strategy, debug_summaries=True, interval_steps=3, sources=sources)
    scalars, histograms = (read(directory) for read in (written_summaries.scalars, written_summaries.histograms))
    assert any('next_q_values' in tag for tag in scalars), "the agent's own"
    assert list(scalars['gradients/dqn/norm']) == [3, 6, 9]
    assert 'gradients/dqn/noise_scale' in scalars
    gradients = [tag for tag in histograms if tag.startswith('gradients/dqn/') and tag.endswith('/gradient')]
    assert len(gradients) == 4, 'two layers with kernel and bias'
    share = 8 if strategy == 'default' else 4  # items of the replica that writes
    for name, count in {'batch': 2 * share, 'policy': share}.items():
        for least, greatest, number in histograms[f'actions/{name}'].values():
            assert 0 <= least <= greatest <= 1
            assert number == count
    # Steps are counted from 1, the versions of the data from 0.
    for step, (least, greatest, number) in histograms['data/policy_lag'].items():
        assert (least, greatest, number) == (10 - step, 10 - step, 2 * share)
    assert scalars['train/replay_size'] == dict.fromkeys((3, 6, 9, 10), 7.0)
    assert 'train/mean_return' not in scalars
    assert all(value > 0 for value in scalars['train/steps_per_sec'].values())
    assert all(100 < value < 50_000 for value in scalars['train/rss_mb'].values())
    assert all(0 <= value <= 1 for value in scalars['train/data_wait_share'].values())
    assert scalars['train/num_traces'] == dict.fromkeys((3, 6, 9, 10), 2), 'one of each program'


@pytest.mark.slow
def test_agents_write_no_tags_of_the_learner(train):
    _, _, directory = train([4], 'mirrored:2', interval_steps=2)
    _, _, directory = train([4], 'mirrored:2', name='other', interval_steps=100)
    ours = set(written_summaries.scalars(directory))
    assert all(tag.startswith('train/') for tag in ours)
    # `scalars` fails if a tag has two values for a step.
    assert {tag for tag in written_summaries.scalars(directory) if tag.startswith('train/')} == ours


@pytest.mark.slow
@pytest.mark.parametrize('profile_steps', [(4, 6), (8, 100)])
def test_profiling_changes_nothing(train, profile_steps):
    plain, expected, untraced = train([5, 5], name='plain', interval_steps=4)
    traced, got, directory = train([5, 5], interval_steps=4, profile_steps=profile_steps)
    assert not (untraced / 'plugins').exists()
    assert len(list(directory.glob('plugins/profile/*/*.xplane.pb'))) == 1
    assert [result.loss for result in got] == pytest.approx([result.loss for result in expected])
    for a, b in zip(plain.policy.variables(), traced.policy.variables(), strict=True):
        np.testing.assert_array_equal(a.numpy(), b.numpy())


def test_rejects_interval_secs_on_several_workers(tmp_path, make_agent, make_dataset_fn, monkeypatch):
    several = strategies.ReplicaLayout(replicas=2, input_pipelines=2, worker=0, workers=2, is_chief=True)
    monkeypatch.setattr(strategies, 'layout', lambda strategy: several)
    options = LearnerOptions(None, SummaryOptions(interval_secs=1.0))
    dataset_fn = lambda context: make_dataset_fn()(context).repeat()  # noqa: E731
    with pytest.raises(ValueError, match='got interval_secs=1.0 with several workers'):
        Learner(make_agent(), dataset_fn, RunDir(tmp_path), options=options)


def test_writes_texts(tmp_path, make_agent, make_dataset_fn):
    run_dir, asked = RunDir(tmp_path), []

    def texts():
        asked.append(True)
        return {'run/seed': '7'}

    options = _options(SummaryOptions(sources=SummarySources(texts=texts)))
    learner = Learner(make_agent(), make_dataset_fn(), run_dir, options=options)
    assert not asked
    learner.run(1)
    learner.write_text('mine', 'text')
    assert written_summaries.texts(run_dir.summaries('train')) == {'run/seed': '7', 'mine': 'text'}, 'at once'
    learner.run(1)
    assert len(asked) == 1
    learner.close()
