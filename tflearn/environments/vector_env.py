"""N gymnasium environments stepped together: in this process, in one process each,
or as one vector environment.
"""

import random
from collections.abc import Callable, Mapping
from typing import Any, Literal, get_args

import gymnasium
import numpy as np
import tensorflow as tf
from gymnasium.vector import AutoresetMode, VectorEnv
from tf_agents.trajectories import time_step as ts

from tflearn.core.errors import UserError, UserTypeError, UserValueError
from tflearn.core.resumable import Resumable
from tflearn.core.types import BatchedEnvironment, EnvironmentSpecs, check_batch
from tflearn.environments import gathering, infos, spaces, sync_vector_env, worker_processes


class NativeVectorEnv(sync_vector_env.RebuildingVectorEnv, Resumable):
    """A vector environment of gymnasium or another library, which steps its environments itself,
    rebuilt as one.

    Its environments may share a random number generator. One with autoreset mode SAME_STEP has
    reset an environment in the step that ended its episode: that step returns the final observation
    of its infos, and the next one returns the new episode's second observation as its first. The
    step between them, whose action was chosen before the reset, is in no data.
    """

    _KEPT = ('_vector_env', '_ended', '_seed', '_progress', '_columns', 'failures')

    def __init__(self, make_all: Callable[[], VectorEnv]):
        """Makes the vector environment; errors of `make_all` propagate.

        Raises:
          UserValueError: if it does not reset its environments itself.
        """
        self._make(make_all, 1)
        if not hasattr(self._vector_env, 'num_envs'):
            name = sync_vector_env.name_of(self._vector_env)
            self.close()
            raise UserTypeError(
                f'got {name}, one environment, where a vector environment is needed; need a function that makes a '
                'vector environment; or vector_env.in_process, whose function makes one environment'
            )
        mode = self._vector_env.metadata.get('autoreset_mode')
        mode = getattr(mode, 'value', mode)
        if mode not in (AutoresetMode.NEXT_STEP.value, AutoresetMode.SAME_STEP.value):
            self.close()
            raise UserValueError(
                f'got a vector environment with autoreset mode {mode}; need {AutoresetMode.NEXT_STEP.value} or '
                f'{AutoresetMode.SAME_STEP.value} in metadata["autoreset_mode"]; make it with '
                'autoreset_mode=AutoresetMode.NEXT_STEP, or wrap it in gymnasium.vector.SyncVectorEnv or AsyncVectorEnv'
            )
        self._resets_in_step = mode == AutoresetMode.SAME_STEP.value
        of_one = self._vector_env.single_observation_space, self._vector_env.single_action_space, ()
        super().__init__(self._vector_env.num_envs, sync_vector_env.name_of(self._vector_env), of_one)
        self._origin = f'the vector environment ({self.name})'
        self._ended = np.zeros(self.num_envs, bool)  # in the step before, where `_resets_in_step`

    def reset(self, seed: int | None) -> Any:
        """See `sync_vector_env.RebuildingVectorEnv`."""
        self._seed = seed if seed is not None else self._seed
        self._ended = np.zeros(self.num_envs, bool)
        try:
            result = self._vector_env.reset(seed=seed)
        except UserError:
            raise
        except sync_vector_env.FAILURES as error:
            return self._rebuild(sync_vector_env.cause_of(error))
        return self._batch(gathering.reset_result(result, self._origin)[0])

    def step(self, action: Any) -> sync_vector_env.Step:
        """See `sync_vector_env.RebuildingVectorEnv`."""
        try:
            result = self._vector_env.step(action)
        except UserError:
            raise
        except sync_vector_env.FAILURES as error:
            zeros = np.zeros(self.num_envs, np.float32)
            no, yes = np.zeros(self.num_envs, bool), np.ones(self.num_envs, bool)
            return sync_vector_env.Step(
                self._rebuild(sync_vector_env.cause_of(error)), zeros, no, no, self._columns.take({}, action), yes
            )
        observation, reward, terminated, truncated, info = gathering.vector_step(result, self.num_envs, self._origin)
        observation = self._batch(observation)
        if not self._resets_in_step:
            return sync_vector_env.Step(observation, reward, terminated, truncated, self._columns.take(info, action))
        ended = terminated | truncated
        observation, info = self._final(observation, info, ended & ~self._ended)
        begins, self._ended = self._ended, ended & ~self._ended
        values = (np.where(begins, 0, reward), terminated & ~begins, truncated & ~begins)
        return sync_vector_env.Step(observation, *values, self._columns.take(info, action))

    def rebuild(self, causes: Mapping[int, str]) -> tuple[Any, np.ndarray]:
        """See `sync_vector_env.RebuildingVectorEnv`."""
        return self._rebuild('; '.join(causes.values())), np.ones(self.num_envs, bool)

    @property
    def _vector_env(self) -> VectorEnv:
        return self._environments[0]

    @_vector_env.setter
    def _vector_env(self, made: VectorEnv) -> None:
        self._environments = [made]

    def _batch(self, observation: Any) -> Any:
        return gathering.batch_of(self.single_observation_space, observation, self.num_envs, self._origin)

    def _final(self, observation: Any, info: Mapping[str, Any], ended: np.ndarray) -> tuple[Any, Mapping[str, Any]]:
        """Returns the observations and infos with those that ended the episodes, where `ended`."""
        if not ended.any():
            return observation, info
        found = next((info[key] for key in ('final_obs', 'final_observation') if key in info), None)
        if found is None:
            raise UserValueError(
                f'got the end of an episode from {self._origin}, which resets in the same step, without "final_obs" in '
                f'its info (it has {sorted(map(str, info))}); need the last observation there; return it, or make it '
                'with autoreset_mode=AutoresetMode.NEXT_STEP'
            )
        observation = sync_vector_env.mapped(np.array, observation)
        for i in np.flatnonzero(ended).tolist():
            one = sync_vector_env.item_of(found, i)  # it may be an array of objects too
            sync_vector_env.assign(
                self.single_observation_space, observation, i, one, sync_vector_env.origin_of(i, self.name)
            )
        last = info.get('final_info')
        return observation, _merged(infos.numeric_info(info), infos.numeric_info(last), ended) if isinstance(
            last, Mapping
        ) else info

    def _rebuild(self, cause: str) -> Any:
        self._ended = np.zeros(self.num_envs, bool)
        return self._batch(self._remade(0, cause, self._origin, range(self.num_envs)))


