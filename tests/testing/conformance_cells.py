"""The conformance matrix: every agent with every kind of structured observation and action, over every path of data.

A cell collects from an environment, trains a step, exports the policy, loads it in TensorFlow alone and compares its
actions. Cells that cannot work are refused in one line when the agent is made.
"""

import contextlib
import dataclasses
import functools
import itertools
import threading

import numpy as np
import tensorflow as tf

from tests import streams
from tests.testing import replay
from tests.testing.structured import TASKS, make_environment
from tflearn.action_mask import mask_of
from tflearn.actors.actor import Actor
from tflearn.actors.evaluator import Evaluator
from tflearn.agents import (
    appo,
    awac,
    bc,
    ddpg,
    discrete_sac,
    dqn,
    droq,
    impala,
    iql,
    linear_bandit,
    ppo,
    r2d2,
    reinforce,
    sac,
    td3,
    tqc,
    v_mpo,
)
from tflearn.agents.actor_value import NetworkOptions
from tflearn.experience import BatchItems, Experience, Prioritized, Queue, Uniform
from tflearn.networks import sets
from tflearn.optimization import ppo_loss
from tflearn.optimization.ensemble import Truncated
from tflearn.policies import exporter, loader, plain_nests
from tflearn.replay.storage import Storage
from tflearn.replay.writers import ReplayWriter
from tflearn.sampling.local import LocalReplay
from tflearn.sampling.mirror import ReplayMirror
from tflearn.sampling.queue_source import QueueSource
from tflearn.sampling.sampler import PrioritizedSampler, ReplaySampler
from tflearn.train_step import create_train_step
from tflearn.waiting import Stopped


@dataclasses.dataclass(frozen=True)
class Kind:
    """An agent of few weights: its module, arguments, and the tasks and paths that it refuses."""

    module: object
    arguments: dict
    refused_tasks: tuple = ()
    refused_paths: tuple = ()


FEW = {'network': NetworkOptions(fc_layer_params=(8,))}
SEQUENCES = {'sequence_length': 5, 'stride': 4, 'store_policy_state': False}
SMALL = {'actor_fc_layer_params': (8,), 'critic_fc_layer_params': (8,)}
NO_FLOATS = ('multi-discrete', 'masked discrete', 'masked multi-discrete', 'nested action')  # tasks
ONE_ACTION = ('multi-discrete', 'masked multi-discrete', 'nested action')  # tasks that need more
CONTINUOUS = ('sac', 'td3', 'ddpg', 'tqc', 'droq')  # agents
FOR_RECORDED = ('bc', 'iql', 'awac')  # agents that are made for recorded data, but train on any
UNIFORM = ('synchronous', 'mirror', 'server')
AGENTS = {
    'dqn': Kind(dqn, {'fc_layer_params': (8,)}, ONE_ACTION, ('queue',)),
    'r2d2': Kind(
        r2d2,
        {'fc_layer_params': (8,), 'lstm_size': (4,), 'loss': r2d2.LossOptions(burn_in_steps=1)},
        ONE_ACTION,
        ('queue',),
    ),
    'sac': Kind(
        sac,
        SMALL,
        NO_FLOATS,
        ('queue', 'prioritized'),
    ),
    'td3': Kind(td3, SMALL, NO_FLOATS, ('queue', 'prioritized')),
    'ddpg': Kind(ddpg, SMALL, NO_FLOATS, ('queue', 'prioritized')),
    'tqc': Kind(tqc, {**SMALL, 'truncated': Truncated(3, 1)}, NO_FLOATS, ('queue', 'prioritized')),
    'droq': Kind(droq, SMALL, NO_FLOATS, ('queue', 'prioritized')),
    'ppo': Kind(ppo, FEW, (), (*UNIFORM, 'prioritized')),
    'a2c': Kind(ppo, {**FEW, 'loss': ppo_loss.LossOptions(clip_epsilon=None)}, (), (*UNIFORM, 'prioritized')),
    'impala': Kind(impala, {'network': NetworkOptions(fc_layer_params=(8,), lstm_size=(4,))}, (), ('prioritized',)),
    'appo': Kind(appo, FEW, (), ('prioritized',)),
    'v_mpo': Kind(v_mpo, FEW, (), (*UNIFORM, 'prioritized')),
    'reinforce': Kind(
        reinforce,
        {'actor_fc_layer_params': (8,), 'value_fc_layer_params': (8,), 'lstm_size': (4,)},
        (),
        (*UNIFORM, 'prioritized'),
    ),
    'bc': Kind(bc, FEW, (), ('queue', 'prioritized')),
    'iql': Kind(iql, {**FEW, 'critic_fc_layer_params': (8,)}, ONE_ACTION, ('queue', 'prioritized')),
    'discrete_sac': Kind(discrete_sac, SMALL, ONE_ACTION, ('queue', 'prioritized')),
    'linear_bandit': Kind(linear_bandit, {}, ONE_ACTION, ('prioritized',)),
    'awac': Kind(awac, SMALL, ONE_ACTION, ('queue', 'prioritized')),
}
STORED = {'max_size': 64, 'min_size': 1}
PATHS = {
    'synchronous': (Uniform(**STORED), None),
    'mirror': (Uniform(**STORED, sampling='learner'), ReplayMirror),
    'server': (Uniform(**STORED, sampling='server'), ReplaySampler),
    'prioritized': (Prioritized(**STORED), PrioritizedSampler),
    'queue': (Queue(max_size=8), QueueSource),
}
CELLS = list(itertools.product(AGENTS, TASKS, PATHS))


