"""The synchronous job: one process collects and trains alternately.
For debugging, and for repeatable results.
"""

import contextlib
import dataclasses
import math

from absl import logging

from tflearn.core import strategies, waiting
from tflearn.core.errors import UserValueError
from tflearn.core.experience import Experience
from tflearn.core.resumable import Resumable
from tflearn.core.settings import PositiveInt, checked
from tflearn.core.types import Agent, AgentFactory, BatchedEnvironment, EnvironmentFactory
from tflearn.data.reader import EpisodeReader
from tflearn.jobs import collection, initial_agent, initial_values
from tflearn.jobs.collect_settings import CollectOptions
from tflearn.jobs.collectors import OwnCollectors
from tflearn.jobs.policy_exports import ExportOptions
from tflearn.jobs.run import Run
from tflearn.jobs.session import Session, only_learner, set_seed
from tflearn.jobs.train_settings import Device, Initial, Intervals, Settings
from tflearn.learner import machine
from tflearn.learner.learner import LearnerOptions
from tflearn.learner.stop_conditions import StopConditions
from tflearn.replay.local_queue import LocalQueue
from tflearn.replay.storage import Storage
from tflearn.sampling import episode_rows, queues, recorded, ring_source
from tflearn.sampling.source import Source


@checked
def synchronous(
    *,
    run: Run,
    make_environment: EnvironmentFactory,
    make_agent: AgentFactory,
    experience: Experience,
    stop_conditions: StopConditions,
    num_environments: PositiveInt = 8,
    intervals: Intervals = Intervals(),
    device: Device = Device(),
    initial: Initial = Initial(),
    exports: ExportOptions = ExportOptions(),
    learner_options: LearnerOptions = LearnerOptions(),
    collect_options: CollectOptions = CollectOptions(),
) -> None:
    """Collects and trains alternately until a stop condition is reached, a stop is requested,
    or it is stopped.

    After each batched environment step it takes the train steps that `samples_per_insert` allows by
    then; if that is less than one, it continues to collect. So at any time it is less than one
    train step behind, and never ahead. If there is no ratio, it takes one train step after each
    batched step. From a queue it trains as soon as there are the items of a batch, or of an
    iteration: all of it, and then it collects again with these weights.

    On the same machine the same seed gives bit-equal weights, losses and returns in every process,
    if the environment is deterministic too. This excludes everything that depends on the clock
    (`max_secs`, rates). It includes a run that was stopped or killed, and is resumed: its
    checkpoints hold the episodes that were under way, the environments, which are pickled, and the
    replay. Environments that cannot be pickled, or are in processes of their own, or take more than
    `CollectOptions.max_saved_gb`, or are not those that `make_environment` makes now, begin new
    episodes; a replay of more than `max_saved_gb` is filled again.

    Other settings of the train and the collect job have no meaning here: no weights are published,
    and no job waits for another one. `collect_options.episode_limit` is refused, since there are no
    publications.

    Args:
      run: the run, in whose directory are the files that the train job writes.
      make_environment: makes the run's environment.
      make_agent: makes the run's agent.
      experience: the run's experience settings. `Queue.max_size`, `max_in_flight` and
        `versions_ahead` have no meaning here.
      stop_conditions: when training ends. At `collect_options.max_env_steps` collection ends, and
        training goes on with the data that are stored, as far as `samples_per_insert` or a queue
        allow.
      num_environments: the number of environments stepped together.
      intervals: how often policies are exported, and reward weights are read
        (`publish_interval_steps`); the others have no meaning here.
      device: see the train job; the strategy is 'default'.
      initial: see the train job.
      exports: see the train job.
      learner_options: the train job's `options`.
      collect_options: the collect job's `options`.

    Raises:
      ValueError: if an argument is out of range or not supported by this job, or the checkpoint is
        made for other networks.
    """
    if device.strategy != 'default':
        raise UserValueError(
            f"got strategy={device.strategy!r}; need 'default', since in this job the same device acts and trains; "
            'start separate jobs (tflearn-launch) for other strategies'
        )
    device.check_no_dry_run('the synchronous job')
    initial.check_no_cloning('the synchronous job')
    if experience.replay.learns_from_old_items:
        ring_source.check_local(experience)
    _check_no_episode_limit(collect_options)
    settings = Settings(intervals, learner_options, exports, stop_conditions, initial=initial)
    settings.check(experience, _last_step(experience, collect_options))
    if run.is_done():
        return
    with contextlib.ExitStack() as ending:
        run, strategy, stopped = ending.enter_context(only_learner(run, device))
        with waiting.may_exit(run.stop, stopped):
            # Who acts and learns: an agent, for environments of this process.
            seed = set_seed(initial.seed, strategy, repeatable=True)
            own_seed = seed if collect_options.seed is None else collect_options.seed
            environment = make_environment(num_environments=num_environments, seed=own_seed)
            acted_in = ending.enter_context(contextlib.ExitStack())
            acted_in.callback(environment.close)
            agent = initial_agent.make(make_agent, environment.specs, experience, strategy, device.precision)
            initial_values.load(agent, initial, run.dir)
            # What it learns from: the steps that are written to a replay of this process.
            storage = initial_agent.storage(agent, experience)
            source, write = _replay(storage, environment, agent, initial, seed)
            # A checkpoint holds what a resumed run has to go on with.
            kept: dict[str, Resumable] = {} if _is_too_large(storage) else {'source': source}
            if isinstance(write, LocalQueue):
                kept['writer'] = write
            acting = collection.Collection(environment, agent.collect_policy, collect_options, experience)
            fits = repr((num_environments, experience))
            collectors = OwnCollectors(acting, write, kept, acted_in.close, fits, collect_options.max_env_steps)
            settings = dataclasses.replace(settings.in_train_steps(source), seed=seed)
            session = Session(run, agent, source, collectors, strategy, settings)
            session.begin()
        session.run()


