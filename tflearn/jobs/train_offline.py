"""The train job without a replay server or an environment: it trains on episodes in files."""

import contextlib
import dataclasses
import pathlib
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tflearn.core import progress_log, strategies, waiting, workers
from tflearn.core.background import Watchdog
from tflearn.core.errors import UserValueError
from tflearn.core.experience import Experience
from tflearn.core.types import AgentFactory, EnvironmentSpecs
from tflearn.data import columns, metadata
from tflearn.data.reader import Dataset, find_directories
from tflearn.data.shards import find_shards
from tflearn.files import messages
from tflearn.files.run_dir import read_json
from tflearn.jobs import initial_agent, initial_values
from tflearn.jobs.collectors import Collectors
from tflearn.jobs.policy_exports import ExportOptions
from tflearn.jobs.run import Run
from tflearn.jobs.session import Session, only_learner, set_seed
from tflearn.jobs.train_settings import Device, Initial, Intervals, Settings
from tflearn.learner.learner import Learner, LearnerOptions, Trigger
from tflearn.learner.stop_conditions import DataStopConditions, StopConditions
from tflearn.learner.triggers import own_triggers
from tflearn.learner.validation import Validator
from tflearn.policies import versions
from tflearn.sampling import episode_files, ring_source
from tflearn.sampling.episode_files import Reading, Validation
from tflearn.sampling.mix import Mix

_TIMEOUT_SECS = 900.0  # for a train step, a batch of the validation, and what is written in the end


@progress_log.printed()
def train_offline(
    *,
    run: Run,
    dataset: Dataset,
    make_agent: AgentFactory,
    experience: Experience,
    stop_conditions: StopConditions,
    data_stop_conditions: DataStopConditions = DataStopConditions(),
    reading: Reading = Reading(),
    intervals: Intervals = Intervals(),
    device: Device = Device(),
    initial: Initial = Initial(),
    exports: ExportOptions = ExportOptions(),
    learner_options: LearnerOptions = LearnerOptions(),
) -> None:
    """Trains on the sequences of the episodes until a stop condition is reached or it is stopped.

    The environment's specs are those that the data set was written with, so there is no environment
    in this process; the evaluate job has its own. The sizes and the ratio of `Uniform` have no
    meaning here, nor do a stop condition in environment steps and intervals of publications. The
    position in the data belongs to the checkpoint, so that a resumed run goes on with the batches
    that it would have had.

    Args:
      run: the run, in whose directory are the files that the train job writes.
      dataset: the episodes.
      make_agent: makes the run's agent.
      experience: the run's experience settings, with `Uniform`.
      stop_conditions: when training ends.
      data_stop_conditions: when it ends besides: by epochs, or by the loss on the data for
        validation.
      reading: how the episodes are read, and which of them are for validation.
      intervals: how often policies are exported.
      device: see the train job. Of several workers each reads its own part of the episodes.
      initial: see the train job.
      exports: see the train job.
      learner_options: the train job's `options`.

    Raises:
      ValueError: if the data set does not have what the agent needs, or settings exclude each
        other.
      RuntimeError: if more records are damaged than the data set allows.
      PeerStopped: if another worker was stopped, has died or got an error of its own, or the
        machine is about to be taken away.
    """
    validation = reading.validation
    _check(experience, initial, validation, data_stop_conditions)
    device.check_no_dry_run('the offline job')
    settings = Settings(intervals, learner_options, exports, stop_conditions, initial=initial)
    settings.check(experience, data_stop_conditions.max_epochs, data_stop_conditions.patience)
    if run.is_done():
        return
    max_epochs = data_stop_conditions.max_epochs
    with contextlib.ExitStack() as ending:
        run, strategy, stopped = ending.enter_context(only_learner(run, device))
        agreement = workers.Agreement(strategy)
        with waiting.may_exit(run.stop, stopped):
            # Who learns: the agent, for the specs of the environment in which the episodes were
            # recorded.
            seed = set_seed(initial.seed, strategy, repeatable=True)
            settings = dataclasses.replace(settings, seed=seed)
            with agreement.together('the data set'):
                specs = environment_specs(dataset)
                files = _checksum(dataset)
            agreement.check_same(files, 'the checksum of the names of the files')
            agent = initial_agent.make(make_agent, specs, experience, strategy, device.precision)
            counts_items = getattr(agent, 'counts_items', False)
            if counts_items and (reading.order, max_epochs) != ('epochs', 1):
                raise UserValueError(
                    f'got Reading.order={reading.order!r} and DataStopConditions.max_epochs={max_epochs} for an agent '
                    "that counts a step each time it is drawn, such as a linear bandit; need order='epochs' and "
                    'max_epochs=1'
                )
            initial_values.load(agent, initial, run.dir)
            # What it learns from: each worker its part of the episodes, but those for validation.
            data_spec = initial_agent.data_spec(agent, experience)
            validator: Validator | None = None
            with agreement.together('the data set'):
                source = episode_files.from_files(
                    dataset, experience, data_spec, strategy, seed, reading, max_epochs, weighs=counts_items
                )
                if validation.share:
                    kept = episode_files.validation_episodes(dataset, experience, data_spec, validation.share)
                    validator = Validator(kept.all_batches, validation.interval_steps, data_stop_conditions)
                    settings = dataclasses.replace(settings, learner=_validating(settings.learner, validator))
            # A call of the learner ends where it saves, exports or validates.
            source.most_owed = _steps_per_call(source.most_owed, settings, validation)
            steps = _FileSteps(source, agreement, validator, max_epochs, _origin(dataset, initial))
            session = Session(run, agent, source, steps, strategy, settings)
            session.begin()
        # Whoever waits too long for the other workers ends; what it counts shows that they go on.
        ending.enter_context(_watched(strategy, lambda: (session.train_step, steps.num_validated)))
        session.run()


