"""A run that begins with a policy cloned from recorded episodes, in one run directory."""

import functools

import pytest
import tensorflow as tf

from tests.data import data_sets
from tests.testing import written_summaries
from tests.testing.jobs import job_arguments
from tflearn.agents import bc, ppo
from tflearn.core.experience import BatchItems, Experience, Iteration, Queue, Slicing
from tflearn.core.waiting import wait_until
from tflearn.data.demonstrations import Cloning
from tflearn.data.reader import Dataset
from tflearn.environments import gymnasium_env
from tflearn.files.run_dir import RunDir, read_json
from tflearn.jobs.collect import collect
from tflearn.jobs.synchronous import synchronous
from tflearn.jobs.train import train
from tflearn.jobs.train_settings import Initial
from tflearn.networks.networks import NetworkOptions

# TF-Agents' own
pytestmark = pytest.mark.filterwarnings('ignore:Conversion of an array with ndim > 0:DeprecationWarning')

NETWORK = NetworkOptions(fc_layer_params=(8,))
PPO = {
    'make_agent': functools.partial(ppo.make_agent, network=NETWORK),
    'experience': Experience(
        slicing=Slicing(sequence_length=9, stride=8, cross_episodes=True),
        replay=Queue(max_size=4, training=Iteration(num_epochs=2, minibatch_steps=16)),
        batch=BatchItems(4),
    ),
}


@pytest.fixture(scope='module')
def data(tmp_path_factory):
    """Episodes of random actions on CartPole."""
    directory = tmp_path_factory.mktemp('data')
    environment = gymnasium_env.make('CartPole-v1', num_environments=2, seed=3)
    data_sets.write(directory, 150, environment)
    environment.close()
    return Dataset([str(directory)])


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
