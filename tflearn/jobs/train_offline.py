"""The train job without a replay server or an environment: it trains on episodes in files."""

import dataclasses
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging
from tf_agents.trajectories import time_step as ts
from tf_agents.typing import types

from tflearn import waiting
from tflearn.data import columns
from tflearn.data.reader import Dataset, EpisodeReader, find_directories
from tflearn.distribute import strategies
from tflearn.errors import UserValueError
from tflearn.experience import Experience
from tflearn.jobs import initial_agent, run_outputs
from tflearn.jobs.policy_exports import ExportOptions
from tflearn.jobs.synchronous_session import SynchronousSession, check_strategy, set_seed
from tflearn.jobs.train_settings import Device, Hooks, Initial, Intervals, Settings
from tflearn.learner import agent_data
from tflearn.learner.learner import LearnerOptions
from tflearn.learner.stop_conditions import StopConditions
from tflearn.replay.storage import Storage
from tflearn.run_dir import RunDir
from tflearn.sampling import local
from tflearn.types import AgentFactory, EnvironmentSpecs
from tflearn.waiting import LOG_EVERY_SECS

_NUM_SLOTS = 64  # episodes that are added side by side


def train_offline(
    *,
    run_dir: RunDir,
    stop: threading.Event,
    dataset: Dataset,
    make_agent: AgentFactory,
    experience: Experience,
    stop_conditions: StopConditions,
    intervals: Intervals = Intervals(),
    device: Device = Device(),
    initial: Initial = Initial(),
    exports: ExportOptions = ExportOptions(),
    learner_options: LearnerOptions = LearnerOptions(),
    hooks: Hooks = Hooks(),
) -> None:
    """Trains on the sequences of the episodes, drawn uniformly, until a stop condition is reached or it is stopped.

    All sequences are held in memory. The environment's specs are those that the data set was written with, so there is
    no environment in this process; the evaluate job has its own. The sizes and the ratio of `Uniform` have no meaning
    here, nor do a stop condition in environment steps and intervals of publications.

    Args:
      run_dir: the run's directory, for the files that the train job writes.
      stop: ends the job when set; a checkpoint is saved.
      dataset: the episodes.
      make_agent: makes the run's agent.
      experience: the run's experience settings, with `Uniform`.
      stop_conditions: when training ends.
      intervals: how often policies are exported.
      device: see the train job; the strategy is 'default'.
      initial: see the train job.
      exports: see the train job.
      learner_options: the train job's `options`.
      hooks: what the program does during the job.

    Raises:
      ValueError: if the data set does not have what the agent needs, or does not fit into `Uniform.max_mirror_gb`.
      RuntimeError: if more records are damaged than the data set allows.
    """
    check_strategy(device.strategy)
    local.check(experience)
    settings = Settings(intervals, learner_options, exports).over(stop_conditions.num_train_steps)
    if run_outputs.is_done(run_dir):
        return
    strategies.use_threads(device.inter_op_threads)  # before any other use of TensorFlow
    seed = set_seed(initial.seed)
    settings = dataclasses.replace(settings, texts=lambda: {'run/seed': str(seed), **hooks.describe()})
    with run_outputs.only_learner(run_dir, stop) as stopped:
        with waiting.may_exit(stop, stopped):
            specs = environment_specs(dataset)
            agent = initial_agent.make(make_agent, specs, experience, strategies.make('default'), device.precision)
            settings = dataclasses.replace(settings, preprocess=agent_data.preprocessing(agent))
            initial_agent.load(agent, initial, run_dir)
            spec = initial_agent.data_spec(agent, experience)
            reader = EpisodeReader(dataset, spec)
            replay = _make_replay(experience, spec, reader, seed)
            _fill(replay, reader, spec)
            session = SynchronousSession(run_dir, _FileSteps(reader), replay, agent, settings, stop_conditions)
            hooks.on_restored()
            session.begin()
        session.run(stop)


def environment_specs(dataset: Dataset) -> EnvironmentSpecs:
    """Returns the environment's specs, those of the first data set; the columns of all are compared later."""
    return columns.read_specs(find_directories(dataset)[0])