def _merged(info: Mapping[str, Any], last: Mapping[str, Any], ended: np.ndarray) -> dict[str, Any]:
    """Returns the infos of a step, with those of the last step of the episodes where `ended`,
    bool [B].
    """
    merged = {key: value for key, value in info.items() if not key.startswith('final_info/')}
    for key, value in last.items():
        values, mask = np.asarray(value), infos.mask_name(key)
        if key.rpartition('/')[2].startswith('_') or values.shape[:1] != ended.shape:
            continue
        valid, before = ended & np.asarray(last.get(mask, ended)), merged.get(key)
        rows = valid.reshape(-1, *[1] * (values.ndim - 1))
        merged[mask] = valid
        if before is not None and np.shape(before) == values.shape:
            values, merged[mask] = np.where(rows, values, before), valid | np.asarray(info.get(mask, ~ended))
        merged[key] = values
    return merged


# Some environments think for a while; one that hangs is to be noticed all the same.
STEP_TIMEOUT_SECS = 120.0

# What happens to an environment that returns a number that is not finite: it is rebuilt, as one
# that raises; the job ends; or it is passed on, to transforms or layers of one's own that take it.
OnNonfinite = Literal['rebuild', 'stop', 'keep']

_FIRST, _MID = np.int32(ts.StepType.FIRST), np.int32(ts.StepType.MID)


