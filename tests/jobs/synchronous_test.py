"""The synchronous job collects and trains alternately: in an exact ratio, with bit-equal results."""

import dataclasses
import functools
import threading

import numpy as np
import pytest
import tensorflow as tf

from tests.data import data_sets
from tests.testing import golden_runs, jobs, lanes, learner, written_summaries
from tflearn.agents import appo, dqn, impala, ppo, reinforce, td3, v_mpo
from tflearn.core.errors import UserRuntimeError
from tflearn.core.experience import BatchItems, Experience, Iteration, Prioritized, Queue, Reuse, Slicing, Uniform
from tflearn.data import columns
from tflearn.data.reader import Dataset, EpisodeReader
from tflearn.environments import gymnasium_env, pacing
from tflearn.files.run_dir import RunDir, read_json, write_atomically, write_json
from tflearn.jobs.collect_settings import CollectOptions, EpisodeLimit
from tflearn.jobs.policy_exports import ExportOptions
from tflearn.jobs.run import Hooks, Run
from tflearn.jobs.synchronous import synchronous
from tflearn.jobs.train_offline import train_offline
from tflearn.jobs.train_settings import Initial
from tflearn.learner.stop_conditions import StopConditions
from tflearn.networks import mlp
from tflearn.networks.networks import NetworkOptions
from tflearn.optimization import schedules
from tflearn.optimization.optimizers import OptimizerOptions
from tflearn.policies import versions
from tflearn.policies.policy_function import load_policy
from tflearn.policies.updates import ModelFiles
from tflearn.transforms import normalize, transformed

# Batches of 8, 2 environments, 8 draws of each sequence: two train steps for a batched step.
FEW = {'num_environments': 2, 'checkpoint_interval_steps': 50, 'export_interval_steps': 50}


def run_synchronously(root, **arguments):
    """Runs the job; returns its directory."""
    run = jobs.SmallRun(root)
    given = {'run_dir': run.dir, 'stop': threading.Event(), **run.factories(), **FEW}
    synchronous(**jobs.job_arguments(synchronous, given | arguments))
    return run.dir


def metrics(run_dir):
    """Returns all summaries by tag and step that depend neither on the clock nor on layer numbers."""
    left_out = ('per_sec', 'secs', 'share', 'rss', 'dense')
    found = {}
    for job in ('train', 'collect'):
        for tag, values in written_summaries.scalars(run_dir.summaries(job)).items():
            if not any(word in tag for word in left_out):
                found[tag] = values
    return found


def assert_same(one, other):
    learner.assert_same_variables(one, other)
    assert metrics(one) == metrics(other) != {}


@pytest.mark.slow
def test_intervals_and_schedules_by_environment_steps(tmp_path):
    """The learning rate is 0 after 100 environment steps: from then on weights stay as they are."""
    rate = schedules.by_env_steps(schedules.piecewise([(100, 1e-2), (101, 0.0)]))
    make_agent = functools.partial(
        dqn.make_agent, network=NetworkOptions(fc_layer_params=(8,)), optimizer=OptimizerOptions(rate)
    )
    intervals = {'checkpoint_interval_steps': 40, 'export_interval_steps': 80, 'summary_interval_steps': 32}
    run_dir = run_synchronously(tmp_path, num_train_steps=160, make_agent=make_agent, **intervals)
    saved = {int(path.stem.partition('-')[2]): path for path in run_dir.checkpoints.glob('ckpt-*.index')}
    np.testing.assert_allclose(sorted(saved), [80, 120, 160], atol=1)  # at or just after
    exported = sorted(int(path.name) for path in run_dir.greedy_policy.iterdir() if path.name.isdigit())
    np.testing.assert_allclose(exported, [0, 80, 160], atol=1)
    steps = list(written_summaries.scalars(run_dir.summaries('train'))['train/loss'])
    assert steps == [32, 64, 96, 128, 160]
    first, middle, last = (
        [variable.numpy() for variable in tf.saved_model.load(str(run_dir.greedy_policy / str(step))).model_variables]
        for step in exported
    )
    for one, other, another in zip(first, middle, last, strict=True):
        assert np.any(one != other)
        np.testing.assert_array_equal(other, another)


