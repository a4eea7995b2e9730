"""Recorded episodes in a run: in its replay, in each batch, and before its first own step."""

import contextlib
import functools
import threading

import pytest
import tensorflow as tf

from tests.jobs.synchronous_test import assert_same
from tests.testing import jobs, lanes, written_summaries
from tests.testing.jobs import job_arguments
from tflearn.actors.actor import Actor
from tflearn.agents import bc, dqn, ppo
from tflearn.core.experience import BatchItems, Experience, Iteration, Prioritized, Queue, Slicing, Uniform
from tflearn.core.waiting import wait_until
from tflearn.data.demonstrations import Cloning, Demonstrations
from tflearn.data.reader import Dataset
from tflearn.data.writer import EpisodeRecorder, EpisodeWriter
from tflearn.environments import gymnasium_env
from tflearn.files.run_dir import RunDir, read_json
from tflearn.jobs.collect import collect
from tflearn.jobs.record import _Acting
from tflearn.jobs.replay_server import replay_server
from tflearn.jobs.synchronous import synchronous
from tflearn.jobs.train import train
from tflearn.jobs.train_settings import Data, Initial
from tflearn.launch.local import free_port
from tflearn.learner.learner import LearnerOptions
from tflearn.learner.summaries import SummaryOptions
from tflearn.learner.train_loop import LoopOptions
from tflearn.networks.networks import NetworkOptions

FEW = {
    'num_environments': 2,
    'checkpoint_interval_steps': 20,
    'export_interval_steps': 50,
    'summary_interval_steps': 10,
}


@pytest.fixture(scope='module')
def data(tmp_path_factory):
    """Episodes of random actions on CartPole."""
    directory = tmp_path_factory.mktemp('data')
    environment = gymnasium_env.make('CartPole-v1', num_environments=2, seed=3)
    with contextlib.closing(EpisodeWriter(directory, environment.specs)) as writer:
        recorder = EpisodeRecorder(writer, 2)
        Actor(environment, _Acting(environment.specs, None, 1.0, 0), [recorder]).run(150)
    environment.close()
    return Dataset([str(directory)])


def run_synchronously(root, demonstrations, **arguments):
    run = jobs.SmallRun(root)
    given = {'run_dir': run.dir, 'stop': threading.Event(), **run.factories(), **FEW, 'seed': 3}
    given |= {'demonstrations': demonstrations} | arguments
    synchronous(**jobs.job_arguments(synchronous, given))
    return run.dir


@lanes.classic
def test_a_filled_replay_needs_no_steps_before_training(tmp_path, data):
    shown = Demonstrations(data, share=0.0, fill_replay=True)
    run_dir = run_synchronously(tmp_path, shown, num_train_steps=40, summary_interval_steps=None)
    env_steps = read_json(run_dir.train_result)['env_steps']
    assert env_steps <= 40 + 4, 'one item allows a train step of eight items'
    assert read_json(run_dir.status('train'))['replay_size'] - env_steps > 100


@pytest.mark.slow
def test_the_same_seed_gives_the_same_weights(tmp_path, data):

    shown = Demonstrations(data, num_pretrain_steps=10, fill_replay=True)
    assert_same(*(run_synchronously(tmp_path / name, shown, num_train_steps=30) for name in ('one', 'same')))


@lanes.classic
def test_jobs_train_on_demonstrations_before_anything_is_collected(small_run, data):
    shown = Demonstrations(data, share=0.25, num_pretrain_steps=60, fill_replay=True)
    taken, acted_after = [], []

    def make_environment(*arguments, **options):
        environment = small_run.factories()['make_environment'](*arguments, **options)
        step = environment.step

        def counted(action):
            acted_after.append(sum(taken))
            return step(action)

        environment.step = counted
        return environment

    small_run.start_replay(demonstrations=shown)
    collector = small_run.start(collect, num_environments=2, make_environment=make_environment)
    options = LearnerOptions(summaries=SummaryOptions(10), after_run=lambda result: taken.append(result.num_steps))
    given = {'demonstrations': shown, 'publish_interval_steps': 10, 'steps_per_call': 10, 'options': options}
    small_run.start(train, num_train_steps=100, **given).join()
    collector.join()  # it has seen the end of the run
    assert small_run.status('collect_0')['state'] == 'finished'
    # The weights after 60 steps are sent just before that call is counted.
    assert min(acted_after) >= 50
    result = read_json(small_run.dir.train_result)
    assert result['train_step'] == 100
    shares = written_summaries.scalars(small_run.dir.summaries('train'))['train/demonstration_share']
    assert shares == {
        **dict.fromkeys(range(10, 70, 10), 1.0),
        **dict.fromkeys(range(70, 110, 10), 0.25),
    }
    sizes = written_summaries.scalars(small_run.dir.summaries('train'))['train/replay_size']
    assert sizes[70] > 200, 'the episodes count for min_size, so training does not wait for 50 more items'