class VectorEnvironment(Resumable):
    """`BatchedEnvironment` over `sync_vector_env.RebuildingVectorEnv`.

    Later steps do not change the arrays of a time step.
    """

    _KEPT = ('info', '_seed', '_ended', '_num_steps', '_began')

    def __init__(
        self,
        environments: sync_vector_env.RebuildingVectorEnv,
        seed: int | None,
        on_nonfinite: OnNonfinite = 'rebuild',
    ):
        """Takes over `environments`.

        Args:
          seed: the first `reset` seeds the environments with seed, seed + 1, ...; None draws the
            seeds.
          on_nonfinite: what happens to an environment whose observation or reward is not finite.

        Raises:
          ValueError: for an unsupported space; `environments` are then closed.
        """
        self.num_environments = environments.num_envs
        self.info: Mapping[str, np.ndarray] = {}
        try:
            self.specs = EnvironmentSpecs(
                observation=spaces.to_spec(environments.single_observation_space, 'observation'),
                action=spaces.to_spec(environments.single_action_space, 'action'),
                reward=tf.TensorSpec(environments.reward_shape, tf.float32, 'reward'),
            )
            if on_nonfinite not in get_args(OnNonfinite):
                raise UserValueError(
                    f'got on_nonfinite={on_nonfinite!r}; need one of {", ".join(get_args(OnNonfinite))}'
                )
        except ValueError:
            environments.close()
            raise
        self._vector_env: Any = environments
        # Drawn here: a simulator that is given no seed may always begin with the same one.
        self._seed: int | None = random.SystemRandom().randrange(2**30) if seed is None else int(seed)
        self._read = spaces.reader(environments.single_observation_space)
        self._check_categories = spaces.category_check(self.specs.observation)
        self._read_action = spaces.reader(environments.single_action_space)
        self._write = spaces.writer(environments.single_action_space, self.num_environments)
        self._checked_action = False
        self._ended: np.ndarray | None = None
        self._is_closed = False
        self._on_nonfinite = on_nonfinite
        leaves = gathering.float_leaves(environments.single_observation_space)
        self._floats = [] if on_nonfinite == 'keep' else leaves
        self._num_steps = 0
        # The number of the step that began the episode.
        self._began = np.zeros(self.num_environments, np.int64)

    @property
    def num_rebuilt(self) -> int:
        """The number of environments rebuilt so far."""
        return self._vector_env.failures.num_rebuilt

    @property
    def newest_failure(self) -> str:
        """What made an environment fail last, in one line; '' if none did."""
        return self._vector_env.failures.newest

    def reset(self) -> ts.TimeStep:
        """Starts new episodes everywhere. Returns FIRST time steps [B]."""
        observation = self._observation(self._vector_env.reset(self._seed))
        self._seed = None  # later episodes continue the environments' random numbers
        self._ended = np.zeros(self.num_environments, bool)
        self._began[:] = self._num_steps
        self.info = {}
        if causes := self._not_finite(observation):
            observation, _ = self._replaced(causes)
        return ts.TimeStep(
            step_type=np.full(self.num_environments, _FIRST),
            reward=np.zeros((self.num_environments, *self.specs.reward.shape), np.float32),
            discount=np.ones(self.num_environments, np.float32),
            observation=observation,
        )

    def step(self, action: Any) -> ts.TimeStep:
        """Applies `action` in episodes that run, and starts a new episode where one has ended.

        Args:
          action: nest of arrays [B, ...] of `specs.action`; see `BatchedEnvironment` for actions
            out of bounds.

        Returns:
          Time steps [B].

        Raises:
          ValueError: if the action does not match its spec (no environment was stepped then), or an
            environment returns what its spaces do not have, or numbers that are not finite if these
            stop the job.
          RuntimeError: before `reset` and after `close`, and if an environment fails too often in a
            row.
        """
        if self._ended is None:
            raise RuntimeError('got step() before reset() or after close(); need a reset() first')
        if not self._checked_action:
            check_batch(action, self.specs.action, self.num_environments, 'action')
            self._checked_action = True
        given = self._write(action)
        batch, reward, terminated, truncated, info, rebuilt = self._vector_env.step(given)
        self._num_steps += 1
        observation, reward = self._observation(batch), reward.astype(np.float32)
        if causes := self._not_finite(observation, reward):
            observation, replaced = self._replaced(causes)
            rebuilt = replaced if rebuilt is None else rebuilt | replaced
            reward[replaced] = 0.0
            terminated, truncated = terminated & ~replaced, truncated & ~replaced
        self._vector_env.failures.record_step(() if rebuilt is None else np.flatnonzero(rebuilt).tolist())
        first = self._ended if rebuilt is None else self._ended | rebuilt
        if np.count_nonzero(first):
            self._began[first] = self._num_steps
        self._ended = ended = terminated | truncated
        if infos.EXECUTED_ACTION in info:
            info[infos.EXECUTED_ACTION] = self._executed(info[infos.EXECUTED_ACTION], given, action)
        self.info = info
        return ts.TimeStep(
            step_type=np.where(first, _FIRST, _MID + ended),  # LAST is MID + 1
            reward=reward,
            discount=np.subtract(1, terminated, dtype=np.float32),
            observation=observation,
        )

    def made_of(self) -> dict[str, str]:
        """Returns what it is made of, before the first reset; see `composition`."""
        return {'batch': type(self).__qualname__, **self._vector_env.made_of()}

    def content(self) -> dict[str, Any]:
        """See `Resumable`; with the environments themselves."""
        if not isinstance(self._vector_env, Resumable):
            raise UserTypeError('got environments in processes of their own; need them in this one')
        return {**super().content(), 'environments': self._vector_env.content()}

    def set_content(self, content: Mapping[str, Any]) -> None:
        """See `Resumable`."""
        self.close()
        super().set_content(content)
        self._is_closed = False
        self._vector_env.set_content(content['environments'])

    def set_progress(self, train_step: int, env_steps: int) -> None:
        """Passes the run's progress to environments that have a method `set_progress`,
        for curricula.
        """
        self._vector_env.set_progress(train_step, env_steps)

    def _not_finite(self, observation: Any, reward: np.ndarray | None = None) -> dict[int, str]:
        """Returns why the environments' observations or rewards cannot be used,
        if they are not finite.
        """
        if self._on_nonfinite == 'keep':
            return {}
        arrays = [(name, read(observation)) for name, read in self._floats]
        if reward is not None:
            arrays.append(('the reward', reward))
        found: dict[int, str] = {}
        for name, array in arrays:
            if not gathering.is_finite(array):
                found = {**gathering.not_finite(array, name), **found}
        return {i: self._cause(i, what) for i, what in found.items()}

    def _cause(self, i: int, what: str) -> str:
        origin = sync_vector_env.origin_of(i, self._vector_env.name)
        return (
            f'got {what} of {origin} at step {self._num_steps - self._began[i]} of its episode; need finite numbers; '
            "correct the environment, or clip or replace them there (on_nonfinite: 'rebuild', 'stop' or 'keep')"
        )

    def _replaced(self, causes: dict[int, str]) -> tuple[Any, np.ndarray]:
        """Rebuilds environments until all observations are finite.
        Returns these, and which begin a new episode.
        """
        replaced = np.zeros(self.num_environments, bool)
        while causes:
            if self._on_nonfinite == 'stop':
                raise UserValueError(next(iter(causes.values())))
            batch, rebuilt = self._vector_env.rebuild(causes)
            replaced |= rebuilt
            self._began[rebuilt] = self._num_steps
            observation = self._observation(batch)
            causes = self._not_finite(observation)
        return observation, replaced

    def _observation(self, batch: Any) -> Any:
        observation = self._read(batch)
        if self._check_categories:
            self._check_categories(observation)
        return observation

    def close(self) -> None:
        """Closes the environments. A second call does nothing."""
        if not self._is_closed:  # an environment of anybody's need not take two
            self._is_closed, self._ended = True, None
            self._vector_env.close()

    def _executed(self, executed: np.ndarray, given: np.ndarray, action: np.ndarray) -> np.ndarray:
        """Returns the executed actions: the unclipped `action` where an environment executed the given one."""
        read, given = self._read_action(executed), self._read_action(given)
        other = (read != given).reshape(self.num_environments, -1).any(axis=1)
        return np.where(other.reshape(-1, *[1] * (read.ndim - 1)), read, action)