def _make_replay(
    experience: Experience, spec: types.NestedTensorSpec, reader: EpisodeReader, seed: int
) -> local.LoadedReplay:
    """Makes a replay with room for all sequences of the files."""
    settings: Any = experience.replay
    # Boundary rows begin no sequence, but the copies that end an episode may.
    most = reader.num_steps + reader.num_episodes * experience.slicing.sequence_length
    replay = dataclasses.replace(settings, max_size=most, min_size=1, samples_per_insert=None, sampling='learner')
    storage = Storage(dataclasses.replace(experience, replay=replay), spec)
    if storage.mirror_bytes > settings.max_mirror_gb * 1e9:
        raise UserValueError(
            f'got {reader.num_steps} steps, which take {storage.mirror_bytes / 1e9:.1f} GB of memory; need at most '
            f'Uniform.max_mirror_gb={settings.max_mirror_gb}; raise it, or read fewer episodes (Dataset.max_episodes)'
        )
    return local.LoadedReplay(storage, _NUM_SLOTS, experience.per_replica_batch_size, seed)


def _fill(replay: local.LoadedReplay, reader: EpisodeReader, spec: types.NestedTensorSpec) -> None:
    """Adds all episodes, `_NUM_SLOTS` of them side by side, as if they came from as many environments."""
    episodes, start = reader.episodes(), time.monotonic()
    logged_at = start
    # A row that is in no episode: it begins no sequence.
    nothing = [np.zeros((1, *leaf.shape), leaf.dtype.as_numpy_dtype) for leaf in tf.nest.flatten(spec)]
    nothing = tf.nest.flatten(
        tf.nest.pack_sequence_as(spec, nothing)._replace(
            step_type=np.array([ts.StepType.MID]), next_step_type=np.array([ts.StepType.MID])
        )
    )
    slots: list[list[np.ndarray]] = [[leaf[:0] for leaf in nothing] for _ in range(_NUM_SLOTS)]
    while True:
        for i, leaves in enumerate(slots):
            if not len(leaves[0]) and (episode := next(episodes, None)) is not None:
                slots[i] = tf.nest.flatten(episode)
        left = [len(leaves[0]) for leaves in slots if len(leaves[0])]
        if not left:
            break
        num_rows = min(left)
        block = [
            np.stack([leaves[k][:num_rows] if len(leaves[k]) else np.repeat(empty, num_rows, 0) for leaves in slots], 1)
            for k, empty in enumerate(nothing)
        ]
        slots = [[leaf[num_rows:] for leaf in leaves] for leaves in slots]
        for t in range(num_rows):
            replay(tf.nest.pack_sequence_as(spec, [column[t] for column in block]), 0)
        if time.monotonic() - logged_at > LOG_EVERY_SECS:
            logged_at = time.monotonic()
            logging.info('read %d of %d episodes', reader.num_read, reader.num_episodes)
    replay.finish()
    logging.info(
        'train on %d of %d episodes, in %d directories: %d sequences; read in %.1f s',
        reader.num_read,
        reader.num_episodes,
        len(reader.directories),
        replay.metrics()['replay_size'],
        time.monotonic() - start,
    )


class _FileSteps:
    """The steps of the files in place of a `Collection`: they are all in the replay before training begins.

    Attributes:
      metrics: those of a collection without environments.
      num_rebuilt: 0.
    """

    num_rebuilt = 0

    def __init__(self, reader: EpisodeReader):
        self.metrics = _FileMetrics(reader)

    def run(self, num_steps: int, write: Callable[[Any], None], env_steps_of_run: int = 0) -> None:
        """Nothing; there are no environments."""


class _FileMetrics:
    """See `EpisodeMetrics`: no environment steps are taken."""

    env_steps = episodes = dropped_episodes = 0
    env_steps_per_sec = 0.0
    mean_return = None

    def __init__(self, reader: EpisodeReader):
        self._means = {'data/episodes': float(reader.num_read), 'data/damaged_records': float(reader.num_damaged)}

    def means(self) -> dict[str, float]:
        """Returns what was read."""
        return self._means
