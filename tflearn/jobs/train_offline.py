"""The train job without a replay server or an environment: it trains on episodes in files."""

import dataclasses
import threading
from collections.abc import Callable, Sequence
from typing import Any

from tflearn import waiting
from tflearn.data import columns
from tflearn.data.reader import Dataset, find_directories
from tflearn.distribute import strategies
from tflearn.errors import UserValueError
from tflearn.experience import Experience
from tflearn.jobs import batch_source, initial_agent, run_outputs
from tflearn.jobs.policy_exports import ExportOptions
from tflearn.jobs.synchronous_session import SynchronousSession, check_strategy, set_seed
from tflearn.jobs.train_settings import Device, Hooks, Initial, Intervals, Reading, Settings, Validation
from tflearn.learner import agent_data
from tflearn.learner.learner import Learner, LearnerOptions, Trigger
from tflearn.learner.stop_conditions import DataStopConditions, StopConditions
from tflearn.learner.validation import Validator
from tflearn.run_dir import RunDir
from tflearn.sampling import local
from tflearn.sampling.episode_stream import FileSource
from tflearn.types import AgentFactory, EnvironmentSpecs


def train_offline(
    *,
    run_dir: RunDir,
    stop: threading.Event,
    dataset: Dataset,
    make_agent: AgentFactory,
    experience: Experience,
    stop_conditions: StopConditions,
    data_stop_conditions: DataStopConditions = DataStopConditions(),
    reading: Reading = Reading(),
    validation: Validation = Validation(),
    intervals: Intervals = Intervals(),
    device: Device = Device(),
    initial: Initial = Initial(),
    exports: ExportOptions = ExportOptions(),
    learner_options: LearnerOptions = LearnerOptions(),
    hooks: Hooks = Hooks(),
) -> None:
    """Trains on the sequences of the episodes until a stop condition is reached or it is stopped.

    The environment's specs are those that the data set was written with, so there is no environment in this process;
    the evaluate job has its own. The sizes and the ratio of `Uniform` have no meaning here, nor do a stop condition in
    environment steps and intervals of publications. The position in the data belongs to the checkpoint, so that a
    resumed run goes on with the batches that it would have had.

    Args:
      run_dir: the run's directory, for the files that the train job writes.
      stop: ends the job when set; a checkpoint is saved.
      dataset: the episodes.
      make_agent: makes the run's agent.
      experience: the run's experience settings, with `Uniform`.
      stop_conditions: when training ends.
      data_stop_conditions: when it ends besides: by epochs, or by the loss on the data for validation.
      reading: how the episodes are read.
      validation: which of them are for validation, and how often.
      intervals: how often policies are exported.
      device: see the train job; the strategy is 'default'.
      initial: see the train job.
      exports: see the train job.
      learner_options: the train job's `options`.
      hooks: what the program does during the job.

    Raises:
      ValueError: if the data set does not have what the agent needs, or settings exclude each other.
      RuntimeError: if more records are damaged than the data set allows.
    """
    check_strategy(device.strategy)
    local.check(experience)
    initial.check_no_cloning('the offline job')
    if initial.demonstrations is not None:
        raise UserValueError(
            'got Initial.demonstrations in a job that trains on recorded episodes alone; need None, '
            "such as --gin_bindings='demonstrations=None'"
        )
    if data_stop_conditions.patience is not None and not validation.share:
        raise UserValueError(
            f'got DataStopConditions.patience={data_stop_conditions.patience} without validation; need Validation.share'
        )
    settings = Settings(intervals, learner_options, exports).over(stop_conditions.num_train_steps)
    if run_outputs.is_done(run_dir):
        return
    strategies.use_threads(device.inter_op_threads)  # before any other use of TensorFlow
    seed = set_seed(initial.seed)
    settings = dataclasses.replace(settings, texts=lambda: {'run/seed': str(seed), **hooks.describe()})
    with run_outputs.only_learner(run_dir, stop) as stopped:
        with waiting.may_exit(stop, stopped):
            specs, placement = environment_specs(dataset), strategies.make('default')
            agent = initial_agent.make(make_agent, specs, experience, placement, device.precision)
            settings = dataclasses.replace(settings, preprocess=agent_data.preprocessing(agent))
            initial_agent.load(agent, initial, run_dir)
            spec = initial_agent.data_spec(agent, experience)
            max_epochs = data_stop_conditions.max_epochs
            source = batch_source.from_files(
                dataset, experience, spec, placement, seed, reading, validation.share, max_epochs
            )
            validator = None
            if validation.share:
                kept = batch_source.validation_episodes(dataset, experience, spec, validation.share)
                validator = Validator(kept.all_batches, validation.interval_steps, data_stop_conditions)
                settings = dataclasses.replace(settings, learner=_validating(settings.learner, validator))
            session = SynchronousSession(
                run_dir, _FileSteps(source, validator, max_epochs), source, agent, settings, stop_conditions
            )
            hooks.on_restored()
            session.begin()
        session.run(stop)


def _validating(options: LearnerOptions, validator: Validator) -> LearnerOptions:
    """Returns the learner's options with a trigger that validates, after the user's own."""

    def make_triggers(learner: Learner) -> Sequence[Trigger]:
        own = options.make_triggers(learner) if options.make_triggers else ()
        return (*own, validator.make_trigger(learner))

    return dataclasses.replace(options, make_triggers=make_triggers)


def environment_specs(dataset: Dataset) -> EnvironmentSpecs:
    """Returns the environment's specs, those of the first data set; the columns of all are compared later."""
    return columns.read_specs(find_directories(dataset)[0])


class _FileSteps:
    """The steps of the files in place of a `Collection`: there are no environments.

    Attributes:
      metrics: those of a collection without environments.
      num_rebuilt: 0.
      state: what belongs in the checkpoint, by name.
    """

    num_rebuilt = 0

    def __init__(self, source: FileSource, validator: Validator | None, max_epochs: int | None):
        self.metrics = _FileMetrics()
        self._source, self._validator, self._max_epochs = source, validator, max_epochs
        self.state = {**source.states(), **({'validation': validator} if validator else {})}

    def begin(self) -> None:
        """Validates if that is due since the checkpoint."""
        if self._validator:
            self._validator.validate_if_due()

    def run(self, num_steps: int, write: Callable[[Any], None], env_steps_of_run: int = 0) -> None:
        """Nothing; there are no environments."""

    def end_reason(self) -> str | None:
        """Returns the stop condition that is reached, for the log; None if none is."""
        if self._source.ended:
            return f'max_epochs {self._max_epochs} reached'
        return self._validator.end_reason() if self._validator else None


class _FileMetrics:
    """See `EpisodeMetrics`: no environment steps are taken."""

    env_steps = episodes = dropped_episodes = 0
    env_steps_per_sec = 0.0
    mean_return = None

    def means(self) -> dict[str, float]:
        """Returns nothing: the source has its own metrics."""
        return {}
