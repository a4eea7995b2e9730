"""The record job: a policy acts in an environment, and its episodes are written to files;
so are those of a replay.
"""

import contextlib
import os
import pathlib
import tempfile
import threading
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging
from tf_agents.trajectories import policy_step
from tf_agents.trajectories import time_step as ts

from tflearn.actors.actor import Actor
from tflearn.actors.evaluator import MAX_STEPS_PER_EPISODE, WARN_STEPS, check_dropped
from tflearn.coordinator.client import Coordinator
from tflearn.core.errors import UserValueError
from tflearn.core.experience import Experience
from tflearn.core.settings import Fraction, PositiveInt, checked, checked_dataclass
from tflearn.core.types import AgentFactory, BatchedEnvironment, EnvironmentFactory, EnvironmentSpecs, specs_of
from tflearn.core.waiting import LOG_EVERY_SECS
from tflearn.data import columns, conversion, metadata, statistics
from tflearn.data.reader import Dataset, EpisodeReader
from tflearn.data.shards import find_shards
from tflearn.data.writer import EpisodeRecorder, EpisodeWriter
from tflearn.environments import spaces, window
from tflearn.jobs import chosen_policy, initial_agent
from tflearn.jobs.run import Run
from tflearn.policies import external, loader
from tflearn.policies.action_probabilities import ActionProbabilities
from tflearn.replay import backend, stored_episodes
from tflearn.replay.backend import Shards
from tflearn.replay.storage import REPLAY

_DEFAULT_EPISODES = 100


@checked_dataclass(frozen=True)
class Quota:
    """How much a data set is to hold.

    Attributes:
      num_episodes: complete episodes; None, without `num_steps`, is 100.
      num_steps: instead, the environment steps of its complete episodes.
    """

    num_episodes: PositiveInt | None = None
    num_steps: PositiveInt | None = None

    def __post_init__(self) -> None:
        if self.num_episodes and self.num_steps:
            raise UserValueError(
                f'got Quota.num_episodes={self.num_episodes} and num_steps={self.num_steps}; need one of them'
            )

    @property
    def episodes(self) -> int | None:
        """The number of episodes; None if there is one of steps."""
        return None if self.num_steps else self.num_episodes or _DEFAULT_EPISODES

    def is_met(self, num_episodes: int, num_steps: int) -> bool:
        """Returns whether so much is enough."""
        return num_episodes >= self.episodes if self.episodes else num_steps >= (self.num_steps or 0)

    def __str__(self) -> str:
        return f'{self.episodes} episodes' if self.episodes else f'{self.num_steps} environment steps'


