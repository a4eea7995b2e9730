"""Runs of special kinds through the jobs: masks, memory, several rewards, episodes that are too short."""

import dataclasses
import functools
import logging
import threading

import gymnasium
import numpy as np
import pytest

import tflearn
from tests.testing import jobs, lanes, small_tasks, structured, two_rewards, written_summaries
from tflearn.actors.evaluation_record import EvaluationRecord
from tflearn.agents import dqn, ppo, r2d2, td3
from tflearn.core.experience import BatchItems, Experience, Iteration, Prioritized, Queue, Slicing, Uniform
from tflearn.core.train_step import create_train_step
from tflearn.core.waiting import wait_until
from tflearn.environments import gymnasium_env, vector_env
from tflearn.files.run_dir import RunDir, read_json, write_json
from tflearn.jobs.collect import collect
from tflearn.jobs.collect_settings import CollectOptions
from tflearn.jobs.evaluate import evaluate
from tflearn.jobs.evaluate_settings import EvaluateOptions
from tflearn.jobs.policy_exports import ExportOptions
from tflearn.jobs.run import Run
from tflearn.jobs.synchronous import synchronous
from tflearn.jobs.train import train
from tflearn.networks.networks import NetworkOptions
from tflearn.optimization.optimizers import OptimizerOptions
from tflearn.policies import loader, versions
from tflearn.policies.policy_function import load_policy
from tflearn.transforms import rewards, transformed
from tflearn.transforms.rewards import weights_reader


@pytest.fixture
def made(monkeypatch):
    """The environments that a test makes, none of which may be given an illegal action."""
    environments = []

    def make_environment(task, num_environments, seed):
        environments.append(structured.make_environment(task, num_environments, seed))
        return environments[-1]

    yield make_environment
    assert environments and not sum(environment.num_rebuilt for environment in environments)


@lanes.classic
def test_synchronous_run_and_evaluation_with_a_mask(tmp_path, made):
    """With random first actions, and an evaluation with an epsilon."""
    run = jobs.SmallRun(tmp_path)
    make_environment = functools.partial(made, 'masked discrete')
    settings = {
        'run_dir': run.dir,
        'stop': threading.Event(),
        'experience': run.experience,
        'num_environments': 2,
        'make_environment': make_environment,
        'make_agent': functools.partial(
            dqn.make_agent, network=NetworkOptions(fc_layer_params=(8,)), epsilon=0.5, action_mask='mask'
        ),
        'collect_options': CollectOptions(initial_random_steps=30),
        'num_train_steps': 60,
        'export_interval_steps': 60,
    }
    synchronous(**jobs.job_arguments(synchronous, settings))
    given = {'run': Run(run.dir, connect_timeout_secs=10.0), 'num_episodes': 4}
    evaluate(make_environment=make_environment, options=EvaluateOptions(epsilon=0.5), **given)
    policy = load_policy(run.dir.root)
    mask = np.array([[0, 1, 0], [0, 0, 1]])
    assert policy({'a': np.zeros((2, 3), np.float32), 'mask': mask}).tolist() == [1, 2]


# Runs with memory through the jobs: states are stored, exported, evaluated, served and loaded.

SLICING = Slicing(sequence_length=9, stride=6, cross_episodes=True, store_policy_state=True)
make_environment = small_tasks.make_signal
R2D2 = {
    'make_environment': make_environment,
    'make_agent': functools.partial(
        r2d2.make_agent,
        network=NetworkOptions(lstm_size=(4,), fc_layer_params=(8,)),
        loss=r2d2.R2D2Loss(burn_in_steps=2),
    ),
}


def evaluated(run_dir, **arguments):
    """Evaluates a run's last policy on the same episodes each time; returns its evaluation."""
    given = {'num_episodes': 6, 'num_environments': 2, 'seed': 0}
    evaluate(run=Run(run_dir, connect_timeout_secs=10.0), make_environment=make_environment, **given | arguments)
    return EvaluationRecord(run_dir.evaluations).evaluations[-1]