def in_process(
    make_one: Callable[[], gymnasium.Env],
    num_environments: int,
    seed: int | None,
    on_nonfinite: OnNonfinite = 'rebuild',
) -> VectorEnvironment:
    """Returns `num_environments` of `make_one()`, stepped one after the other in this process.

    One that raises an error is rebuilt; one that hangs blocks the others.

    Args:
      make_one: makes an environment, such as a class of yours.
      on_nonfinite: what happens to an environment whose observation or reward is not finite.
    """
    return VectorEnvironment(sync_vector_env.SyncVectorEnv(make_one, num_environments), seed, on_nonfinite)


def of_one(make: Callable[[], Any]) -> BatchedEnvironment:
    """Returns what `make` makes; a single environment becomes a batch of one."""
    made = make()
    if not isinstance(made, gymnasium.Env):
        return made
    first = [made]  # one that fails is made again
    return in_process(lambda: first.pop() if first else make(), 1, None)


def in_worker_processes(
    make_one: Callable[[], gymnasium.Env],
    num_environments: int,
    seed: int | None,
    step_timeout_secs: float = STEP_TIMEOUT_SECS,
    on_nonfinite: OnNonfinite = 'rebuild',
) -> VectorEnvironment:
    """Returns `num_environments` of `make_one()`, each in its own process.

    It is faster if a step takes longer than the communication, about half a millisecond. An
    environment that raises an error, hangs or dies is rebuilt in a new process.

    Args:
      make_one: makes an environment; it is sent to the workers with cloudpickle, which import the
        modules it needs.
      step_timeout_secs: the longest step or reset; an environment that takes longer counts as
        hanging.
      on_nonfinite: what happens to an environment whose observation or reward is not finite.

    Raises:
      RuntimeError: if a worker could not make its environment.
    """
    workers = worker_processes.WorkerVectorEnv(make_one, num_environments, step_timeout_secs)
    return VectorEnvironment(workers, seed, on_nonfinite)


def native(
    make_all: Callable[[], VectorEnv], seed: int | None, on_nonfinite: OnNonfinite = 'rebuild'
) -> VectorEnvironment:
    """Returns a vector environment of gymnasium or another library,
    which is rebuilt if it raises an error.

    Args:
      make_all: makes the vector environment; its autoreset mode is NEXT_STEP or SAME_STEP. With
        SAME_STEP the first step of each episode, whose action was chosen before the reset, is in no
        data.
      on_nonfinite: what happens if an observation or a reward is not finite.

    Raises:
      ValueError: for another autoreset mode.
    """
    return VectorEnvironment(NativeVectorEnv(make_all), seed, on_nonfinite)
