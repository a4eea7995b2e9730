"""The synchronous job: one process collects and trains alternately. For debugging, and for repeatable results."""

import contextlib
import random
import threading
from collections.abc import Callable, Collection, Mapping

import tensorflow as tf
from absl import logging

from tflearn import waiting
from tflearn.distribute import strategies
from tflearn.errors import UserValueError
from tflearn.experience import Experience
from tflearn.jobs import collection, initial_agent, run_result
from tflearn.jobs.collect_settings import CollectOptions, check_counts
from tflearn.jobs.policy_exports import ExportOptions
from tflearn.jobs.synchronous_session import SynchronousSession
from tflearn.jobs.train_settings import (
    CHECKPOINT_INTERVAL_STEPS,
    SUMMARY_INTERVAL_STEPS,
    Settings,
    with_intervals,
)
from tflearn.learner.learner import LearnerOptions
from tflearn.learner.stop_conditions import StopConditions
from tflearn.replay.storage import Storage
from tflearn.run_dir import RunDir
from tflearn.sampling import local
from tflearn.types import AgentFactory, EnvironmentFactory


def synchronous(
    *,
    run_dir: RunDir,
    stop: threading.Event,
    make_environment: EnvironmentFactory,
    make_agent: AgentFactory,
    experience: Experience,
    num_train_steps: int,
    num_environments: int = 8,
    max_env_steps: int | None = None,
    max_secs: float | None = None,
    strategy: str = 'default',
    precision: str = 'float32',
    inter_op_threads: int | None = None,
    checkpoint_interval_steps: int | None = CHECKPOINT_INTERVAL_STEPS,
    summary_interval_steps: int | None = SUMMARY_INTERVAL_STEPS,
    export_interval_steps: int = 2_000,
    exports: ExportOptions = ExportOptions(),  # noqa: B008 - it is frozen
    learner_options: LearnerOptions = LearnerOptions(),  # noqa: B008 - likewise
    collect_options: CollectOptions = CollectOptions(),  # noqa: B008 - likewise
    max_collect_steps: int | None = None,
    seed: int | None = None,
    collect_seed: int | None = None,
    initial_checkpoint: str | None = None,
    initial_prefixes: Collection[str] | Mapping[str, str] = ('agent',),
    on_restored: Callable[[], None] = lambda: None,
    describe: Callable[[], Mapping[str, str]] = dict,
) -> None:
    """Collects and trains alternately until a stop condition is reached, a stop is requested, or it is stopped.

    After each batched environment step it takes the train steps that `experience.samples_per_insert` allows by then; if
    that is less than one, it continues to collect. So at any time it is less than one train step behind, and never
    ahead. If there is no ratio, it takes one train step after each batched step.

    On the same machine the same seed gives bit-equal weights, losses and returns in every process, if the environment
    is deterministic too. This excludes everything that depends on the clock (`max_secs`, rates), and resumed runs: they
    begin new episodes and fill the replay again, since neither is in the checkpoint.

    Other settings of the train and the collect job have no meaning here: no weights are published, no job waits for
    another one, and `collect_options.max_episodes_per_version` would wait forever.

    Args:
      run_dir: the run's directory, for the files that the train job writes.
      stop: ends the job when set; a checkpoint is saved.
      make_environment: makes the run's environment.
      make_agent: makes the run's agent.
      experience: the run's experience settings; items are drawn uniformly.
      num_train_steps: the run's number of train steps.
      num_environments: the number of environments stepped together.
      max_env_steps: the number of environment steps at which the run ends; None is no limit.
      max_secs: the time, over all sessions, at which the run ends [seconds]; None is no limit. The first train steps of
        each session do not count, since their time is spent on compiling.
      strategy: 'default', the first device; the train job has others.
      precision: 'float32', or 'bfloat16' for the networks' inner layers.
      inter_op_threads: see the train job.
      checkpoint_interval_steps: see the train job.
      summary_interval_steps: see the train job.
      export_interval_steps: train steps between two exports of the policies.
      exports: see the train job.
      learner_options: the train job's `options`.
      collect_options: the collect job's `options`.
      max_collect_steps: the collect job's `max_env_steps`; the run ends at the smaller one.
      seed: the seed of all random numbers; None draws one and logs it.
      collect_seed: the environments' seed; None is `seed`.
      initial_checkpoint: see the train job.
      initial_prefixes: see the train job.
      on_restored: called when the checkpoint was restored, before anything is written to the run directory.
      describe: called before the first train step; returns markdown texts by tag that TensorBoard shows.

    Raises:
      ValueError: if an argument is out of range or not supported by this job, or the checkpoint is made for other
        networks.
    """
    check_counts('', {'num_environments': (num_environments, 1), 'max_collect_steps': (max_collect_steps, 1)})
    _check_strategy(strategy)
    local.check(experience)
    learner_options = with_intervals('synchronous', learner_options, checkpoint_interval_steps, summary_interval_steps)
    stop_conditions = StopConditions(num_train_steps, _least(max_env_steps, max_collect_steps), max_secs)
    if run_result.is_done(run_dir):
        return
    strategies.use_threads(inter_op_threads)  # before any other use of TensorFlow
    seed = _set_seed(seed)
    texts = lambda: {'run/seed': str(seed), **describe()}  # noqa: E731
    settings = Settings(1, export_interval_steps, learner_options, exports, texts=texts)
    with run_result.stopped_status(run_dir) as stopped, contextlib.ExitStack() as opened:
        with waiting.may_exit(stop, stopped):
            environment = make_environment(
                num_environments=num_environments, seed=seed if collect_seed is None else collect_seed
            )
            opened.callback(environment.close)
            agent = initial_agent.make(make_agent, environment.specs, experience, strategies.make(strategy), precision)
            initial_agent.load(agent, initial_checkpoint, initial_prefixes, run_dir)
            storage = Storage(experience, initial_agent.data_spec(agent, experience))
            replay = local.LocalReplay(storage, num_environments, experience.per_replica_batch_size, seed)
            acting = collection.Collection(
                environment, agent.collect_policy, collect_options, stores_policy_state=experience.store_policy_state
            )
            session = SynchronousSession(run_dir, acting, replay, agent, settings, stop_conditions)
            on_restored()
            session.begin()
        session.run(stop)


def _check_strategy(strategy: str) -> None:
    if strategy != 'default':
        raise UserValueError(
            f"got strategy={strategy!r}; need 'default', since in this job the same device acts and trains; start "
            'separate jobs (tflearn-launch) for other strategies'
        )


def _least(*limits: int | None) -> int | None:
    return min((limit for limit in limits if limit is not None), default=None)


def _set_seed(seed: int | None) -> int:
    """Seeds Python, numpy and TensorFlow; draws the seed if there is none."""
    if seed is None:
        seed = random.SystemRandom().randrange(2**31)
        logging.info('got no seed; drew %d: the same one gives the same run', seed)
    tf.keras.utils.set_random_seed(seed)
    if tf.config.list_physical_devices('GPU'):  # on a CPU operations are deterministic by default
        tf.config.experimental.enable_op_determinism()
    return seed