def test_prioritized_r2d2_is_trained_evaluated_and_loaded_with_its_state(small_run):
    """The learner makes priorities of whole sequences, and draws by them."""
    experience = Experience(SLICING, Prioritized(max_size=100, min_size=4, samples_per_insert=8.0), BatchItems(4))
    small_run.factories = lambda: {**R2D2, 'experience': experience}
    small_run.start_replay()
    collector = small_run.start(collect, num_environments=2)
    small_run.start(train, num_train_steps=20, steps_per_call=10).join()
    collector.join()
    assert evaluated(small_run.dir)['train_step'] == 20
    policy = load_policy(small_run.dir.root)
    walk = [np.float32(now) for now in ([0, 1, 1], [1, 0, 1], [0, 1, 0])]
    first = [policy(now).tolist() for now in walk]
    policy.reset()
    assert [policy(now).tolist() for now in walk] == first


@pytest.mark.slow
@pytest.mark.extensions
def test_ppo_with_memory_through_the_jobs_and_a_server(small_run, tmp_path):
    """The served policy, whose state goes back and forth, has the returns of the loaded one on the same episodes."""
    pytest.importorskip('tensorflow_serving', reason='needs pip install ".[serving]"')
    from tests.testing import served_policies

    network = NetworkOptions(fc_layer_params=(8,), lstm_size=(4,))
    replay = Queue(max_size=8, training=Iteration(num_epochs=2, minibatch_steps=16))
    factories = {
        'make_environment': make_environment,
        'make_agent': functools.partial(ppo.make_agent, network=network),
        'experience': Experience(
            Slicing(sequence_length=9, stride=8, cross_episodes=True, store_policy_state=True), replay, BatchItems(4)
        ),
    }
    small_run.factories = lambda: factories
    small_run.start_replay()
    collector = small_run.start(collect, num_environments=4)
    small_run.start(train, num_train_steps=12, publish_interval_steps=1).join()
    collector.join()
    loaded = evaluated(small_run.dir)
    assert loaded['train_step'] == 12
    elsewhere = RunDir(tmp_path / 'elsewhere')
    elsewhere.train_result.parent.mkdir(parents=True)
    elsewhere.train_result.write_bytes(small_run.dir.train_result.read_bytes())
    with served_policies.serving(small_run.dir.policies) as (server, _):
        options = EvaluateOptions(follow='served', served_at=f'localhost:{server.port}')
        served = evaluated(elsewhere, options=options)
    assert served['returns'] == loaded['returns']


# Several rewards through the jobs: their weights change while the run goes on, and metrics show each of them.


def make_agent(*given, weights=(1.0, 0.25)):
    make = functools.partial(
        dqn.make_agent,
        network=NetworkOptions(fc_layer_params=(8,)),
        optimizer=OptimizerOptions(0.01),
        epsilon=0.5,
        gamma=0.5,
    )
    return transformed.make_agent(*given, make_agent=make, transforms=[rewards.Weighted(weights)])


@pytest.mark.slow
def test_weights_change_while_a_run_goes_on(tmp_path):
    """The policy prefers the reward that weighs more. Returns stay those of the environment."""
    run = jobs.SmallRun(tmp_path)
    settings = {
        'run_dir': run.dir,
        'make_environment': two_rewards.make,
        'make_agent': make_agent,
        'experience': Experience(
            replay=Uniform(max_size=500, min_size=20, samples_per_insert=8.0), batch=BatchItems(8)
        ),
        'num_environments': 2,
        'export_interval_steps': 200,
        'publish_interval_steps': 50,
        'summary_interval_steps': 100,
        'exports': ExportOptions(('greedy_policy',)),
        'seed': 1,
    }
    observation = np.float32([[0.0], [1.0], [2.0], [3.0]])
    synchronous(**jobs.job_arguments(synchronous, {**settings, 'num_train_steps': 300}))
    np.testing.assert_array_equal(load_policy(run.dir.root)(observation), 0)
    evaluate(
        run=Run(run.dir, connect_timeout_secs=10.0),
        make_environment=two_rewards.make,
        num_episodes=2,
    )
    (evaluation,) = EvaluationRecord(run.dir.evaluations).evaluations[-1:]
    assert evaluation['mean_return'] == 4.0 and [evaluation['metrics'][f'return_{i}'] for i in (0, 1)] == [4.0, 0.0]
    scalars = written_summaries.scalars(run.dir.summaries('collect'))
    (first,) = [values for tag, values in scalars.items() if tag.endswith('mean_return_0')]
    (second,) = [values for tag, values in scalars.items() if tag.endswith('mean_return_1')]
    assert first and all(first[step] + second[step] == pytest.approx(4.0) for step in first)

    run.dir.done.unlink()
    write_json(run.dir.reward_weights, {'weights': [0.0, 2.0]})
    synchronous(**jobs.job_arguments(synchronous, {**settings, 'num_train_steps': 900}))
    newest = load_policy(
        run.dir.greedy_policy / '900'
    )  # that of the run is the best by evaluation, of the weights before
    np.testing.assert_array_equal(newest(observation), 1)