@pytest.mark.slow
def test_two_replicas_train_on_demonstrations(small_run, data):
    small_run.start_replay()
    small_run.start(collect, num_environments=2)
    given = {'strategy': 'mirrored:2', 'demonstrations': Demonstrations(data, num_pretrain_steps=20)}
    small_run.start(train, num_train_steps=40, summary_interval_steps=20, **given).join()
    shares = written_summaries.scalars(small_run.dir.summaries('train'))['train/demonstration_share']
    assert shares == {20: 1.0, 40: 0.25}


@lanes.classic
def test_demonstrations_beside_items_by_priority(tmp_path, data):
    """A learner that draws by priority holds demonstrations too, which the agent's own loss knows."""
    experience = Experience(
        replay=Prioritized(min_size=50, samples_per_insert=8.0, max_size=2000, sampling='learner'), batch=BatchItems(8)
    )
    seen = []

    def after_step(data, loss):
        _, info = data
        seen.append((info['demonstrated'].dtype, tuple(info['weights'].shape)))

    options = LearnerOptions(loop=LoopOptions(after_step=after_step, jit_compile=False))
    run_dir = run_synchronously(
        tmp_path,
        Demonstrations(data, share=0.5, num_pretrain_steps=10),
        make_agent=functools.partial(dqn.make_agent, network=NetworkOptions((8,)), demonstration_margin=0.8),
        experience=experience,
        num_train_steps=30,
        learner_options=options,
    )
    found = written_summaries.scalars(run_dir.summaries('train'))
    assert found['train/demonstration_share'] == {10: 1.0, 20: 0.5, 30: 0.5}
    assert found['train/priorities_updated'][30] == 20 * 4
    assert set(seen) == {(tf.bool, (8,))}


@pytest.mark.slow
@lanes.classic
def test_two_replay_servers_have_demonstrations(small_run, data):
    shown = Demonstrations(data, share=0.25, num_pretrain_steps=20, fill_replay=True)
    given = {'demonstrations': shown, 'num_shards': 2}
    small_run.start_replay(**given)
    small_run.start(replay_server, shard=1, replay_address=f'localhost:{free_port()}', **given)
    for name in ('collect_0', 'collect_1'):
        small_run.start(collect, name=name, num_environments=2)
    small_run.start(train, num_train_steps=60, demonstrations=shown, summary_interval_steps=20).join()
    shares = written_summaries.scalars(small_run.dir.summaries('train'))['train/demonstration_share']
    assert shares == {20: 1.0, 40: 0.25, 60: 0.25}


def test_rejects_settings_that_use_no_episode(data):
    with pytest.raises(ValueError, match='got Demonstrations.share=0 with num_pretrain_steps=0 .* no episode would be'):
        Demonstrations(data, share=0)


@pytest.mark.parametrize(
    ('experience', 'message'),
    [
        (
            Experience(replay=Prioritized(sampling='server')),
            r'Experience.replay=Prioritized\(.*; need Uniform.* that the learner draws',
        ),
        (Experience(replay=Uniform(sampling='server')), 'need Uniform.* that the learner draws from'),
        (Experience(slicing=Slicing(cross_episodes=True)), 'got Initial.demonstrations with Slicing.cross_episodes'),
        (Experience(batch=BatchItems(1)), 'for batches of 1 items on each replica, of which 0 would be demonstrations'),
    ],
)
def test_rejects_experience_without_room_for_demonstrations(data, experience, message):
    with pytest.raises(ValueError, match=message):
        Demonstrations(data).check(experience)


def test_jobs_refuse_demonstrations_before_any_work(small_run, data):
    given = {'demonstrations': Demonstrations(data), 'num_train_steps': 1}
    with pytest.raises(ValueError, match='got Initial.demonstrations with .* Uniform'):
        small_run.start(train, experience=Experience(replay=Uniform(sampling='server')), **given).join()
    with pytest.raises(ValueError, match='would be demonstrations'):
        run_synchronously(small_run.dir.root, experience=Experience(batch=BatchItems(1)), **given)
    assert not small_run.dir.root.exists() or not list(small_run.dir.root.iterdir())


def test_rejects_episodes_of_other_environments(tmp_path, data):
    pendulum = functools.partial(gymnasium_env.make, 'MountainCar-v0')
    with pytest.raises(ValueError, match=r'observation: float32\[2\]'):
        run_synchronously(tmp_path, Demonstrations(data), make_environment=pendulum, num_train_steps=1)


