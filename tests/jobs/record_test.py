"""The record job: exported policies and random ones, in real environments."""

import contextlib
import functools
import itertools
import logging
import shutil
import threading

import gymnasium
import numpy as np
import pytest
import tensorflow as tf
from tf_agents.agents.dqn import dqn_agent
from tf_agents.networks import q_network, q_rnn_network
from tf_agents.policies import greedy_policy, policy_saver, q_policy
from tf_agents.trajectories import time_step as ts

from tests import fakes
from tests.environments import example_environments
from tests.testing import golden_runs, jobs
from tflearn.actors.actor import Actor
from tflearn.actors.exploration import uniform
from tflearn.agents import dqn, ppo, sac
from tflearn.core.experience import Experience, Queue, Slicing, Uniform
from tflearn.core.train_step import create_train_step
from tflearn.core.types import EnvironmentSpecs, specs_of
from tflearn.data import columns
from tflearn.data.reader import Dataset, EpisodeReader
from tflearn.data.shards import find_shards
from tflearn.environments import gymnasium_env, vector_env
from tflearn.files.run_dir import RunDir, write_json
from tflearn.jobs import initial_agent
from tflearn.jobs.record import Quota, _Acting, describe, extract, record
from tflearn.jobs.run import Run
from tflearn.policies import loader
from tflearn.replay import servers, stored_episodes
from tflearn.replay.storage import Storage
from tflearn.replay.writers import ReplayWriter

CARTPOLE = functools.partial(gymnasium_env.make, 'CartPole-v1')
BOX = gymnasium.spaces.Box(-1, 1, (2,), np.float32)


def run_record(run_dir, output, **settings):
    quota = Quota(settings.pop('num_episodes', 6), settings.pop('num_steps', None))
    settings = {'quota': quota, 'num_environments': 2, 'make_environment': CARTPOLE, **settings}
    record(run=Run(run_dir), output=str(output), **settings)
    return list(EpisodeReader(Dataset([str(output)])).episodes())


@pytest.fixture(scope='module')
def run_dir(tmp_path_factory):
    """A run of few steps, with exported policies of two train steps."""
    return golden_runs.dqn(tmp_path_factory.mktemp('dqn'))


def test_the_exported_policy_acts(run_dir, tmp_path):
    episodes = run_record(run_dir, tmp_path / 'data')
    assert len(episodes) == 6
    policy = loader.load(run_dir.policy('greedy_policy') / '20')
    for episode in episodes:
        assert (episode['step_type'][0], episode['step_type'][-1]) == (0, 2)
        taken = episode['step_type'] != 2
        assert episode['reward'].sum() == np.count_nonzero(taken)
        specs = columns.read_specs(tmp_path / 'data')
        time_step = specs.time_step._replace(
            step_type=episode['step_type'],
            reward=np.zeros(len(taken), np.float32),
            discount=np.ones(len(taken), np.float32),
            observation=episode['observation'],
        )
        actions, _ = policy.action(time_step)
        np.testing.assert_array_equal(episode['action'][taken], actions[taken])
    assert columns.read_metadata(tmp_path / 'data')['train_step'] == 20


def test_a_finished_run_acts_with_its_result(run_dir, tmp_path):
    write_json(run_dir.done, {'reason': 'done', 'train_step': 20, 'policy': 'policies/greedy_policy/0'})
    try:
        run_record(run_dir, tmp_path / 'data', num_episodes=1)
    finally:
        run_dir.done.unlink()
    assert columns.read_metadata(tmp_path / 'data')['train_step'] == 0


def test_random_actions_need_no_run_and_a_second_call_continues(tmp_path):
    no_run = RunDir(tmp_path / 'run')
    first = run_record(no_run, tmp_path / 'data', policy='random')
    actions = np.concatenate([episode['action'] for episode in first])
    assert 0.2 < actions.mean() < 0.8
    assert len(run_record(no_run, tmp_path / 'data', policy='random')) == len(first)
    more = run_record(no_run, tmp_path / 'data', policy='random', num_episodes=12)
    assert len(more) == 12
    starts = {tuple(episode['observation'][0]) for episode in more}
    assert len(starts) == len(more), 'the second call did not repeat the episodes of the first'
    assert [shard.number for shard in find_shards(tmp_path / 'data')] == [0, 1]


def test_epsilon_changes_some_actions(run_dir, tmp_path):
    episodes = run_record(run_dir, tmp_path / 'data', epsilon=0.5, num_episodes=10)
    assert columns.read_metadata(tmp_path / 'data')['epsilon'] == 0.5
    returns = {float(episode['reward'].sum()) for episode in episodes}
    assert len(returns) > 1