@checked
def record(
    *,
    run: Run,
    make_environment: EnvironmentFactory,
    output: str,
    quota: Quota = Quota(),
    num_environments: PositiveInt = 8,
    policy: str | external.ActFunction = 'greedy_policy',
    train_step: int | None = None,
    epsilon: Fraction = 0.0,
    seed: int = 0,
    compress: bool = False,
    log_probabilities: bool = False,
    max_steps_per_episode: PositiveInt = MAX_STEPS_PER_EPISODE,
) -> None:
    """Writes complete episodes until there are enough;
    those of an earlier call with this output count.

    Of a number of episodes each environment plays its share; those of a number of steps are the
    first ones that end. An episode that a failure of its environment interrupts is dropped and
    counted, and another one is played.

    Args:
      run: the run whose policy acts.
      make_environment: makes the environment.
      output: the data set's directory.
      quota: how much the data set is to hold.
      num_environments: the number of environments stepped together.
      policy: see `chosen_policy.find`.
      train_step: the train step of the policy's version.
      epsilon: the share of random actions, in [0, 1].
      seed: the seed of the environments and the random actions; a call that continues uses other
        ones.
      compress: compress the files with gzip.
      log_probabilities: whether to record the log-probability of each action, for off-policy
        evaluation.
      max_steps_per_episode: an episode that does not end within so many steps is an error.

    Raises:
      RuntimeError: if too many episodes in a row of one environment are interrupted.
      ValueError: if an episode does not end, there is no such policy, or it is of another
        environment, or the data set has other columns, or the policy's actions have no
        probabilities that are known.
    """
    found = chosen_policy.find(run.dir, policy, train_step)
    directory = pathlib.Path(output)
    earlier = find_shards(directory)
    if quota.is_met(sum(shard.episodes for shard in earlier), sum(shard.steps for shard in earlier)):
        logging.info('%s has %s already', directory, quota)
        return
    # Other episodes than those of the calls before.
    num_earlier = sum(shard.episodes for shard in earlier)
    missing = quota.episodes and quota.episodes - num_earlier
    num_environments = min(num_environments, missing or num_environments)
    episodes_seed = int(np.random.SeedSequence([seed, num_earlier]).generate_state(1)[0] >> 1) if num_earlier else seed
    with contextlib.closing(make_environment(num_environments=num_environments, seed=episodes_seed)) as environment:
        acting = _Acting(environment.specs, found, 1.0 if found is None else epsilon, episodes_seed, log_probabilities)
        facts = {
            'policy': policy if isinstance(policy, str) else external.function_name(policy),
            'train_step': getattr(found, 'train_step', None),
            'run': str(run.dir.root) if isinstance(found, loader.LoadedPolicy) else None,
            'epsilon': epsilon,
            'seed': seed,
            **metadata.origin(make_environment, run.hooks.describe()),
        }
        stored = columns.columns_of(columns.data_spec(environment.specs, acting.info_spec))
        writer = EpisodeWriter(directory, environment.specs, stored, metadata=facts, compress=compress)
        recorder = EpisodeRecorder(writer, environment.num_environments, missing)
        try:
            with contextlib.closing(writer):
                _run(environment, acting, recorder, quota, run.stop, max_steps_per_episode)
        finally:
            metadata.add_recording(directory, facts, writer)
    dropped = f'; dropped {recorder.num_dropped} others, because their environments failed'
    logging.info(
        '%s has %d episodes, %d environment steps%s',
        directory, writer.num_episodes, writer.num_steps, dropped if recorder.num_dropped else '',
    )  # fmt: skip


@checked
def play(
    *,
    run: Run,
    make_environment: EnvironmentFactory,
    policy: str | external.ActFunction = 'best',
    train_step: int | None = None,
    num_episodes: PositiveInt = 1,
    keys: str | None = None,
    idle: float = 0.0,
    fps: float | None = None,
    video: str | None = None,
    output: str | None = None,
    seed: int = 0,
) -> str:
    """Shows a policy in one rendered environment, or lets a person act by the keyboard;
    the episodes may be recorded.

    Args:
      run: the run whose policy acts.
      make_environment: makes the environment, by `gymnasium_env.make`.
      policy: see `chosen_policy.find`.
      train_step: the train step of the policy's version.
      num_episodes: the number of episodes; of those that are recorded, all that `output` is to
        hold.
      keys: a person acts: keys and their actions, 'left=0,right=1'; '' are the keys that the
        environment names.
      idle: the action while no key is pressed.
      fps: frames per second in the window; None: those that the environment names.
      video: a directory for videos, instead of the window.
      output: the data set's directory; None records none.
      seed: the seed of the environment.

    Returns:
      The episodes' returns as text.

    Raises:
      ValueError: if the environment cannot be shown, a person cannot act in it, or a package is
        missing.
    """
    if keys is not None and video is not None:
        raise UserValueError('got --keys with --video; need one of them, since a person has to see the window')
    stage = window.Stage(make_environment, video, fps)

    def act(observation: Any) -> Any:
        if not person:
            actions = tf.nest.flatten(stage.action_spec)
            if len(actions) != 1:
                raise UserValueError(f'got an environment of {len(actions)} actions; need one, to act by the keyboard')
            person.append(window.Keyboard(stage.keys(keys or ''), idle, actions[0], run.stop.set))
        return person[0](observation)

    person: list[window.Keyboard] = []
    with tempfile.TemporaryDirectory() as folder:
        written = output or os.path.join(folder, 'episodes')
        record(
            run=run, make_environment=stage.make, output=written, quota=Quota(num_episodes), num_environments=1,
            policy=policy if keys is None else act, train_step=train_step, seed=seed,
        )  # fmt: skip
        known = find_shards(pathlib.Path(written))
        episodes = EpisodeReader(Dataset([written])).episodes() if known else ()
        returns = ', '.join(f'{np.sum(episode["reward"]):.6g}' for episode in episodes)
    return f'returns: {returns or "none, since no episode ended"}'


