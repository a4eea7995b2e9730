"""An agent of transformed observations and rewards: what it learns from, over every path of the data, and exported."""

import contextlib
import functools
import threading

import numpy as np
import pytest
import tensorflow as tf
from gymnasium import spaces

from tests import streams
from tests.agents import example_data
from tests.testing import replay, structured
from tests.testing.jobs import small_run  # noqa: F401 - a fixture
from tests.testing.replay import serve  # noqa: F401 - a fixture
from tflearn.actors import exploration
from tflearn.actors.actor import Actor
from tflearn.actors.evaluator import Evaluator
from tflearn.agents import dqn, ppo
from tflearn.core import summary_tensors
from tflearn.core.action_mask import mask_of
from tflearn.core.experience import BatchItems, Experience, Iteration, Queue, Slicing, Uniform
from tflearn.core.train_step import create_train_step
from tflearn.core.types import EnvironmentSpecs
from tflearn.core.waiting import Stopped
from tflearn.environments import gymnasium_env, vector_env
from tflearn.jobs.collect import collect
from tflearn.jobs.train import train
from tflearn.networks.networks import NetworkOptions
from tflearn.policies import exporter, loader, signatures
from tflearn.policies.policy_function import load_policy
from tflearn.replay.reader import TableReader
from tflearn.replay.storage import Storage
from tflearn.replay.writers import ReplayWriter
from tflearn.sampling.mirror import ReplayMirror
from tflearn.sampling.queue_source import QueueSource
from tflearn.sampling.ring_source import LocalReplay
from tflearn.transforms import image, normalize, rewards, stack, statistics, transformed

SPACE = spaces.Dict(camera=spaces.Box(0, 255, (12, 10, 3), np.uint8), joints=structured.VECTOR)
CONVOLUTIONS = ((4, 3, 2),)
TRANSFORMS = [image.Grayscale(), image.Resize(6, 5), image.Scale(), rewards.Scale(10.0), rewards.Shift(-2.0)]
STORED = {'max_size': 64, 'min_size': 1}
EXPERIENCES = {
    'synchronous': Experience(replay=Uniform(**STORED), batch=BatchItems(2)),
    'mirror': Experience(replay=Uniform(**STORED, sampling='learner'), batch=BatchItems(2)),
    'queue': Experience(Slicing(5, 4, cross_episodes=True), Queue(max_size=8), BatchItems(2)),
}
SOURCES = {'mirror': ReplayMirror, 'queue': functools.partial(QueueSource, make_reader=TableReader)}
MAKE_DQN = functools.partial(
    dqn.make_agent, network=NetworkOptions(fc_layer_params=(8,), conv_layer_params=CONVOLUTIONS), epsilon=0.5
)
MAKE_PPO = functools.partial(
    ppo.make_agent, network=NetworkOptions(fc_layer_params=(8,), conv_layer_params=CONVOLUTIONS)
)


@pytest.fixture(scope='module')
def environments():
    make_one = lambda: structured.Random(SPACE, structured.CHOICE)  # noqa: E731
    with contextlib.closing(vector_env.in_process(make_one, 2, 0)) as made:
        yield made


def make_agent(specs, path='synchronous', transforms=TRANSFORMS, make=None):
    make = make or (MAKE_PPO if path == 'queue' else MAKE_DQN)
    agent = transformed.make_agent(
        specs, create_train_step(), EXPERIENCES[path], make_agent=make, transforms=transforms
    )
    agent.initialize()
    return agent


def collected(agent, path, environments, start):
    """Returns a batch that an actor collected: a Trajectory [B, T, ...]."""
    policy, experience = agent.collect_policy, EXPERIENCES[path]
    storage = Storage(experience, agent.collect_data_spec)
    if path == 'synchronous':
        local = LocalReplay(storage, 2, experience.per_replica_batch_size)
        Actor(environments, policy, [lambda row: local(row, 0)]).run(24)
        return tf.nest.map_structure(lambda leaf: leaf[0], replay.draw(local)[0])
    served = start(experience, data_spec=storage.data_spec)

    def write():
        writer = ReplayWriter(served.address, served.storage, 2, served.stop)
        actor = Actor(environments, policy, [lambda row: writer(row, 0)])
        with contextlib.suppress(Stopped):
            actor.run(24)
            writer.flush()
            while path == 'queue' and not served.stop.is_set():  # a reader of a queue ends with its next item
                actor.run(4)

    thread = threading.Thread(target=write, daemon=True)
    thread.start()
    address = [served.address] if path == 'queue' else served.address
    source = SOURCES[path](address, served.storage, experience.per_replica_batch_size, 60.0)
    with contextlib.closing(source):
        batch = tf.nest.map_structure(lambda leaf: leaf[0], replay.draw(source)[0])
    streams.wait_until_ended()
    served.stop.set()
    thread.join(30)
    return batch


assert_close = functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-6)