@pytest.mark.parametrize(
    ('content', 'error'),
    [
        ({}, 'with no weights; need that'),
        ({'weights': [1.0]}, 'with weights=[1.0]; need 2 numbers'),
        ({'weights': [1.0, 'a']}, "with weights[1]='a'; need a number"),
        ({'weights': [1.0, float('nan')]}, 'with weights[1]=nan; need a finite number'),
    ],
)
def test_a_file_that_cannot_be_used_changes_nothing(tmp_path, content, error, caplog):
    run_dir = RunDir(tmp_path)
    agent = make_agent(two_rewards.make(1, 0).specs, create_train_step(), Experience())
    read = weights_reader(agent, run_dir)
    read(1)
    write_json(run_dir.reward_weights, content)
    with caplog.at_level(logging.ERROR, 'absl'):
        read(2)
        read(3)
    np.testing.assert_array_equal(agent.reward_weights, [1.0, 0.25])
    (message,) = [record.message for record in caplog.records if 'weights stay as they are' in record.message]
    assert f'{run_dir.reward_weights}' in message and error in message
    run_dir.reward_weights.unlink()
    run_dir.reward_weights.symlink_to(run_dir.reward_weights.name)
    read(3)
    write_json(run_dir.reward_weights, {'weights': [3, 4.5]})
    read(4)
    np.testing.assert_array_equal(agent.reward_weights, [3.0, 4.5])


# Episodes that are too short or too long for the experience's items: counted, warned of, refused where all are.


class Short(gymnasium.Env):
    """Episodes of three steps, which a time limit ends."""

    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)

    def __init__(self, discrete=False):
        self.action_space = gymnasium.spaces.Discrete(2) if discrete else gymnasium.spaces.Box(-1, 1, (1,), np.float32)

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self._left = 3
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self._left -= 1
        return np.zeros(2, np.float32), 1.0, False, self._left == 0, {}


def _train(tmp_path, slicing):
    network = NetworkOptions(fc_layer_params=(4,), critic_fc_layer_params=(4,))
    return tflearn.train(
        make_environment=functools.partial(vector_env.in_process, Short),
        make_agent=functools.partial(td3.make_agent, network=network),
        experience=Experience(slicing, Uniform(max_size=500, min_size=20, samples_per_insert=8.0), BatchItems(8)),
        num_train_steps=20,
        num_environments=2,
        num_episodes=1,
        export_interval_steps=20,
        exports=ExportOptions(('greedy_policy',)),
        root_dir=tmp_path,
    )


def test_episodes_that_are_all_shorter_than_n_steps_are_refused(tmp_path):
    with pytest.raises(
        ValueError,
        match=r'got 100 episodes, all of at most 3 steps without a sequence of 6 rows; need Slicing.sequence_length of '
        r'at most 4, or Slicing.pad_episodes=True for agents that leave boundary rows out \(all packaged ones but DQN',
    ):
        _train(tmp_path, Slicing(sequence_length=6))