def test_each_environment_records_its_share(tmp_path):
    """The first four episodes that end would include three of the short ones."""

    def make_environment(num_environments, seed):
        return fakes.CheckedEnvironment(lengths=(1, 6, 6)[:num_environments])

    for number, lengths in ((5, [1, 1, 6, 6, 6]), (6, [1, 1, 1, 6, 6, 6]), (7, [1, 1, 1, 1, 6, 6, 6])):
        given = {'num_episodes': number, 'num_environments': 3, 'policy': 'random'}
        episodes = run_record(RunDir(tmp_path / 'run'), tmp_path / 'data', make_environment=make_environment, **given)
        assert sorted(len(episode['reward']) - 1 for episode in episodes) == lengths


def test_an_environment_without_an_end_ends_the_recording(tmp_path, caplog):
    def make_environment(num_environments, seed):
        return fakes.CheckedEnvironment(lengths=(2, 10**9)[:num_environments])

    with pytest.raises(ValueError, match='got an episode of more than 50 steps; need episodes that end'):
        run_record(
            RunDir(tmp_path / 'run'), tmp_path / 'data', make_environment=make_environment, policy='random',
            max_steps_per_episode=50,
        )  # fmt: skip
    assert sum(shard.episodes for shard in find_shards(tmp_path / 'data')) == 3, 'its share of six'


def test_episodes_that_a_failure_interrupts_are_left_out_and_others_played(tmp_path, caplog):
    def make(num_failing):
        made = itertools.count()

        def make_one():
            at_step = 7 if next(made) < num_failing else 99
            wrong = example_environments.Returning(BOX, np.zeros(2), at_step, observation=np.full(2, np.nan))
            return gymnasium.wrappers.TimeLimit(wrong, 12)

        return lambda num_environments, seed: vector_env.in_process(make_one, num_environments, seed)

    given = {'policy': 'random', 'num_episodes': 5}
    with caplog.at_level(logging.INFO):
        episodes = run_record(RunDir(tmp_path / 'run'), tmp_path / 'data', make_environment=make(3), **given)
    for episode in episodes:
        assert episode['step_type'].tolist() == [0] + 11 * [1] + [2]
        np.testing.assert_array_equal(episode['reward'], 12 * [1] + [0])
    said = 'data has 5 episodes, 60 environment steps; dropped 3 others, because their environments failed'
    assert len(episodes) == 5 and said in caplog.text
    message = r'got 11 interrupted episodes in a row of environment 0; need complete ones; .*got nan in observation'
    with pytest.raises(RuntimeError, match=message):
        run_record(RunDir(tmp_path / 'run'), tmp_path / 'none', make_environment=make(99), **given)
    assert not find_shards(tmp_path / 'none')


def test_steps_are_a_quota(tmp_path):
    episodes = run_record(RunDir(tmp_path / 'run'), tmp_path / 'data', policy='random', num_episodes=None, num_steps=90)
    steps = [np.count_nonzero(episode['step_type'] != 2) for episode in episodes]
    # Complete episodes only, of two environments: the quota is passed by less than two episodes.
    assert 90 <= sum(steps) < 90 + 2 * max(steps)
    again = {'num_episodes': None, 'num_steps': 90}
    assert len(run_record(RunDir(tmp_path / 'run'), tmp_path / 'data', policy='random', **again)) == len(episodes)


def test_a_saved_model_anywhere_acts(run_dir, tmp_path):
    moved = tmp_path / 'elsewhere'
    shutil.copytree(run_dir.policy('greedy_policy') / '20', moved)
    from_run = run_record(run_dir, tmp_path / 'a')
    for name, policy in (('b', moved), ('c', run_dir.policy('greedy_policy'))):
        from_path = run_record(RunDir(tmp_path / 'none'), tmp_path / name, policy=str(policy))
        tf.nest.map_structure(np.testing.assert_array_equal, from_path, from_run)
        assert columns.read_metadata(tmp_path / name)['policy'] == str(policy)
        assert columns.read_metadata(tmp_path / name)['train_step'] == 20