def check_export(agent, environments, folder):
    """Compares the greedy policy's actions with those of its export, by nests, and by names in TensorFlow alone."""
    path = exporter.PolicyExporter(agent.policy, folder).export(1, {})
    time_step = environments.reset()
    tensors = tf.nest.map_structure(tf.constant, time_step)
    live = signatures.to_plain(
        tf.nest.map_structure(
            lambda leaf: leaf.numpy(), agent.policy.action(tensors, agent.policy.get_initial_state(2)).action
        )
    )
    loaded = loader.load(path)
    mask = mask_of(agent.policy)
    assert loaded.metadata.get(exporter.ACTION_MASK) == (mask and mask.path)
    assert Evaluator(environments, 4).run(loaded).mean_return == 4
    tf.nest.map_structure(assert_close, live, loaded.action(time_step, loaded.initial_state(2))[0])
    plain = tf.saved_model.load(str(path))
    named = dict(signatures.flat(signatures.to_plain(time_step.observation), 'observation'))
    state = plain.signatures['get_initial_state'](tf.constant(2)) if agent.policy.policy_state_spec else {}
    served = plain.signatures['serving_default'](**{k: tf.constant(v) for k, v in named.items()}, **state)
    for name, action in signatures.flat(live, 'action'):
        assert_close(served[name], action)


@pytest.mark.parametrize('path', EXPERIENCES)
def test_raw_data_over_every_path_then_exported(path, environments, serve, tmp_path):  # noqa: F811
    """The replay holds what the environment made; the exported policy takes that; evaluations count raw rewards."""
    agent = make_agent(environments.specs, path)
    batch = collected(agent, path, environments, serve)
    assert batch.observation['camera'].shape[2:] == (12, 10, 3) and batch.observation['camera'].dtype == tf.uint8
    np.testing.assert_array_equal(batch.reward, batch.next_step_type != 0)
    before = [variable.numpy() for variable in agent.policy.variables()]
    assert np.isfinite(agent.loss(batch).loss) and np.isfinite(agent.train(batch).loss)
    assert any(np.any(new != old) for new, old in zip(agent.policy.variables(), before, strict=True))
    if path != 'mirror':
        check_export(agent, environments, tmp_path)


def test_trains_as_an_agent_of_transformed_data(environments):
    """The same step as that of an agent in an environment that makes transformed observations and rewards."""
    agent, rows = make_agent(environments.specs), []
    Actor(environments, agent.collect_policy, [rows.append]).run(3)
    batch = tf.nest.map_structure(lambda *leaves: tf.constant(np.stack(leaves, axis=1)), *rows[:2])
    camera = batch.observation['camera'].numpy().astype(np.float64)
    gray = np.round(camera @ [0.299, 0.587, 0.114])
    small = np.round(gray.reshape(2, 2, 6, 2, 5, 2).mean(axis=(3, 5)))[..., np.newaxis]
    reward = tf.where(batch.next_step_type == 0, 0.0, 10.0 * batch.reward - 2.0)
    by_hand = batch._replace(
        observation={**batch.observation, 'camera': tf.constant(small / 255.0, tf.float32)}, reward=reward
    )
    camera_spec = tf.TensorSpec((6, 5, 1), tf.float32, 'camera')
    specs = EnvironmentSpecs({**environments.specs.observation, 'camera': camera_spec}, environments.specs.action)
    plain = MAKE_DQN(specs, create_train_step(), EXPERIENCES['synchronous'])
    for variable, value in zip(plain.policy.variables(), agent.policy.variables(), strict=True):
        variable.assign(value)
    plain.initialize()
    agent.initialize()
    np.testing.assert_allclose(agent.train(batch).loss, plain.train(by_hand).loss, rtol=1e-4)
    for mine, theirs in zip(agent.policy.variables(), plain.policy.variables(), strict=True):
        np.testing.assert_allclose(mine, theirs, atol=1e-4)


def test_explores_as_the_wrapped_policy(environments):
    """An epsilon for each environment, and random first actions."""
    agent = make_agent(environments.specs)
    Actor(environments, exploration.with_epsilons(agent.collect_policy, np.float32([0.0, 1.0]))).run(2)
    Actor(environments, exploration.uniform(agent.collect_policy)).run(2)
    policy = exploration.with_epsilons(agent.collect_policy, np.float32([0.0, 0.0]))
    time_step = tf.nest.map_structure(tf.constant, environments.reset())
    np.testing.assert_array_equal(policy.action(time_step).action, agent.policy.action(time_step).action)


def test_a_mask_stays_legal(tmp_path):
    with contextlib.closing(structured.make_environment('masked discrete')) as masked:
        make = functools.partial(
            dqn.make_agent, network=NetworkOptions(fc_layer_params=(8,)), epsilon=1.0, action_mask='mask'
        )
        agent = make_agent(masked.specs, transforms=[rewards.Clip(-1.0, 0.5)], make=make)
        Actor(masked, agent.collect_policy).run(20)
        Actor(masked, exploration.uniform(agent.collect_policy)).run(20)
        check_export(agent, masked, tmp_path)
        assert masked.num_rebuilt == 0


