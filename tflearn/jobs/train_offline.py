"""The train job without a replay server or an environment: it trains on episodes in files."""

import dataclasses
import threading
from collections.abc import Callable
from typing import Any

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
from tflearn.run_dir import RunDir
from tflearn.sampling import local, recorded
from tflearn.types import AgentFactory, EnvironmentSpecs


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
    if initial.demonstrations is not None:
        raise UserValueError(
            'got Initial.demonstrations in a job that trains on recorded episodes alone; need None, '
            "such as --gin_bindings='demonstrations=None'"
        )
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
            replay = recorded.load(experience, spec, reader, seed)
            session = SynchronousSession(run_dir, _FileSteps(reader), replay, agent, settings, stop_conditions)
            hooks.on_restored()
            session.begin()
        session.run(stop)


def environment_specs(dataset: Dataset) -> EnvironmentSpecs:
    """Returns the environment's specs, those of the first data set; the columns of all are compared later."""
    return columns.read_specs(find_directories(dataset)[0])


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