@pytest.mark.filterwarnings('ignore:Encoding a StructuredValue')  # by PolicySaver
@pytest.mark.parametrize('memory', [False, True])
def test_a_policy_of_tf_agents_acts(tmp_path, memory):
    specs = specs_of(CARTPOLE)
    if memory:
        network = q_rnn_network.QRnnNetwork(
            specs.observation, specs.action, input_fc_layer_params=(3,), lstm_size=(3,), output_fc_layer_params=None
        )
    else:
        network = q_network.QNetwork(specs.observation, specs.action, fc_layer_params=(5,))
    policy = greedy_policy.GreedyPolicy(q_policy.QPolicy(specs.time_step, specs.action, network))
    policy_saver.PolicySaver(policy, train_step=tf.Variable(7, dtype=tf.int64)).save(str(tmp_path / 'saved'))
    episodes = run_record(RunDir(tmp_path / 'run'), tmp_path / 'data', policy=str(tmp_path / 'saved'), num_episodes=2)
    assert columns.read_metadata(tmp_path / 'data')['train_step'] == 7
    act = tf.function(policy.action, autograph=False, reduce_retracing=True)
    for episode in episodes:
        state = policy.get_initial_state(1)
        for t in range(len(episode['reward']) - 1):
            observation = tf.constant(episode['observation'][t : t + 1])
            step = ts.transition(observation, tf.ones(1)) if t else ts.restart(observation, batch_size=1)
            action, state, _ = act(step, state)
            assert action[0] == episode['action'][t]


def balance(observation):
    """Pushes towards the side to which the pole falls."""
    return (observation[:, 2] + observation[:, 3] > 0).astype(np.int32)


class Waving:
    """Pushes once to each side alternately, to the right first in each episode."""

    __name__ = __qualname__ = 'waving'
    steps = 0

    def __call__(self, observation, is_first):
        assert is_first.dtype == bool
        self.steps = np.where(is_first, 1, self.steps + 1)
        return (self.steps % 2).astype(np.int32)


def as_text(observation):
    return ['left'] * len(observation)


def of_one(observation):
    return 1


@pytest.mark.parametrize('policy', [balance, f'{__name__}:balance'])
def test_a_python_function_acts(tmp_path, policy):
    episodes = run_record(RunDir(tmp_path / 'run'), tmp_path / 'data', policy=policy)
    assert np.mean([episode['reward'].sum() for episode in episodes]) > 100
    for episode in episodes:
        np.testing.assert_array_equal(episode['action'][:-1], balance(episode['observation'][:-1]))
    assert columns.read_metadata(tmp_path / 'data')['policy'] == f'{__name__}:balance'
    for episode in run_record(RunDir(tmp_path / 'run'), tmp_path / 'with a state', policy=Waving()):
        pushes = episode['action'][:-1]
        np.testing.assert_array_equal(pushes, (1 + np.arange(len(pushes))) % 2)


def test_the_description_holds_the_origin(tmp_path):
    no_run = RunDir(tmp_path / 'run')
    run_record(no_run, tmp_path / 'data', policy='random', seed=3)
    episodes = run_record(no_run, tmp_path / 'data', policy=balance, num_episodes=12)
    found = columns.read_metadata(tmp_path / 'data')
    assert (found['policy'], found['seed'], found['tensorflow']) == ('random', 3, tf.__version__)
    assert found['environment'] == "tflearn.environments.gymnasium_env.make('CartPole-v1')"
    first, second = found['recordings']
    assert first['episodes'] + second['episodes'] == len(episodes)
    returns = [float(episode['reward'].sum()) for episode in episodes[first['episodes'] :]]
    np.testing.assert_allclose(second['returns']['mean'], np.mean(returns))
    assert (second['returns']['least'], second['returns']['greatest']) == (min(returns), max(returns))
    text = describe([str(tmp_path / 'data')])
    assert 'recorded' in text and f'policy {__name__}:balance' in text


def test_episodes_of_a_replay_are_extracted(tmp_path):
    """The same from the running server and from the checkpoint that it leaves."""
    run = jobs.SmallRun(tmp_path / 'run')
    run.experience = Experience(replay=Uniform(min_size=1, max_size=2000, samples_per_insert=None))  # no learner reads
    server = run.start_replay()
    given = {'run': Run(run.dir, coordinator=run.coordinator, connect_timeout_secs=10.0), **run.factories()}
    try:
        fill(run)
        extract(**given, output=str(tmp_path / 'running'), running=True)
    finally:
        server.stop.set()
        server.join()
    extract(**given, output=str(tmp_path / 'saved'))
    running, saved = (list(EpisodeReader(Dataset([str(tmp_path / name)])).episodes()) for name in ('running', 'saved'))
    assert len(saved) > 3
    assert {each['observation'].tobytes() for each in running} == {each['observation'].tobytes() for each in saved}
    for episode in saved:
        assert (episode['step_type'][0], episode['step_type'][-1]) == (0, 2)
        assert (episode['step_type'][1:-1] == 1).all()
        np.testing.assert_array_equal(episode['next_step_type'][:-1], episode['step_type'][1:])
    found = columns.read_metadata(tmp_path / 'saved')
    assert found['incomplete_rows'] < 150
    assert found['replay'] == str(run.dir.replay_checkpoints)
    with pytest.raises(ValueError, match='got the output .*, which exists'):
        extract(**given, output=str(tmp_path / 'saved'))
    served = Experience(replay=Uniform(min_size=1, max_size=2000, sampling='server'))
    with pytest.raises(ValueError, match='need uniform replay that the learner mirrors'):
        extract(**{**given, 'experience': served}, output=str(tmp_path / 'queue'), running=True)