def test_rejects_weights_of_several_servers(data):
    several = Data(addresses=('localhost:1',), weights=(1.0,))
    with pytest.raises(ValueError, match=r'got Data.weights=\(1.0,\) with Initial.demonstrations'):
        several.check(Uniform(), Initial(demonstrations=Demonstrations(data)))


# PPO, whose queue has no place for recorded episodes.

NETWORK = NetworkOptions(fc_layer_params=(8,))
PPO = {
    'make_agent': functools.partial(ppo.make_agent, network=NETWORK),
    'experience': Experience(
        slicing=Slicing(sequence_length=9, stride=8, cross_episodes=True),
        replay=Queue(max_size=4, training=Iteration(num_epochs=2, minibatch_steps=16)),
        batch=BatchItems(4),
    ),
}


def test_a_queue_has_no_demonstrations(tmp_path, data):
    with pytest.raises(ValueError, match=r'got Initial.demonstrations with Experience.replay=Queue.*Initial.cloning'):
        run_synchronously(tmp_path, Demonstrations(data), num_train_steps=1, **PPO)


# A run that begins with a policy cloned from recorded episodes, in one run directory.


def cloning_of(data, num_train_steps=60, **settings):
    make_agent = functools.partial(bc.make_agent, network=NETWORK)
    return Cloning(data, make_agent, num_train_steps, Experience(batch=BatchItems(16)), **settings)


def logits(run_dir, step):
    """The first layers' weights of the exported policy of a train step."""
    policy = tf.saved_model.load(str(run_dir.greedy_policy / str(step)))
    return {variable.name: variable.numpy() for variable in policy.model_variables}


@pytest.mark.slow
def test_ppo_begins_with_the_cloned_policy_and_collects_after_it(small_run, data):
    small_run.start_replay(**PPO)
    collector = small_run.start(collect, num_environments=2, **PPO)
    given = {**PPO, 'cloning': cloning_of(data), 'publish_interval_steps': 1, 'export_interval_steps': 1_000}
    small_run.start(train, num_train_steps=4, **given).join()
    collector.join()
    result = read_json(small_run.dir.train_result)
    assert result['train_step'] == 4
    own = RunDir(small_run.dir.cloning)
    assert (own.checkpoints / 'ckpt-60.index').exists()
    assert len(written_summaries.scalars(own.summaries('train'))['train/loss']) == 60
    cloned = tf.train.load_checkpoint(str(own.checkpoints))
    values = [
        cloned.get_tensor(name) for name in cloned.get_variable_to_shape_map() if name.startswith('agent/_network')
    ]
    first = logits(small_run.dir, 0)
    assert len(first) >= 6
    for name, value in first.items():
        if value.ndim == 2:
            assert any(other.shape == value.shape and (other == value).all() for other in values), name
    assert any((logits(small_run.dir, 4)[name] != value).any() for name, value in first.items())
    # The run continues from its own checkpoint, even if its data are gone.
    given['cloning'] = cloning_of(Dataset(['nowhere']))
    collector = small_run.start(collect, num_environments=2, **PPO)
    small_run.start(train, num_train_steps=8, **given).join()
    collector.join()
    assert read_json(small_run.dir.train_result)['train_step'] == 8


@pytest.mark.slow
def test_a_cloning_that_was_stopped_goes_on(small_run, data):
    small_run.start_replay(**PPO)
    given = {**PPO, 'num_train_steps': 1}
    job = small_run.start(train, cloning=cloning_of(data, 10**9), **given)
    wait_until(lambda: small_run.status('train').get('cloning_step') or job.ended, 'the cloning', 60)
    job.stop.set()
    job.join()
    assert small_run.status('train')['state'] == 'stopped'
    checkpoints = RunDir(small_run.dir.cloning).checkpoints
    last = max(int(path.stem.partition('-')[2]) for path in checkpoints.glob('*.index'))
    assert last >= 200
    collector = small_run.start(collect, num_environments=2, **PPO)
    small_run.start(train, cloning=cloning_of(data, last + 20), **given).join()
    collector.join()
    assert (checkpoints / f'ckpt-{last + 20}.index').exists()
    assert read_json(small_run.dir.train_result)['train_step'] >= 1


def test_rejects_what_cannot_be_cloned(small_run, data):
    with pytest.raises(ValueError, match=r"got Initial.cloning and the values of 'before'; need one of them"):
        Initial(cloning=cloning_of(data), policy='before')
    with pytest.raises(ValueError, match=r'got Cloning.experience with replay=Queue\(.*; need Uniform'):
        Cloning(data, bc.make_agent, 1, Experience(replay=Queue()))
    given = {'run_dir': small_run.dir, **small_run.factories(), 'cloning': cloning_of(data), 'num_train_steps': 1}
    with pytest.raises(ValueError, match='got Initial.cloning in the synchronous job; need None'):
        synchronous(**job_arguments(synchronous, given))
