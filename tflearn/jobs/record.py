"""The record job: a policy acts in an environment, and its episodes are written to files; so are those of a replay."""

import contextlib
import dataclasses
import os
import pathlib
import re
import threading
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging
from tf_agents.trajectories import policy_step
from tf_agents.trajectories import time_step as ts

from tflearn.action_mask import ActionMask
from tflearn.actors.actor import Actor
from tflearn.actors.exploration import EpsilonPolicy
from tflearn.data import columns, conversion, metadata, statistics
from tflearn.data.minari_format import Spaces
from tflearn.data.reader import Dataset
from tflearn.data.writer import EpisodeRecorder, EpisodeWriter, shards
from tflearn.environments import spaces
from tflearn.errors import UserValueError, check_at_least
from tflearn.experience import Experience
from tflearn.jobs import initial_agent
from tflearn.jobs.train_settings import Hooks
from tflearn.policies import external, loader, versions
from tflearn.policies.action_probabilities import ActionProbabilities
from tflearn.policies.exporter import ACTION_MASK
from tflearn.replay import stored_episodes, stored_rows
from tflearn.replay.shards import Shards
from tflearn.replay.storage import REPLAY, Storage
from tflearn.run_dir import RunDir, local_path, read_json
from tflearn.sampling import table_scan
from tflearn.train_step import create_train_step
from tflearn.types import AgentFactory, EnvironmentFactory, EnvironmentSpecs, EvaluationPolicy, specs_of
from tflearn.waiting import LOG_EVERY_SECS

RANDOM = 'random'
_DEFAULT_EPISODES = 100


def record(
    *,
    run_dir: RunDir,
    stop: threading.Event,
    make_environment: EnvironmentFactory,
    output: str,
    num_episodes: int | None = None,
    num_steps: int | None = None,
    num_environments: int = 8,
    policy: str | external.ActFunction = 'greedy_policy',
    train_step: int | None = None,
    epsilon: float = 0.0,
    seed: int = 0,
    compress: bool = False,
    hooks: Hooks = Hooks(),
    log_probabilities: bool = False,
) -> None:
    """Writes complete episodes until there are enough; those of an earlier call with this output count.

    Args:
      run_dir: the directory of the run whose policy acts.
      stop: ends the job when set; complete episodes are written.
      make_environment: makes the environment.
      output: the data set's directory.
      num_episodes: complete episodes in the data set; None, without `num_steps`, is 100.
      num_steps: instead, the environment steps of its complete episodes.
      num_environments: the number of environments stepped together.
      policy: the name of the run's exported policy; or the path, with a '/', of a SavedModel, see `external.load`; or a
        function of a batch of observations, or its name, 'module:function'; or 'random' for actions drawn uniformly
        within their bounds.
      train_step: the train step of the policy's version; None takes the one that a finished run ended with, else the
        newest.
      epsilon: the share of random actions, in [0, 1].
      seed: the seed of the environments and the random actions; a call that continues uses other ones.
      compress: compress the files with gzip.
      hooks: what the program does during the job; its texts describe the environment.
      log_probabilities: whether to record the log-probability of each action, for off-policy evaluation.

    Raises:
      ValueError: if there is no such policy, or it is of another environment, or the data set has other columns, or
        the policy's actions have no probabilities that are known.
    """
    check_at_least(1, num_episodes=num_episodes, num_steps=num_steps, num_environments=num_environments)
    if num_episodes and num_steps:
        raise UserValueError(f'got num_episodes={num_episodes} and num_steps={num_steps}; need one of them')
    quota = _Quota(None if num_steps else num_episodes or _DEFAULT_EPISODES, num_steps)
    found = _find(run_dir, policy, train_step)
    directory = pathlib.Path(output)
    earlier = shards(directory)
    if quota.is_met(sum(shard.episodes for shard in earlier), sum(shard.steps for shard in earlier)):
        logging.info('%s has %s already', directory, quota)
        return
    # Other episodes than those of the calls before.
    num_earlier = sum(shard.episodes for shard in earlier)
    episodes_seed = int(np.random.SeedSequence([seed, num_earlier]).generate_state(1)[0] >> 1) if num_earlier else seed
    with contextlib.closing(make_environment(num_environments=num_environments, seed=episodes_seed)) as environment:
        acting = _Acting(environment.specs, found, 1.0 if found is None else epsilon, episodes_seed, log_probabilities)
        facts = {
            'policy': policy if isinstance(policy, str) else external.function_name(policy),
            'train_step': getattr(found, 'train_step', None),
            'run': str(run_dir.root) if isinstance(found, loader.LoadedPolicy) else None,
            'epsilon': epsilon,
            'seed': seed,
            **metadata.environment(make_environment, hooks.describe()),
            **metadata.versions(),
        }
        stored = columns.columns_of(columns.data_spec(environment.specs, acting.info_spec))
        writer = EpisodeWriter(directory, environment.specs, stored, metadata=facts, compress=compress)
        recorder = EpisodeRecorder(writer, num_environments)
        try:
            with contextlib.closing(writer):
                _run(Actor(environment, acting, [recorder]), recorder, quota, stop)
        finally:
            metadata.add_recording(directory, facts, writer)
    logging.info('%s has %d episodes, %d environment steps', directory, writer.num_episodes, writer.num_steps)