def extract(
    *,
    run: Run,
    make_environment: EnvironmentFactory,
    make_agent: AgentFactory,
    experience: Experience,
    output: str,
    running: bool = False,
    compress: bool = False,
) -> None:
    """Writes the complete episodes of a run's replay;
    counts what belongs to episodes that are not complete there.

    Args:
      run: the run, with the checkpoints of its replay; nothing is written if it is stopped.
      make_environment: makes the run's environment; called once, for its specs.
      make_agent: makes the run's agent; called once, for the spec of its data.
      experience: the run's experience settings.
      output: the data set's directory, which is new.
      running: reads the running replay servers; else the newest checkpoint of each.
      compress: compress the files with gzip.

    Raises:
      ValueError: if there is no checkpoint, its tables are of other settings, or a running server
        cannot be read without taking items from the learner.
      TimeoutError: if the server does not answer.
    """
    directory = pathlib.Path(output)
    if os.path.lexists(directory):  # pathlib raises an error for a name that is too long
        raise UserValueError(f'got the output {directory}, which exists; need a new directory')
    specs = specs_of(make_environment)
    _, storage = initial_agent.make_for_data(make_agent, specs, experience)
    if not running:
        chunks = [each for path in run.dir.saved_shards() for each in stored_episodes.read_chunks(path, storage)]
    elif storage.mirrored:
        with contextlib.closing(Coordinator(run.coordinator, 'extract', run.stop)) as connected:
            addresses, chunks = Shards(connected.replay(run.connect_timeout_secs)), []
        addresses.wait(storage, run.connect_timeout_secs, run.stop)
        for each in addresses.addresses:
            chunks += backend.connect(each).scan(storage, REPLAY, run.connect_timeout_secs, run.stop)
    else:
        raise UserValueError(
            'got a replay server, from which the learner draws; need uniform replay that the learner '
            'mirrors; read a checkpoint instead'
        )
    episodes, incomplete_rows = stored_episodes.join(chunks, storage)
    left_out = f'{incomplete_rows} steps of episodes without a beginning or an end'
    if not episodes:
        raise UserValueError(f'got no complete episode in the replay, but {left_out}; need at least one')
    facts = {
        'replay': run.coordinator.address if running else str(run.dir.replay_checkpoints),
        'run': str(run.dir.root),
        'incomplete_rows': incomplete_rows,
        **metadata.origin(make_environment, run.hooks.describe()),
    }
    stored = columns.columns_of(storage.data_spec)
    writer = EpisodeWriter(directory, specs, stored, metadata=facts, compress=compress)
    with contextlib.closing(writer):
        for episode in episodes:
            writer.write(episode)
    logging.info(
        '%s has %d episodes, %d environment steps; left out: %s',
        directory, writer.num_episodes, writer.num_steps, left_out,
    )  # fmt: skip


def describe(paths: Sequence[str], picture: pathlib.Path | None = None, **filters: Any) -> str:
    """Returns the statistics of data sets as text.

    Args:
      paths: see `Dataset`.
      picture: a PNG file for histograms of returns and lengths; None draws none.
      **filters: see `Dataset`.

    Raises:
      ValueError: if there is no such data set.
    """
    found = statistics.Statistics(Dataset(paths, **filters))
    if picture is None:
        return found.text()
    found.draw(picture)
    return f'{found.text()}\nwrote {picture}'


