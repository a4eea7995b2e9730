"""The train job: draws from the replay server, trains, publishes weights, exports policies,
saves checkpoints.
"""

import contextlib
import dataclasses
import math
from collections.abc import Sequence

import tensorflow as tf
from absl import logging

from tflearn.coordinator import published_weights
from tflearn.coordinator.client import Coordinator, Role
from tflearn.coordinator.published_weights import Publisher
from tflearn.coordinator.state import TRAIN
from tflearn.core import agent_data, strategies, waiting
from tflearn.core.background import Watchdog
from tflearn.core.experience import Experience
from tflearn.core.types import Agent, AgentFactory, EnvironmentFactory, EnvironmentSpecs, specs_of
from tflearn.data.demonstrations import Cloning as Cloning  # for gin: train.Cloning
from tflearn.data.demonstrations import Demonstrations as Demonstrations  # for gin: train.Demonstrations
from tflearn.data.reader import Dataset as Dataset  # for gin: train.Dataset
from tflearn.files.run_dir import RunDir
from tflearn.jobs import cloning, initial_agent, initial_values, run_contract
from tflearn.jobs.policy_exports import ExportOptions
from tflearn.jobs.remote_collectors import RemoteCollectors
from tflearn.jobs.run import Run
from tflearn.jobs.session import Session, only_learner, set_seed
from tflearn.jobs.train_settings import Data, Device, Initial, Intervals, Settings
from tflearn.learner import batches, dry_run, machine, tpu_compiler, tpu_data, train_loop
from tflearn.learner.learner import LearnerOptions
from tflearn.learner.stop_conditions import StopConditions
from tflearn.learner.summaries import SummaryOptions as SummaryOptions  # for gin: train.SummaryOptions
from tflearn.policies.variables import published_variables
from tflearn.replay import backend
from tflearn.replay.backend import Shards
from tflearn.replay.reader import TableReader
from tflearn.replay.storage import Storage
from tflearn.sampling import feed_source, mix, queues, recorded, replay_servers
from tflearn.sampling.feed_source import FeedReader, wait_for_feed
from tflearn.sampling.mix import Mix
from tflearn.sampling.source import Source

_TRACE_SECS = 300.0
# Of the variables: Adam has two moments; gradients and a snapshot.
_SAVED_COPIES, _TRAINING_COPIES = 3, 5
_WRITE_SECS = 600.0  # checkpoints and exports time out after that


def train(
    *,
    run: Run,
    make_environment: EnvironmentFactory,
    make_agent: AgentFactory,
    experience: Experience,
    stop_conditions: StopConditions,
    intervals: Intervals = Intervals(),
    device: Device = Device(),
    initial: Initial = Initial(),
    data: Data = Data(),
    exports: ExportOptions = ExportOptions(),
    options: LearnerOptions = LearnerOptions(),
) -> None:
    """Trains until a stop condition is reached, a stop is requested in the run directory,
    or it is stopped.

    Args:
      run: the run; checkpoints, summaries, policies and the result are in its directory.
      make_environment: makes the run's environment; called once, for its specs.
      make_agent: makes the run's agent.
      experience: the run's experience settings.
      stop_conditions: when training ends.
      intervals: how often weights are published, policies are exported, ...
      device: where train steps run, and in which precision.
      initial: the seed, and the values that the run begins with.
      data: the replay servers, and how long to wait for their data.
      exports: which policies are exported, and which versions are kept.
      options: the learner's settings, such as checkpoints and summaries.

    Raises:
      TimeoutError: if the server is not found, or no data arrive in time.
      PeerStopped: if another worker was asked to stop, the coordinator was lost, or this machine
        will be stopped.
      ValueError: if arguments contradict each other, if the server's tables or a checkpoint are
        made for other data or networks, or if no part of the agent computes in `precision`.
    """
    data.check(experience.replay, initial)
    settings = Settings(intervals, options, exports, stop_conditions, initial=initial)
    settings.check(experience)
    if device.dry_run:
        report = dry_run_report(device, make_environment, make_agent, experience, initial, data, options)
        logging.info('%s', report.text())
        report.check()
        return
    device.check_no_dry_run('a job that trains')
    if run.is_done():
        return
    with contextlib.ExitStack() as ending:
        run, strategy, stopped = ending.enter_context(only_learner(run, device))
        watchdog = ending.enter_context(_watchdog(data.timeout_secs, run.connect_timeout_secs))
        ending.enter_context(watchdog.guard('the work between two calls'))
        with waiting.may_exit(run.stop, stopped):
            # Who learns: the agent, for the environment's specs.
            with watchdog.guard('the construction of the agent'):
                seed = set_seed(initial.seed, strategy)
                specs = specs_of(make_environment)
                agent = initial_agent.make(make_agent, specs, experience, strategy, device.precision)
            storage = initial_agent.storage(agent, experience)
            _check_machine(run.dir, agent, storage, storage.mirrored and not data.feed_address)
            # With whom: the run's coordinator and replay servers. Collectors know of a clone before
            # it is trained.
            connected = Coordinator(run.coordinator, f'train_{strategies.layout(strategy).worker}', run.stop)
            ending.callback(connected.close)
            addresses = _join(connected, run, agent, data, storage, strategy)
            _clone(agent, initial, specs, run, connected, strategy, device, seed, watchdog)
            # What it learns from, and the learner itself; its checkpoint comes after the initial
            # values.
            with watchdog.guard('the construction of the learner'):
                initial_values.load(agent, initial, run.dir)
                source = _source(data, addresses, storage, agent, strategy, seed, initial)
                settings = dataclasses.replace(settings.in_train_steps(source), seed=seed, watchdog=watchdog)
                collectors = RemoteCollectors(
                    run.dir, connected, agent, storage, source, strategy, settings.intervals, data.server_timeout_secs
                )
                session = Session(run, agent, source, collectors, strategy, settings)
                session.begin()
        session.run()