def extract(
    *,
    run_dir: RunDir,
    stop: threading.Event,
    make_environment: EnvironmentFactory,
    make_agent: AgentFactory,
    experience: Experience,
    output: str,
    address: str | None = None,
    connect_timeout_secs: float = 300.0,
    compress: bool = False,
    hooks: Hooks = Hooks(),
) -> None:
    """Writes the complete episodes of a run's replay; counts what belongs to episodes that are not complete there.

    Args:
      run_dir: the directory of the run, with the checkpoints of its replay.
      stop: ends the job when set; nothing is written.
      make_environment: makes the run's environment; called once, for its specs.
      make_agent: makes the run's agent; called once, for the spec of its data.
      experience: the run's experience settings.
      output: the data set's directory, which is new.
      address: the running replay server, 'host:port', or several with commas; None reads the newest checkpoint
        instead, or that of each of several servers.
      connect_timeout_secs: how long to wait for the server.
      compress: compress the files with gzip.
      hooks: what the program does during the job; its texts describe the environment.

    Raises:
      ValueError: if there is no checkpoint, its tables are of other settings, or a running server cannot be read
        without taking items from the learner.
      TimeoutError: if the server does not answer.
    """
    directory = pathlib.Path(output)
    if os.path.lexists(directory):  # pathlib raises an error for a name that is too long
        raise UserValueError(f'got the output {directory}, which exists; need a new directory')
    specs = specs_of(make_environment)
    storage = Storage(
        experience, initial_agent.data_spec(make_agent(specs, create_train_step(), experience), experience)
    )
    if address is None:
        chunks = [each for path in run_dir.saved_shards() for each in stored_rows.read_chunks(path, storage)]
    elif storage.mirrored:
        shards, chunks = Shards.parse(address), []
        shards.wait(storage, connect_timeout_secs, stop)
        for each in shards.addresses:
            chunks += table_scan.read_chunks(each, storage, REPLAY, connect_timeout_secs, stop)
    else:
        raise UserValueError(
            f'got the replay server {address}, from which the learner draws; need uniform replay that the learner '
            'mirrors; read a checkpoint instead'
        )
    found = stored_episodes.join(chunks, storage)
    left_out = f'{found.incomplete_rows} steps of episodes without a beginning or an end'
    if not found.episodes:
        raise UserValueError(f'got no complete episode in the replay, but {left_out}; need at least one')
    facts = {
        'replay': address or str(run_dir.replay_checkpoints),
        'run': str(run_dir.root),
        'incomplete_rows': found.incomplete_rows,
        **metadata.environment(make_environment, hooks.describe()),
        **metadata.versions(),
    }
    stored = columns.columns_of(storage.data_spec)
    writer = EpisodeWriter(directory, specs, stored, metadata=facts, compress=compress)
    with contextlib.closing(writer):
        for episode in found.episodes:
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
    """Copies episodes to a new data set, see `statistics.copy`; returns a line that says what was copied."""
    num_episodes, num_steps = statistics.copy(Dataset(paths, **filters), output, compress)
    return f'{num_episodes} episodes, {num_steps} environment steps in {output}'


def convert(paths: Sequence[str], output: pathlib.Path, target: str, compress: bool = False, **filters: Any) -> str:
    """Writes a data set in another format, see `conversion.convert`; returns a line that says what was written."""
    space_conversions = Spaces(spaces.to_space, spaces.to_spec, spaces.reader)
    num_episodes = conversion.convert(Dataset(paths, **filters), output, target, space_conversions, compress)
    return f'{num_episodes} episodes in {output}, format {target}'


@dataclasses.dataclass(frozen=True)
class _Quota:
    """How much a data set shall hold: episodes, or else environment steps."""

    episodes: int | None
    steps: int | None

    def is_met(self, num_episodes: int, num_steps: int) -> bool:
        return num_episodes >= self.episodes if self.episodes else num_steps >= (self.steps or 0)

    def __str__(self) -> str:
        return f'{self.episodes} episodes' if self.episodes else f'{self.steps} environment steps'