def copy(paths: Sequence[str], output: pathlib.Path, compress: bool = False, **filters: Any) -> str:
    """Copies episodes to a new data set, see `conversion.copy`;
    returns a line that says what was copied.
    """
    num_episodes, num_steps = conversion.copy(Dataset(paths, **filters), output, compress)
    return f'{num_episodes} episodes, {num_steps} environment steps in {output}'


def convert(paths: Sequence[str], output: pathlib.Path, target: str, compress: bool = False, **filters: Any) -> str:
    """Writes a data set in another format, see `conversion.convert`;
    returns a line that says what was written.
    """
    num_episodes = conversion.convert(Dataset(paths, **filters), output, target, spaces, compress)
    return f'{num_episodes} episodes in {output}, format {target}'


def _run(
    environment: BatchedEnvironment,
    acting: '_Acting',
    recorder: EpisodeRecorder,
    quota: Quota,
    stop: threading.Event,
    max_steps: int,
) -> None:
    actor, logged_at, warned = Actor(environment, acting, [recorder]), time.monotonic(), False
    while not quota.is_met(recorder.num_episodes, recorder.num_steps) and not stop.is_set():
        actor.run(1)
        check_dropped(recorder.dropped_in_a_row, getattr(environment, 'newest_failure', ''))
        longest = recorder.longest
        if longest > max_steps:
            raise UserValueError(
                f'got an episode of more than {max_steps} steps; need episodes that end, since only complete ones are '
                "written; set the environment's max_episode_steps, or record.max_steps_per_episode"
            )
        if longest >= WARN_STEPS and not warned:
            warned = True
            logging.warning(
                'an episode has not ended after %d steps; only complete ones are written; after '
                'record.max_steps_per_episode=%d the recording ends', longest, max_steps,
            )  # fmt: skip
        if time.monotonic() - logged_at > LOG_EVERY_SECS:
            logged_at = time.monotonic()
            logging.info('%d episodes, %d steps of %s', recorder.num_episodes, recorder.num_steps, quota)


class _Acting:
    """A loaded policy, a function of observations, or random actions (None), as an `ActingPolicy`.

    It records nothing but, if wanted, the log-probabilities of its actions.
    """

    def __init__(
        self, specs: EnvironmentSpecs, policy: Any, epsilon: float, seed: int, log_probabilities: bool = False
    ):
        if log_probabilities and not isinstance(policy, loader.LoadedPolicy | None):
            raise UserValueError(
                'got log_probabilities for a policy that is not exported by a run, whose probabilities are not known; '
                f"need the name of an exported one, or policy='{chosen_policy.RANDOM}'"
            )
        self._policy, action_mask = chosen_policy.acting(policy, specs, epsilon, seed)
        self.info_spec: Any = columns.LOG_PROBABILITY if log_probabilities else ()
        self._probabilities = ActionProbabilities(policy, specs, epsilon, action_mask) if log_probabilities else None

    def initial_state(self, batch_size: int) -> Any:
        return self._policy.initial_state(batch_size)

    def step(self, time_step: ts.TimeStep, policy_state: Any) -> policy_step.PolicyStep:
        action, state = self._policy.action(time_step, policy_state)
        info: Any = ()
        if self._probabilities is not None:
            found, _ = self._probabilities.log_probability(time_step, policy_state, action)
            # The action of a boundary row has no effect, and may be one that is not legal anywhere
            # else.
            found = np.where(time_step.step_type == ts.StepType.LAST, 0.0, found)
            info = policy_step.PolicyInfo(log_probability=found.astype(np.float32))
        return policy_step.PolicyStep(action, state, info)

    def check(self, time_step: ts.TimeStep) -> None:
        """Nothing: the policy's specs were compared with the environment's."""