def _watchdog(*timeouts: float) -> contextlib.closing[Watchdog]:
    """Returns a watchdog that is closed with the block,
    and waits longer than any of these timeouts [s].
    """
    return contextlib.closing(Watchdog(max(_WRITE_SECS, *timeouts) + _TRACE_SECS))


def _check_machine(run_dir: RunDir, agent: Agent, storage: Storage, mirrored: bool) -> None:
    """Checks that there is room for the mirror of the replay,
    and for the agent's checkpoints with its optimizer.
    """
    variables = {
        id(part): part for part in tf.train.TrackableView(agent).descendants() if isinstance(part, tf.Variable)
    }
    num_bytes = sum(
        math.prod(each.shape) * each.dtype.size for each in variables.values() if each.dtype.is_numpy_compatible
    )
    mirror = storage.mirror_bytes if mirrored else 0
    if mirrored:
        machine.check_replay(storage)
    lower = 'Experience.replay.max_size' if mirror > num_bytes else 'the networks'
    machine.check(
        run_dir.root, 'the learner', mirror + _TRAINING_COPIES * num_bytes, 4 * _SAVED_COPIES * num_bytes, lower
    )


def _source(
    data: Data,
    addresses: Sequence[str],
    storage: Storage,
    agent: Agent,
    strategy: tf.distribute.Strategy,
    seed: int,
    initial: Initial,
) -> Source:
    """Makes the source of batches for this process:
    of a feed, of a queue, or of the replay servers' tables.

    Args:
      data: where batches come from.
      addresses: the replay servers' addresses, 'host:port'; without `Data.weights` they share one
        replay.
      storage: the replay tables' layout.
      agent: the agent to train.
      strategy: the strategy that the agent was made in.
      seed: the run's seed; each worker draws differently.
      initial: the demonstrations that are in the batches too.

    Raises:
      ValueError: if a batch is too small for its shares, several workers cannot prepare iterations
        together, or the demonstrations cannot be used.
    """
    layout, size = strategies.layout(strategy), storage.experience.per_replica_batch_size
    logging.info('%s', layout.describe(size))
    seed += layout.worker
    replicas_here, pipeline = layout.replicas // layout.workers, (layout.worker, layout.workers)
    if not storage.experience.replay.learns_from_old_items:
        servers, reader = ((data.feed_address,), FeedReader) if data.feed_address else (addresses, TableReader)
        return queues.make(servers, storage, agent, strategy, data.timeout_secs, seed, reader)
    if data.feed_address:
        return feed_source.batches(data.feed_address, storage, replicas_here, data.timeout_secs)
    if data.weights:
        shares = mix.sizes(size, data.weights)
        parts = []
        for i, (address, share) in enumerate(zip(addresses, shares, strict=True)):
            # No worker draws as another one does from another server.
            own_seed = seed + i * layout.workers
            batch_size = share * replicas_here
            table = Shards((address,))
            parts.append(replay_servers.make(table, storage, batch_size, data.timeout_secs, own_seed, pipeline))
        return Mix(parts, replicas_here)
    demonstrations, fills = initial.demonstrations, False
    if demonstrations is not None:
        demonstrations.check_mirrored(storage.mirrored)
        fills = demonstrations.fill_replay
    source = replay_servers.make(
        Shards(tuple(addresses)), storage, size * replicas_here, data.timeout_secs, seed, pipeline, fills
    )
    return recorded.with_demonstrations(source, demonstrations, storage, agent, seed, replicas_here)