def fill(run):
    """Writes 200 steps of random actions in each of three environments to a run's replay."""
    with contextlib.closing(CARTPOLE(num_environments=3, seed=0)) as environment:
        agent = run.factories()['make_agent'](environment.specs, create_train_step(), run.experience)
        storage = Storage(run.experience, agent.collect_data_spec)
        write = ReplayWriter(run.address, storage, 3, threading.Event())
        Actor(environment, _Acting(environment.specs, None, 1.0, 0), [lambda row: write(row, 0)]).run(200)
        write.flush()


def test_mistakes_are_refused(run_dir, tmp_path):
    for policy, message in (
        ('no_such_module:act', "got the policy 'no_such_module:act', but no module"),
        (f'{__name__}:no_function', 'need a function of .* after the colon'),
        (f'{__name__}:RunDir', 'need a function from observations to actions'),
        (of_one, r'got action of .*of_one .*shape \(\), int64; need \(2,\), int64'),
        (as_text, 'got a action of .*as_text of another structure'),
        ('no/directory', 'got no policy at .*/no/directory, which does not exist; need the directory of a SavedModel'),
        (str(run_dir.checkpoints), 'got no policy at'),
    ):
        with pytest.raises((ValueError, OSError, ImportError, TypeError), match=message):
            run_record(RunDir(tmp_path / 'none'), tmp_path / 'refused', policy=policy)
    tf.saved_model.save(tf.Module(), str(tmp_path / 'module'))
    with pytest.raises(ValueError, match=r'which has neither metadata.json nor policy_specs.pbtxt; need one'):
        run_record(run_dir, tmp_path / 'refused', policy=str(tmp_path / 'module'))
    with pytest.raises(ValueError, match='got Quota.num_episodes=6 and num_steps=3; need one of them'):
        run_record(run_dir, tmp_path / 'data', num_steps=3)
    with pytest.raises(ValueError, match=r"got no policy in .*; need one .*, or policy='random'"):
        run_record(run_dir, tmp_path / 'data', policy='no_policy')
    with pytest.raises(FileNotFoundError, match='got no policy at .*7'):
        run_record(run_dir, tmp_path / 'data', train_step=7)
    pendulum = functools.partial(gymnasium_env.make, 'Pendulum-v1')
    with pytest.raises(ValueError, match='use the configuration that it was trained with'):
        record(
            run=Run(run_dir), make_environment=pendulum, output=str(tmp_path / 'data'),
            num_environments=2,
        )  # fmt: skip
    assert not find_shards(tmp_path / 'data')


# Batches hold exactly the data that collectors write, with behaviour statistics, policy versions and policy states.

QUEUE = Experience(slicing=Slicing(sequence_length=5, stride=4), replay=Queue(max_size=100))


@pytest.fixture
def read_back(tmp_path):
    """Returns a function that writes 9 steps of an environment, a version each, and reads its sequences."""

    def read_back(environment, policy, data_spec, experience=QUEUE, stores_policy_state=False):
        storage = Storage(experience, data_spec)
        server = servers.serve(storage.make_tables(), 0, tmp_path / 'checkpoints')
        written = []
        try:
            writer = ReplayWriter(server.address, storage, environment.num_environments, threading.Event())
            write = lambda row: (writer(row, len(written)), written.append(row))  # noqa: E731
            Actor(environment, policy, [write], stores_policy_state).run(9)
            writer.flush()
            server.checkpoint()
            chunks = np.stack(stored_episodes.read_chunks(tmp_path / 'checkpoints', storage))
            assert len(chunks) == 2 * environment.num_environments
        finally:
            server.close()
        chunks = chunks.reshape(-1, *storage.chunk_shape)
        columns = tf.nest.map_structure(lambda *leaves: np.stack(leaves, 1), *written)  # [B, 9, ...]
        return storage.layout.unpack(tf.constant(chunks)), columns

    return read_back