def test_runs_to_the_end_beside_a_request_that_cannot_be_read(tmp_path):
    write_atomically(RunDir(tmp_path).stop_request, '{"reas')
    restored = []
    make_one = jobs.SmallRun(tmp_path).factories()['make_environment']
    paced = functools.partial(pacing.make, make_environment=make_one, unroll_step_interval_secs=1e-9)
    given = {'hooks': Hooks(lambda: restored.append(1), lambda: {'run/note': 'mine'}), 'seed': 3}
    given['make_environment'] = paced
    run_dir = run_synchronously(tmp_path, num_train_steps=121, summary_interval_steps=20, **given)
    result = read_json(run_dir.train_result)
    assert (result['reason'], result['train_step']) == ('num_train_steps 121 reached', 121)
    assert restored == [1]
    texts = written_summaries.texts(run_dir.summaries('train'))
    networks = texts.pop('run/networks')
    assert texts == {'run/seed': '3', 'run/note': 'mine'}
    assert '* `_q_network` (' in networks
    assert '): 58\n' in networks, '4 x 8 + 8 and 8 x 2 + 2 weights'
    scalars = written_summaries.scalars(run_dir.summaries('train'))
    assert {20, 40, 60, 80, 100, 120} <= set(scalars['train/replay_size'])
    assert set(written_summaries.histograms(run_dir.summaries('train'))['data/policy_lag']) >= {20, 120}
    collected = written_summaries.scalars(run_dir.summaries('collect'))
    assert {'collect/mean_return', 'collect/mean_discounted_return', 'collect/episodes'} <= collected.keys()
    assert max(collected['collect/overruns'].values()) > 0, 'every step is late'
    assert collected['collect/episodes'].keys() == collected['collect/mean_return'].keys(), 'none before an episode'
    exported = {path.name for path in run_dir.greedy_policy.iterdir() if path.name.isdigit()}
    assert {'0', '121'} < exported
    assert len(exported) == 4, 'at or just after the 50th and the 100th too'
    assert (run_dir.checkpoints / 'ckpt-121.index').exists()
    status = read_json(run_dir.status('train'))
    assert (status['state'], status['train_step']) == ('finished', 121)
    assert status['side_task_failures'] > 0, 'the request'
    inserts = status['replay_size'] - 50
    assert 0 <= 8 * inserts - 8 * 121 < 16, 'the ratio is exact up to the items of the last batched step'


@pytest.mark.slow
def test_environments_can_have_another_seed(tmp_path):
    one, other = (
        run_synchronously(
            tmp_path / str(seed),
            num_train_steps=20,
            seed=5,
            collect_options=CollectOptions(seed=seed),
            summary_interval_steps=20,
        )
        for seed in (None, 7)
    )
    assert metrics(one)['train/loss'] != metrics(other)['train/loss']


def held_exports(monkeypatch, fails=False):
    """Makes all exports but the first wait, or fail, when they are renamed. Returns events: an export waits; resume."""
    begun, go_on, publish = threading.Event(), threading.Event(), versions.publish

    def slow_publish(written, version):
        if version.name != '0':
            begun.set()
            assert go_on.wait(240)
            if fails:
                raise OSError('the disk is full')
        publish(written, version)

    monkeypatch.setattr(versions, 'publish', slow_publish)
    return begun, go_on


@lanes.classic
def test_stop_waits_for_unfinished_exports_and_a_request_ends_the_run(tmp_path, monkeypatch):
    begun, go_on = held_exports(monkeypatch)
    stop = threading.Event()
    job = threading.Thread(target=run_synchronously, args=(tmp_path,), kwargs={'num_train_steps': 10**6, 'stop': stop})
    job.start()
    assert begun.wait(240)
    stop.set()
    run_dir = RunDir(tmp_path)
    job.join(1.0)
    assert read_json(run_dir.status('train'))['state'] != 'stopped'
    go_on.set()
    job.join(60)
    assert read_json(run_dir.status('train'))['state'] == 'stopped'
    assert len(versions.versions(run_dir.greedy_policy)) > 1
    assert not run_dir.train_result.exists()
    write_json(run_dir.stop_request, {'reason': 'solved'})
    run_synchronously(tmp_path, num_train_steps=10**6)
    assert read_json(run_dir.train_result)['reason'] == 'solved'


@lanes.classic
def test_failed_last_export_is_in_the_status(tmp_path, monkeypatch):
    _, go_on = held_exports(monkeypatch, fails=True)
    go_on.set()
    with pytest.raises(OSError, match='the disk is full'):
        run_synchronously(tmp_path, num_train_steps=5)
    assert read_json(RunDir(tmp_path).status('train'))['state'] == 'failed: the disk is full'
    assert not RunDir(tmp_path).train_result.exists()