@pytest.mark.parametrize(
    'transforms, message',
    [
        ([], 'need a list of one or more'),
        (rewards.Clip(), 'need a list of one or more'),
        ([rewards.Clip], 'need objects of tflearn.transforms'),
        ([rewards.Clip(), rewards.Function(lambda *_: tf.zeros((2, 3)))], 'got Function after Clip .* to the front'),
        ([image.Scale(), image.Scale()], 'got the observation .* for Scale; need an image .* of bytes'),
        ([image.Grayscale(), image.Grayscale()], r'need an image \[height, width, 3\]'),
    ],
)
def test_refuses_a_wrong_order(transforms, message, environments):
    with pytest.raises((ValueError, TypeError), match=message):
        make_agent(environments.specs, transforms=transforms)


def test_refuses_several_rewards_and_agents_that_change_sequences(environments):
    specs = environments.specs
    several = EnvironmentSpecs(specs.observation, specs.action, tf.TensorSpec((2,), tf.float32, 'reward'))
    with pytest.raises(ValueError, match='got the reward .* need one number; add rewards.Weighted'):
        make_agent(several, transforms=[rewards.Clip()])

    def make(*given):
        agent = MAKE_DQN(*given)
        agent._training_data_spec = ()
        return agent

    with pytest.raises(ValueError, match='which changes sequences before it trains on them'):
        make_agent(specs, make=make)


# Transforms with statistics and frames through the jobs: collected, queued, trained, exported, continued.

STATISTICS_AND_STACK = [
    normalize.Observations(statistics=statistics.Ema(0.1)),
    stack.FrameStack(2),
    normalize.Rewards(statistics=statistics.Window(8)),
]


def mean_of_observations(run):
    """Returns the mean of the newest checkpoint."""
    reader = tf.train.load_checkpoint(str(run.dir.checkpoints))
    (name,) = [
        name
        for name, shape in reader.get_variable_to_shape_map().items()
        if '_transforms_variables/0/.ATTRIBUTES' in name and shape == [4] and 'optimizer' not in name
    ]
    return reader.get_tensor(name)


def exported_means(run):
    """Returns the variables of the newest exported policy that have the mean's name."""
    newest = max((run.dir.policy('greedy_policy')).glob('[0-9]*'), key=lambda path: int(path.name))
    return [value.numpy() for value in tf.saved_model.load(str(newest)).model_variables if 'mean' in value.name]


@pytest.mark.slow
def test_on_policy_jobs_on_two_replicas(small_run):  # noqa: F811
    """Items have a history; the learner shuffles the steps of iterations; statistics travel with the weights."""
    factories = {
        'make_environment': functools.partial(gymnasium_env.make, 'CartPole-v1'),
        'make_agent': functools.partial(
            transformed.make_agent,
            make_agent=functools.partial(
                ppo.make_agent,
                network=NetworkOptions(fc_layer_params=(8,)),
                normalize_observations=False,
                normalize_rewards=False,
            ),
            transforms=STATISTICS_AND_STACK,
        ),
        'experience': Experience(
            Slicing(sequence_length=9, stride=8, cross_episodes=True, history_steps=1),
            Queue(max_size=8, training=Iteration(num_epochs=2, minibatch_steps=12)),
            BatchItems(2),
        ),
    }
    small_run.factories = lambda: factories
    small_run.start_replay()
    small_run.start(collect, num_environments=4)
    few = {'checkpoint_interval_steps': 6, 'export_interval_steps': 6, 'publish_interval_steps': 1}
    small_run.start(train, num_train_steps=18, strategy='mirrored:2', **few).join()
    mean = mean_of_observations(small_run)
    assert np.abs(mean).max() > 0
    assert any(np.array_equal(value, mean) for value in exported_means(small_run))
    policy = load_policy(small_run.dir.root)
    assert policy(np.zeros((2, 4), np.float32)).shape == (2,)


def test_a_restored_agent_continues_with_its_statistics(tmp_path):
    """A summary has the rewards that it learns from; the learner's has those of the environment."""
    experience = Experience(
        Slicing(sequence_length=3, history_steps=1), Uniform(max_size=500, min_size=20), BatchItems(4)
    )

    def make():
        agent = transformed.make_agent(
            example_data.DISCRETE,
            create_train_step(),
            experience,
            make_agent=functools.partial(dqn.make_agent, network=NetworkOptions(fc_layer_params=(8,))),
            transforms=[*STATISTICS_AND_STACK[:2], rewards.Scale(10.0)],
        )
        agent.initialize()
        return agent

    agent, restored = make(), make()
    data = [example_data.sequences(agent, 4, 4, seed) for seed in range(3)]  # the first row is history
    with summary_tensors.collecting() as found:
        agent.train(data[0])
    reward = 10.0 * data[0].reward.numpy()[:, 1:]
    assert found['data/transformed_reward'][:2].numpy() == pytest.approx([reward.min(), reward.max()], rel=1e-5)
    agent.train(data[1])
    tf.train.Checkpoint(agent=restored).restore(tf.train.Checkpoint(agent=agent).save(str(tmp_path / 'saved')))
    means = [each._statistics[0].means[0] for each in (agent, restored)]
    before = [mean.numpy() for mean in means]
    for each in (agent, restored):
        each.train(data[2])
    np.testing.assert_array_equal(*before)
    np.testing.assert_array_equal(*means)
    assert (means[0].numpy() != before[0]).all()