def _check(read, columns):
    """Each sequence equals the steps written with its versions, in the environment with its observations."""
    assert len(read['policy_version']) > 2
    for i, versions in enumerate(read['policy_version'].numpy()):
        sequence = tf.nest.map_structure(lambda leaf, i=i: leaf[i].numpy(), read['trajectory'])
        assert versions.tolist() in ([0, 1, 2, 3, 4], [4, 5, 6, 7, 8])
        seen = columns.observation[:, versions]
        (environment,) = np.flatnonzero((seen == sequence.observation).reshape(len(seen), -1).all(1))
        written = tf.nest.map_structure(lambda leaf, e=environment, v=versions: leaf[e, v], columns)
        tf.nest.map_structure(np.testing.assert_array_equal, sequence, written)


def test_records_distribution_parameters_and_versions(read_back):
    environment = gymnasium_env.make('Pendulum-v1', num_environments=2, seed=3)
    agent = ppo.make_agent(environment.specs, create_train_step(), QUEUE)
    read, columns = read_back(environment, agent.collect_policy, initial_agent.data_spec(agent, QUEUE))
    _check(read, columns)
    assert np.ptp(columns.policy_info['dist_params']['loc']) > 0
    environment.close()


@pytest.mark.parametrize('random', [False, True])
def test_records_log_probabilities(read_back, random):
    environment = gymnasium_env.make('CartPole-v1', num_environments=2, seed=3)
    own = environment.specs
    network = q_network.QNetwork(own.observation, own.action, fc_layer_params=(4,))
    policy = q_policy.QPolicy(own.time_step, own.action, network, emit_log_probability=True)
    read, columns = read_back(environment, uniform(policy) if random else policy, policy.trajectory_spec)
    _check(read, columns)
    recorded = columns.policy_info.log_probability
    if random:
        np.testing.assert_allclose(recorded, np.full(recorded.shape, np.log(0.5)), rtol=1e-6)
    else:
        time_step = own.time_step._replace(
            **{
                name: tf.constant(getattr(columns, name)[0])
                for name in ('step_type', 'reward', 'discount', 'observation')
            }
        )
        distribution = policy.distribution(time_step).action
        np.testing.assert_allclose(recorded[0], distribution.log_prob(columns.action[0]), rtol=1e-4)
    environment.close()


def test_sac_records_no_policy_info(read_back):
    environment = gymnasium_env.make('Pendulum-v1', num_environments=2, seed=3)
    agent = sac.make_agent(environment.specs, create_train_step(), Experience())
    read, columns = read_back(environment, agent.collect_policy, initial_agent.data_spec(agent, QUEUE))
    _check(read, columns)
    environment.close()


def test_recurrent_agent_trains_on_stored_policy_states(read_back):
    own = EnvironmentSpecs(fakes.OBSERVATION_SPEC, fakes.ACTION_SPEC)
    network = q_rnn_network.QRnnNetwork(
        own.observation, own.action, input_fc_layer_params=(4,), lstm_size=(3,), output_fc_layer_params=None
    )
    optimizer = tf.keras.optimizers.Adam()
    agent = dqn_agent.DqnAgent(own.time_step, own.action, q_network=network, optimizer=optimizer, epsilon_greedy=0.1)
    agent.initialize()
    experience = Experience(
        slicing=Slicing(sequence_length=5, stride=4, store_policy_state=True), replay=Queue(max_size=100)
    )
    spec = initial_agent.data_spec(agent, experience)
    assert [leaf.shape.as_list() for leaf in spec.policy_info['policy_state']] == [[3], [3]]
    read, columns = read_back(_Long(), agent.collect_policy, spec, experience, stores_policy_state=True)
    _check(read, columns)
    states = read['trajectory'].policy_info['policy_state'][0].numpy()
    begins = read['policy_version'].numpy()[:, 0] == 0
    assert not states[begins, 0].any()  # an episode's start
    assert states[~begins, 0].any()
    assert np.isfinite(agent.train(read['trajectory']).loss)


def test_policy_state_is_stored_only_on_request():
    own = EnvironmentSpecs(fakes.OBSERVATION_SPEC, fakes.ACTION_SPEC)
    agent = dqn.make_agent(own, create_train_step(), Experience())
    assert initial_agent.data_spec(agent, Experience()) is agent.collect_data_spec
    with pytest.raises(ValueError, match='got a policy without a state to be stored'):
        initial_agent.data_spec(agent, Experience(slicing=Slicing(store_policy_state=True)))


class _Long(fakes.CheckedEnvironment):
    """Episodes that do not end within the test."""

    def __init__(self):
        super().__init__((100, 100))

    def reset(self):
        time_step = super().reset()
        self._episode += np.arange(self.num_environments)  # so that environments have different observations
        return time_step._replace(observation=self._time_step(np.zeros(self.num_environments)).observation)