# tests/jobs/policy_exports_test.py has one in the middle of a run, too.
@lanes.classic
@pytest.mark.parametrize('last_is_wrong', [pytest.param(False, marks=pytest.mark.slow), True])
def test_a_wrong_export_is_not_published_and_ends_a_run_only_as_its_last(tmp_path, monkeypatch, caplog, last_is_wrong):
    """The run is of a network whose layers TensorFlow rounds differently in an export, where oneDNN computes."""
    write = ModelFiles.write_weights

    def write_one_wrong(self, path, weights):
        step = path.name.split('-')[1]
        is_wrong = path.parent.name == 'greedy_policy' and step != '0' and (step == '20') == last_is_wrong
        write(self, path, [1.01 * weight for weight in weights] if is_wrong else weights)

    monkeypatch.setattr(ModelFiles, 'write_weights', write_one_wrong)
    make_agent = functools.partial(
        dqn.make_agent,
        network=NetworkOptions(
            make_network=functools.partial(mlp.make_network, layer_norm=True, fc_layer_params=(8, 8))
        ),
    )
    arguments = {'num_train_steps': 20, 'export_interval_steps': 10, 'make_agent': make_agent}
    run_dir = RunDir(tmp_path)
    if not last_is_wrong:
        run_synchronously(tmp_path, **arguments)
        assert run_dir.train_result.exists()
        assert 'exported already' not in caplog.text
    else:
        with pytest.raises(UserRuntimeError, match='; need .*; 2 exports in a row were not published: the version'):
            run_synchronously(tmp_path, **arguments)
        assert read_json(run_dir.status('train'))['state'].startswith('failed: got')
    exported = versions.versions(run_dir.greedy_policy)
    assert (len(exported), exported[0], exported[1] == 20) == (2, 0, not last_is_wrong)
    assert tf.train.latest_checkpoint(str(run_dir.checkpoints)).endswith('-20')


@pytest.mark.parametrize(
    ('arguments', 'message'),
    [
        ({'strategy': 'mirrored:2'}, "got strategy='mirrored:2'; need 'default'"),
        ({'num_train_steps': None}, 'got no stop condition; need one of StopConditions.num_train_steps'),
        (
            {'collect_options': CollectOptions(episode_limit=EpisodeLimit(1))},
            r'got EpisodeLimit\(.* in the synchronous',
        ),
    ],
)
def test_rejects_unsupported_arguments(tmp_path, arguments, message):
    with pytest.raises(ValueError, match=message):
        run_synchronously(tmp_path, **({'num_train_steps': 1} | arguments))
    assert list(RunDir(tmp_path).root.iterdir()) == []


def test_rejects_a_limit_of_draws_before_any_work(tmp_path):
    experience = Experience(replay=Prioritized(max_times_sampled=1))
    with pytest.raises(ValueError, match=r'need Uniform\('):
        run_synchronously(tmp_path, num_train_steps=1, experience=experience)
    assert list(tmp_path.iterdir()) == []


def test_rejects_a_replay_that_does_not_fit_into_memory(tmp_path):
    message = r'got a replay of .* GB for 1000000000000 sequences of 2 rows of .*; need .*; set Uniform.max_size=\d+$'
    with pytest.raises(ValueError, match=message):
        run_synchronously(tmp_path, num_train_steps=1, experience=Experience(replay=Uniform(max_size=10**12)))


# Agents that need a queue, in one process: it collects the items of a batch, and trains on them.

SMALL_NETWORK = NetworkOptions(fc_layer_params=(8,))
CROSSING = Slicing(sequence_length=9, stride=8, cross_episodes=True)
# Two environments make two items in 8 batched steps, or 16 environment steps (less between two episodes).
ITERATION = Experience(CROSSING, Queue(max_size=1, training=Iteration(2, 8)), BatchItems(2))
EPISODES = Experience(Slicing(sequence_length=21, stride=20, pad_episodes=True), Queue(), BatchItems(4))
AGENTS = {
    'ppo': (ppo, ITERATION),
    'v_mpo': (v_mpo, ITERATION),
    'impala': (impala, Experience(CROSSING, Queue(), BatchItems(2))),
    'appo': (appo, Experience(CROSSING, Queue(training=Reuse(3, 2, 1.0, 4)), BatchItems(2))),
    'reinforce': (reinforce, EPISODES),
}


def train(root, agent='ppo', **arguments):
    """Trains by a queue; returns the run's directory."""
    module, experience = AGENTS[agent]
    given = {'make_agent': functools.partial(module.make_agent, network=SMALL_NETWORK), 'experience': experience}
    return run_synchronously(root, **{**given, 'num_train_steps': 24, 'seed': 3, **arguments})


@pytest.mark.slow
@pytest.mark.parametrize('agent', [*AGENTS][1:])
def test_the_same_seed_gives_the_same_weights_and_metrics(tmp_path, agent):
    assert_same(*(train(tmp_path / name, agent, summary_interval_steps=20) for name in 'ab'))