def possible(agent, task, path):
    kind = AGENTS[agent]
    return task not in kind.refused_tasks and path not in kind.refused_paths


SET = {'nodes': 'graph.nodes', 'mask': 'graph.present', 'units': 8, 'num_heads': 2, 'num_blocks': 1}


def with_network(kind, make_network):
    """Returns the arguments of an agent with a network of one's own."""
    if 'network' in kind.arguments:
        return {'network': NetworkOptions(make_network=make_network)}
    return {'make_network': make_network}


def make_agent(agent, task, path, specs):
    kind, (kept, _) = AGENTS[agent], PATHS[path]
    slicing = kind.module.EXPERIENCE.slicing
    if agent not in ('dqn', *CONTINUOUS, *FOR_RECORDED):
        slicing = dataclasses.replace(slicing, **SEQUENCES)
    experience = Experience(slicing, kept, BatchItems(2))
    more = {'action_mask': 'mask'} if task.startswith('masked') and agent not in CONTINUOUS else {}
    if task == 'set of nodes' and agent != 'linear_bandit':  # which has no network
        more = with_network(kind, functools.partial(sets.make_network, **SET))
    made = kind.module.make_agent(specs, create_train_step(), experience, **{**kind.arguments, **more})
    made.initialize()
    return made, Storage(experience, made.collect_data_spec)


def collected(agent, storage, path, environments, serve):
    """Returns a batch that an actor collected: a Trajectory [B, T, ...]."""
    policy, experience = agent.collect_policy, storage.experience
    if path == 'synchronous':
        local = LocalReplay(storage, 2, experience.per_replica_batch_size)
        Actor(environments, policy, [lambda row: local(row, 0)]).run(24)
        return tf.nest.map_structure(lambda leaf: leaf[0], replay.draw(local)[0])
    served = serve(experience, data_spec=storage.data_spec)

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
    source = PATHS[path][1](address, served.storage, experience.per_replica_batch_size, 60.0)
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
    live = plain_nests.to_plain(
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
    named = dict(plain_nests.flat(plain_nests.to_plain(time_step.observation), 'observation'))
    state = plain.signatures['get_initial_state'](tf.constant(2)) if agent.policy.policy_state_spec else {}
    served = plain.signatures['serving_default'](**{k: tf.constant(v) for k, v in named.items()}, **state)
    for name, action in plain_nests.flat(live, 'action'):
        assert_close(served[name], action)


def run(agent, task, path, folder, serve, exports=True):
    """Collects, trains, and exports if `exports`; raises what differs.

    Args:
      agent: a key of AGENTS.
      task: a key of TASKS.
      path: a key of PATHS.
      folder: where the policy is exported.
      serve: starts a replay server; see `replay.serving`.
      exports: whether to export.
    """
    with contextlib.closing(make_environment(task, continuous=agent in CONTINUOUS)) as environments:
        made, storage = make_agent(agent, task, path, environments.specs)
        batch = collected(made, storage, path, environments, serve)
        tf.nest.assert_same_structure(batch, made.collect_data_spec)
        info = made.train(batch)
        assert np.isfinite(info.loss)
        assert all(np.isfinite(variable).all() for variable in made.policy.variables())
        if exports:
            check_export(made, environments, folder)
        assert environments.num_rebuilt == 0, 'one was given an illegal action'


def refusal(agent, task, path):
    """Makes the agent of a cell that cannot work; returns the error's message."""
    with contextlib.closing(make_environment(task, continuous=agent in CONTINUOUS)) as environments:
        try:
            make_agent(agent, task, path, environments.specs)
        except ValueError as error:
            return str(error)
    raise AssertionError(f'{agent} took {task} over {path}')