def _run(actor: Actor, recorder: EpisodeRecorder, quota: _Quota, stop: threading.Event) -> None:
    logged_at = time.monotonic()
    while not quota.is_met(recorder.num_episodes, recorder.num_steps) and not stop.is_set():
        actor.run(1)
        if time.monotonic() - logged_at > LOG_EVERY_SECS:
            logged_at = time.monotonic()
            logging.info('%d episodes, %d steps of %s', recorder.num_episodes, recorder.num_steps, quota)


def _find(run_dir: RunDir, policy: str | external.ActFunction, train_step: int | None) -> Any:
    """Returns the policy: a loaded one, or a function; None for random actions."""
    if not isinstance(policy, str):
        return external.check_function(policy)
    if policy == RANDOM:
        return None
    if '/' in policy:
        return external.load(local_path(policy, 'policy'), train_step)
    return external.find_function(policy) if ':' in policy else load_policy(run_dir, policy, train_step)


def load_policy(run_dir: RunDir, name: str, train_step: int | None) -> loader.LoadedPolicy:
    """Returns a version of an exported policy; None as train step takes the run's result, else the newest."""
    directory = run_dir.policy(name)
    step = train_step
    if step is None:  # the policy that the run ended with, which is the best one that was evaluated
        result = re.fullmatch(rf'policies/{re.escape(name)}/(\d+)', str((read_json(run_dir.done) or {}).get('policy')))
        step = int(result[1]) if result else versions.newest_version(directory)
    if step is None:
        raise UserValueError(
            f'got no policy in {directory}; need one that the train job has exported, the path of a SavedModel, '
            f"'module:function', or policy='{RANDOM}'"
        )
    return loader.load(directory / str(step))


class _Nothing:
    """A policy whose actions are zeros, for `EpsilonPolicy` with 1."""

    def __init__(self, specs: EnvironmentSpecs):
        self._spec = specs.action

    def initial_state(self, batch_size: int) -> Any:
        del batch_size
        return ()

    def action(self, time_step: ts.TimeStep, policy_state: Any) -> tuple[Any, Any]:
        batch_size = len(time_step.step_type)
        zeros = lambda spec: np.zeros((batch_size, *spec.shape), spec.dtype.as_numpy_dtype)  # noqa: E731
        return tf.nest.map_structure(zeros, self._spec), policy_state


class _Acting:
    """A loaded policy, a function of observations, or random actions (None), as an `ActingPolicy`.

    It records nothing but, if wanted, the log-probabilities of its actions.
    """

    def __init__(
        self, specs: EnvironmentSpecs, policy: Any, epsilon: float, seed: int, log_probabilities: bool = False
    ):
        mask = None
        if isinstance(policy, loader.LoadedPolicy | external.SavedPolicy):
            policy.check(specs)
            mask = policy.metadata.get(ACTION_MASK) if isinstance(policy, loader.LoadedPolicy) else None
        elif policy is not None:
            policy = external.FunctionPolicy(policy, specs)
        if log_probabilities and not isinstance(policy, loader.LoadedPolicy | None):
            raise UserValueError(
                'got log_probabilities for a policy that is not exported by a run, whose probabilities are not known; '
                f"need the name of an exported one, or policy='{RANDOM}'"
            )
        self._policy: EvaluationPolicy = policy or _Nothing(specs)
        action_mask = None if mask is None else ActionMask(specs, mask)
        if epsilon or mask:
            self._policy = EpsilonPolicy(self._policy, epsilon, specs.action, seed, action_mask)
        self.info_spec: Any = columns.LOG_PROBABILITY if log_probabilities else ()
        self._probabilities = ActionProbabilities(policy, specs, epsilon, action_mask) if log_probabilities else None

    def initial_state(self, batch_size: int) -> Any:
        return self._policy.initial_state(batch_size)

    def step(self, time_step: ts.TimeStep, policy_state: Any) -> policy_step.PolicyStep:
        action, state = self._policy.action(time_step, policy_state)
        info: Any = ()
        if self._probabilities is not None:
            found, _ = self._probabilities.log_probability(time_step, policy_state, action)
            # The action of a boundary row has no effect, and may be one that is not legal anywhere else.
            found = np.where(time_step.step_type == ts.StepType.LAST, 0.0, found)
            info = policy_step.PolicyInfo(log_probability=found.astype(np.float32))
        return policy_step.PolicyStep(action, state, info)

    def check(self, time_step: ts.TimeStep) -> None:
        """Nothing: the policy's specs were compared with the environment's."""