def _check(
    experience: Experience, initial: Initial, validation: Validation, data_stop_conditions: DataStopConditions
) -> None:
    episode_files.check(experience)
    ring_source.check_local(experience)
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


@contextlib.contextmanager
def _watched(strategy: tf.distribute.Strategy, count: Callable[[], object]) -> Iterator[None]:
    """Ends the process if a `with` block waits too long for other workers;
    `count` shows that it goes on.
    """
    if strategies.layout(strategy).workers == 1:
        yield
        return
    with contextlib.closing(Watchdog(_TIMEOUT_SECS)) as watchdog, watchdog.guard('a train step', count):
        yield


def _steps_per_call(most: int, settings: Settings, validation: Validation) -> int:
    """Returns the train steps of a call of the learner, after which it can save,
    export and validate.
    """
    intervals = [settings.learner.checkpoint_interval_steps, settings.intervals.export_interval_steps]
    return min(most, *filter(None, intervals), validation.interval_steps if validation.share else most)


def _validating(options: LearnerOptions, validator: Validator) -> LearnerOptions:
    """Returns the learner's options with a trigger that validates, after the user's own."""

    def make_triggers(learner: Learner) -> Sequence[Trigger]:
        return (*own_triggers(options.make_triggers, learner), validator.make_trigger(learner))

    return dataclasses.replace(options, make_triggers=make_triggers)


def environment_specs(dataset: Dataset) -> EnvironmentSpecs:
    """Returns the environment's specs, those of the first data set;
    the columns of all are compared later.
    """
    return columns.read_specs(find_directories(dataset)[0])


def _checksum(dataset: Dataset) -> int:
    """Returns a checksum of the files' names, in which are their numbers of episodes and steps."""
    names = [shard.path.name for directory in find_directories(dataset) for shard in find_shards(directory)]
    return zlib.crc32('\n'.join(names).encode())


def _origin(dataset: Dataset, initial: Initial) -> dict[str, Any]:
    """Returns for the metadata of policies what trained them,
    and what texts and missing values are to them.

    Logs of a policy's own decisions have its numbers of the categories: the vocabularies are those
    of the policy then.
    """
    directories = find_directories(dataset)
    before: dict[str, Any] = {}
    if initial.policy:
        before = read_json(versions.find(pathlib.Path(initial.policy)) / versions.METADATA, messages.Metadata) or {}
    known, found = before.get(versions.VOCABULARIES) or {}, metadata.vocabularies(directories)
    metadata.check_words(directories[0], found, pathlib.Path(initial.policy or ''), known)
    words = {**known, **found}
    missing = {**(before.get(versions.MISSING) or {}), **metadata.stated(directories, metadata.MISSING)}
    # A policy that begins with another one has learned from the other's data too.
    trained_on = [*metadata.lineage(directories), *(before.get(metadata.TRAINED_ON) or [])]
    trained_on = list({each['digest']: each for each in reversed(trained_on)}.values())[::-1]
    meanings = {versions.VOCABULARIES: words, versions.MISSING: missing}
    return {metadata.TRAINED_ON: trained_on, **{key: value for key, value in meanings.items() if value}}


class _FileSteps(Collectors):
    """The steps are in files. The workers' positions in their parts of them belong in the checkpoint."""

    def __init__(
        self,
        source: Mix,
        agreement: workers.Agreement,
        validator: Validator | None,
        max_epochs: int | None,
        origin: Mapping[str, Any],
    ):
        super().__init__()
        self._origin = origin
        self._source, self._validator, self._max_epochs = source, validator, max_epochs
        self._state: dict[str, Any] = {
            name: workers.StateOfWorkers(each, agreement) for name, each in source.state().items()
        }
        if validator:
            self._state['validation'] = validator

    @property
    def num_validated(self) -> int:
        """Batches that the loss was computed on for validation."""
        return self._validator.num_batches if self._validator else 0

    def state(self) -> Mapping[str, Any]:
        """See `Collectors`."""
        return {**super().state(), **self._state}

    def facts(self) -> Mapping[str, Any]:
        """See `Collectors`."""
        return {**super().facts(), **self._origin}

    def begin(self, step: int) -> None:
        """Validates if that is due since the checkpoint."""
        if self._validator:
            self._validator.validate_if_due()

    def end_reason(self, used_up: bool) -> str | None:
        """See `Collectors`."""
        if self._source.ended:
            return f'max_epochs {self._max_epochs} reached'
        return self._validator.end_reason() if self._validator else None