@lanes.classic
def test_n_steps_end_with_padded_episodes(tmp_path):
    assert _train(tmp_path, Slicing(sequence_length=6, pad_episodes=True)).train_step == 20


@lanes.classic
def test_a_collector_ends_where_all_episodes_are_too_short(small_run, caplog):
    """Instead of the learner's waiting; the error is the collector's, so that a launcher ends the run with it."""
    experience = dataclasses.replace(jobs.SmallRun.experience, slicing=Slicing(sequence_length=6))
    given = {
        'make_environment': functools.partial(vector_env.in_process, functools.partial(Short, discrete=True)),
        'make_agent': functools.partial(dqn.make_agent, network=NetworkOptions(fc_layer_params=(4,))),
        'experience': experience,
    }
    small_run.start_replay(**given)
    small_run.start(train, num_train_steps=20, **given)
    with pytest.raises(ValueError, match='got 100 episodes, all of at most 3 steps without a sequence of 6 rows'):
        small_run.start(collect, num_environments=2, **given).join()
    assert 'of the steps are never trained on' in caplog.text
    assert small_run.status('collect_0')['unused_steps'] >= 297


# Collect and evaluate act by a served policy; evaluate follows the published weights.

FEW = {'steps_per_call': 20, 'checkpoint_interval_steps': 50, 'export_interval_steps': 40, 'publish_interval_steps': 20}
EPISODES = {'num_episodes': 2, 'num_environments': 2, 'idle_timeout_secs': 60.0, 'seed': 0}


def start_evaluate(run, run_dir=None, **arguments):
    """Starts the evaluate job with its own run directory, to show that it needs no file of the train job."""
    make = functools.partial(gymnasium_env.make, 'CartPole-v1')
    given = {'make_environment': make, 'run_dir': run_dir or run.dir, **EPISODES}
    return run.start(evaluate, **(given | arguments))


@pytest.mark.extensions
def test_evaluate_follows_the_published_weights_and_collect_acts_by_a_served_policy(small_run, tmp_path):
    pytest.importorskip('tensorflow_serving', reason='needs pip install ".[serving]"')
    from tests.testing import served_policies

    small_run.start_replay()
    options = ExportOptions(('greedy_policy', 'collect_policy'))
    job = small_run.start(train, num_train_steps=10**6, max_env_steps=200, exports=options, **FEW)
    elsewhere = RunDir(tmp_path / 'elsewhere')
    by_weights = start_evaluate(small_run, elsewhere, options=EvaluateOptions(follow='weights'))
    wait_until(lambda: versions.newest_version(small_run.dir.policy('collect_policy')) is not None, 'an export', 60)
    with served_policies.serving(small_run.dir.policies) as (server, models):
        address = f'localhost:{server.port}'
        over = threading.Event()
        refresher = threading.Thread(target=lambda: [models.refresh() for _ in iter(lambda: over.wait(0.2), True)])
        refresher.start()
        try:
            collector = small_run.start(collect, num_environments=2, options=CollectOptions(served_at=address))
            by_server = start_evaluate(small_run, options=EvaluateOptions(follow='served', served_at=address))
            for ended in (job, collector, by_weights, by_server):
                ended.join()
        finally:
            over.set()
            refresher.join(10)
    result = read_json(small_run.dir.train_result)
    assert result['reason'] == 'max_env_steps 200 reached'
    assert small_run.status('collect_0')['env_steps'] >= result['env_steps'] >= 200
    last = [EvaluationRecord(run_dir.evaluations).evaluations[-1] for run_dir in (small_run.dir, elsewhere)]
    assert [evaluation['train_step'] for evaluation in last] == [result['train_step']] * 2
    done = read_json(elsewhere.done)
    assert done['policy'] == f'policies/evaluated_policy/{result["train_step"]}'
    time_step = gymnasium_env.make('CartPole-v1', 3, seed=0).reset()
    paths = [elsewhere.root / done['policy'], small_run.dir.root / read_json(small_run.dir.done)['policy']]
    actions = [loader.load(path).action(time_step)[0] for path in paths]
    np.testing.assert_array_equal(*actions)