def _check_no_episode_limit(options: CollectOptions) -> None:
    if options.episode_limit is not None:
        raise UserValueError(
            f'got {options.episode_limit} in the synchronous job, which collects with the newest weights at each step; '
            'need CollectOptions.episode_limit=None, or separate jobs (tflearn-launch)'
        )


def _replay(
    storage: Storage, environment: BatchedEnvironment, agent: Agent, initial: Initial, seed: int
) -> tuple[Source, ring_source.LocalReplay | LocalQueue]:
    """Makes the replay: a source of batches, and what stores steps."""
    experience, num_environments = storage.experience, environment.num_environments
    if experience.replay.learns_from_old_items:
        return _make_replay(storage, num_environments, agent, initial, seed)
    queue = LocalQueue(storage, num_environments)
    strategy = strategies.make('default')
    return queues.make([''], storage, agent, strategy, math.inf, seed, lambda *_: queue), queue


def _make_replay(
    storage: Storage, num_environments: int, agent: Agent, initial: Initial, seed: int
) -> tuple[Source, ring_source.LocalReplay]:
    """Makes the source of batches, and the replay that stores steps;
    with recorded episodes if the run has some.
    """
    machine.check_replay(ring_source.local_storage(storage))
    replay = ring_source.LocalReplay(storage, num_environments, storage.experience.per_replica_batch_size, seed)
    demonstrations = initial.demonstrations
    if demonstrations is not None and demonstrations.fill_replay:
        reader = EpisodeReader(demonstrations.dataset, storage.data_spec)
        episode_rows.add_to_replay(replay, reader, storage.data_spec, num_environments)
        replay.begin_collection()
        size = replay.metrics()['replay_size']
        logging.info('filled the replay with %d sequences of %d recorded episodes', size, reader.num_read)
    return recorded.with_demonstrations(replay, demonstrations, storage, agent, seed), replay


def _is_too_large(storage: Storage) -> bool:
    """Returns whether checkpoints are to be without the replay."""
    replay = storage.experience.replay
    if storage.mirror_bytes <= 1e9 * replay.max_saved_gb:
        return False
    logging.info(
        'the replay takes up to %.3g GB, more than max_saved_gb=%g: a resumed run fills it again',
        storage.mirror_bytes / 1e9,
        replay.max_saved_gb,
    )
    return True


def _last_step(experience: Experience, options: CollectOptions) -> int | None:
    """Returns the limit of environment steps if it ends the run:
    no more is trained than the data allow.
    """
    replay = experience.replay
    allows_any = replay.learns_from_old_items and replay.samples_per_insert is None
    return None if allows_any else options.max_env_steps