def _clone(
    agent: Agent,
    initial: Initial,
    specs: EnvironmentSpecs,
    run: Run,
    coordinator: Coordinator,
    strategy: tf.distribute.Strategy,
    device: Device,
    seed: int,
    watchdog: Watchdog,
) -> None:
    """Begins the agent of a new run with a policy that is cloned from recorded episodes,
    if `initial` asks for it.

    Collectors get to know that they wait.
    """
    settings = initial.cloning
    if settings is None or initial_values.continues(run.dir):
        return
    publisher = Publisher(coordinator, published_variables(agent.collect_policy))
    status = run.status('train')

    def alive(step: int) -> None:
        watchdog.progress()
        publisher.publish(0, published_weights.PRETRAINING, 0)
        status.update('running on recorded episodes', cloning_step=step, num_cloning_steps=settings.num_train_steps)

    alive(0)
    try:
        cloning.clone(agent, settings, specs, run, strategy, device.precision, seed, alive)
    finally:
        publisher.close()


def dry_run_report(
    device: Device,
    make_environment: EnvironmentFactory,
    make_agent: AgentFactory,
    experience: Experience,
    initial: Initial = Initial(),
    data: Data = Data(),
    options: LearnerOptions = LearnerOptions(),
) -> dry_run.DryRunReport:
    """Returns a report of the train step on a cluster of a device's shape;
    asks no server, and writes no file.

    Raises:
      ValueError: if data or batches are none for that cluster, or there is no compiler for its TPU.
    """
    shape = dry_run.ClusterShape.parse(device.cluster_shape)
    if device.tpu:
        tpu_compiler.check_slice(device.tpu, shape.hosts, shape.replicas_per_host)
        tpu_compiler.python()
    specs = specs_of(make_environment)
    tpu_data.check_for_tpu({'observation': specs.observation, 'action': specs.action}, 'the environment')
    experience = experience.of_one_replica(shape.replicas)
    # The batches are those of one replica alone, whose train step reduces over all replicas of a
    # TPU.
    alone = strategies.make('cpu')
    strategy = tpu_compiler.strategy(shape.replicas) if device.tpu else alone
    agent = initial_agent.make(make_agent, specs, experience, strategy, device.precision)
    storage = initial_agent.storage(agent, experience).without_content()
    with alone.scope():
        unfed = dataclasses.replace(data, feed_address='')
        source = _source(unfed, data.addresses or ('localhost:1',), storage, agent, alone, initial.seed or 0, initial)
        wrapped = batches.wrap(source, alone, agent.train_step_counter)
    with strategy.scope():
        agent_data.initialize(agent, strategy)
        agent_data.make_slots(agent)
        preprocess = None if source.prepared else agent_data.preprocessing(agent)
        loop = dataclasses.replace(options.loop, jit_compile=False, preprocess=preprocess)
        step = train_loop.TrainLoop(agent, wrapped, strategy, loop).replica_step()
        gradients = dry_run.gradient_bytes(agent)
        report = dry_run.of_step(
            step, wrapped.element_spec, gradients, shape, reads_on_one_host=device.is_tpu, tpu=device.tpu
        )
    source.close()
    return report


def _join(
    coordinator: Coordinator,
    run: Run,
    agent: Agent,
    data: Data,
    storage: Storage,
    strategy: tf.distribute.Strategy,
) -> Sequence[str]:
    """Waits for the coordinator and the servers.
    Returns the addresses of the replay servers that this process reads.

    Raises:
      ValueError: if this job does not belong to the run, or the items of several servers cannot be
        drawn together.
      TimeoutError: if one is not found in time.
      Stopped: if `stop` is set.
    """
    status = run.status('train')
    status.update(f'waiting for the coordinator at {coordinator.access.address}')
    contract, layout = run_contract.contract(agent, storage), strategies.layout(strategy)
    role = TRAIN if layout.is_chief else 'train_worker'
    coordinator.join(Role(role, layout.worker, contract=contract, epoch=run.dir.epoch), run.connect_timeout_secs)
    if data.feed_address:
        status.update(f'waiting for the feed at {data.feed_address}')
        wait_for_feed(data.feed_address, storage, run.connect_timeout_secs, run.stop)
        return ()
    status.update('waiting for the replay servers')
    found = Shards(tuple(data.addresses) or coordinator.replay(run.connect_timeout_secs))
    backend.check_shards(storage, 1 if data.addresses else len(found.addresses))
    found.wait(storage, run.connect_timeout_secs, run.stop)
    status.update('making the learner')
    return found.addresses