@lanes.classic
def test_intervals_count_iterations_which_drop_items_of_an_older_policy(tmp_path):
    """With 4 environments an iteration of 3 items leaves one, whose policy is one version old."""
    queue = dataclasses.replace(ITERATION.replay, max_policy_lag=0)
    experience = dataclasses.replace(ITERATION, replay=queue, batch=BatchItems(3))
    often = {'checkpoint_interval_steps': 3, 'export_interval_steps': 2, 'summary_interval_steps': 1}
    run_dir = train(tmp_path, experience=experience, num_environments=4, unit='iterations', **often)
    status = read_json(run_dir.status('train'))
    assert status['stale_sequences'] > 0
    assert status['greatest_policy_lag'] == 0
    # Four iterations, each of 2 epochs of 3 minibatches; the end saves and exports too.
    assert {int(path.name) for path in run_dir.greedy_policy.iterdir() if path.name.isdigit()} == {0, 12, 24}
    assert {path.stem for path in run_dir.checkpoints.glob('*.index')} == {'ckpt-18', 'ckpt-24'}
    by_iteration = written_summaries.scalars(run_dir.summaries('iterations'))['iterations/loss']
    by_train_step = written_summaries.scalars(run_dir.summaries('train'))['train/loss']
    assert by_iteration == {step // 6: loss for step, loss in by_train_step.items()}
    assert list(by_iteration) == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ('given', 'message'),
    [
        ({}, r"got Intervals.unit='iterations' with Experience.replay=Uniform\("),
    ],
)
def test_rejects_iterations_that_there_are_not(tmp_path, given, message):
    with pytest.raises(ValueError, match=message):
        run_synchronously(tmp_path, unit='iterations', num_train_steps=4, **given)


@lanes.classic
def test_counts_a_version_for_each_batch(tmp_path):
    version = load_policy(train(tmp_path, 'appo').root).metadata['policy_version']
    assert 0 < version < 24, 'each is trained on three times'


# TD3 with behavioural cloning, from files.


def test_behavior_cloning_from_files_with_the_data_s_mean_and_variance(tmp_path):
    environment = gymnasium_env.make('Pendulum-v1', 4, 0, max_episode_steps=20)
    data_sets.write(tmp_path / 'data', 200, environment)
    run_dir, agents = RunDir(tmp_path / 'run'), []

    def make_agent(*arguments):
        agents.append(
            transformed.make_agent(
                *arguments,
                make_agent=functools.partial(
                    td3.make_agent,
                    loss=td3.TD3Loss(behavior_cloning_alpha=2.5),
                    network=NetworkOptions(fc_layer_params=(8,), critic_fc_layer_params=(8,)),
                ),
                transforms=[normalize.Observations(clipping=10.0)],
            )
        )
        return agents[-1]

    train_offline(
        run=Run(run_dir),
        dataset=Dataset([str(tmp_path / 'data')]),
        make_agent=make_agent,
        experience=Experience(batch=BatchItems(256)),
        stop_conditions=StopConditions(num_train_steps=40),
        initial=Initial(seed=3),
        exports=ExportOptions(('greedy_policy',)),
    )
    assert read_json(run_dir.train_result)['train_step'] == 40
    reader = EpisodeReader(Dataset([str(tmp_path / 'data')]), columns.data_spec(environment.specs))
    observations = np.concatenate([episode.observation for episode in reader.episodes()])
    statistics = agents[-1]._statistics[0]
    np.testing.assert_allclose(statistics.means[0], observations.mean(axis=0), atol=0.1)
    np.testing.assert_allclose(statistics.variances[0], observations.var(axis=0), rtol=0.2)
    policy = load_policy(run_dir.root)
    first = np.array([[1.0, 0.0, 0.0]], np.float32)
    steps = environment.reset()._replace(observation=np.repeat(first, 4, axis=0))
    expected = agents[-1].policy.action(tf.nest.map_structure(tf.constant, steps)).action
    np.testing.assert_allclose(policy(first[0]), expected[0], rtol=1e-5)
    environment.close()


# tests/learner/warm_start_test.py loads values without the optimizers, and all of them.
def test_begins_with_the_optimizer_of_another_run(tmp_path):
    given = {'checkpoint': str(golden_runs.dqn(tmp_path / 'before').root), 'optimizers': ('agent/_optimizer',)}
    reader = tf.train.load_checkpoint(
        str(run_synchronously(tmp_path / 'after', num_train_steps=10, **given).checkpoints)
    )
    (name,) = (
        name
        for name in reader.get_variable_to_shape_map()
        if name.endswith('_optimizer/keras/_iterations/.ATTRIBUTES/VARIABLE_VALUE')
    )
    assert reader.get_tensor(name) == 30, 'with the 20 of the other run'


def test_rejects_optimizers_without_a_checkpoint(tmp_path):
    with pytest.raises(ValueError, match='without Initial.checkpoint'):
        run_synchronously(tmp_path, num_train_steps=4, optimizers=('agent',))
