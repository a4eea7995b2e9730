"""N environments that are stepped one after the other in this process,
and what all kinds of vectorization share.

Environments that raise an error are rebuilt. Those that may hang need their own processes
(`worker_processes`). The workers import this file, so it must stay importable without TensorFlow.
"""

import contextlib
import itertools
import time
import traceback
import weakref
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from absl import logging
from gymnasium import spaces
from gymnasium.vector.utils import batch_space, create_empty_array, iterate

from tflearn.core import composition, life
from tflearn.core.errors import LoggedError, UserError, UserTypeError, UserValueError
from tflearn.core.resumable import Resumable
from tflearn.core.waiting import PeerStopped, Stopped
from tflearn.environments import gathering, infos

MAX_IN_A_ROW = 5

# The environments that a vector environment of this process steps now, by the id of what their
# wrappers wrap.
_in_use: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
# What an environment may raise. With sys.exit() it would end the run, without a word, by the status
# of a success.
FAILURES = (Exception, SystemExit)
# What is no failure of it: an error of the user, or the end of the job, which its signs of life
# may raise within a call.
PASSED_ON = (UserError, Stopped, PeerStopped)
_UNANSWERED = (
    '%s has not answered for %d s. The run waits for it, and so does a stop (Ctrl-C); kill the process if it hangs: '
    'the run continues from its newest checkpoint. vector_env.in_worker_processes ends environments that hang'
)


class MaskFromInfo(gymnasium.Wrapper):
    """Another environment whose observation has the parts 'observation' and 'action_mask',
    which is in its `info`.
    """

    def __init__(self, make_one: Callable[[], gymnasium.Env], key: str):
        """Makes the environment, of a Discrete or MultiDiscrete action;
        `key` is the mask's in its `info`.
        """
        environment = make_one()
        super().__init__(environment)
        self._key = key
        space = environment.action_space
        sizes: Any = getattr(space, 'n', None) or getattr(space, 'nvec', 0)
        size = int(np.sum(sizes))
        if not size:
            raise UserValueError(
                f'got mask_in_info={key!r} for the actions {space}; need Discrete or MultiDiscrete ones'
            )
        mask = spaces.MultiBinary(size)
        self.observation_space = spaces.Dict(observation=environment.observation_space, action_mask=mask)

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        """See `gymnasium.Env`."""
        observation, info = self.env.reset(**kwargs)
        return self._with_mask(observation, info), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """See `gymnasium.Env`."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        return self._with_mask(observation, info), reward, terminated, truncated, info

    def _with_mask(self, observation: Any, info: dict[str, Any]) -> dict[str, Any]:
        if self._key not in info:
            raise UserValueError(f'got mask_in_info={self._key!r} and an info with {sorted(info)}; need the mask there')
        return {'observation': observation, 'action_mask': np.asarray(info[self._key], np.int8)}


class ResetOptions(gymnasium.Wrapper):
    """Another environment whose `reset` gets options."""

    def __init__(self, make_one: Callable[[], gymnasium.Env], options: Mapping[str, Any]):
        """Makes the environment; `options` go to each `reset`."""
        super().__init__(make_one())
        self._options = dict(options)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """See `gymnasium.Env`."""
        return self.env.reset(seed=seed, options={**self._options, **(options or {})})


class Failures:
    """Counts the failures of N environments."""

    # The cause of the newest one, in one line; here, since a checkpoint of an older version has
    # none.
    newest = ''

    def __init__(self, num_environments: int, max_in_a_row: int = MAX_IN_A_ROW):
        """Starts at 0."""
        self.num_rebuilt = 0
        self._in_a_row = [0] * num_environments
        self._max_in_a_row = max_in_a_row
        self._any = False

    def add(self, environments: Sequence[int], cause: str) -> None:
        """Counts a failure of `environments`, which the caller then rebuilds.

        Raises:
          RuntimeError: with the cause, if they have failed too often in a row.
        """
        first, _, traceback = cause.partition('\n')
        self._any, self.newest = True, f'{first} (its traceback is in the log)' if traceback else first
        for i in environments:
            self._in_a_row[i] += 1
        in_a_row = max(self._in_a_row[i] for i in environments)
        names = f'environment {", ".join(map(str, environments))}'
        if in_a_row > self._max_in_a_row:
            logging.error('%s failed (%d in a row): %s', names, in_a_row, cause)
            raise LoggedError(
                f'got {in_a_row} failures in a row of {names}; need one that can be made, reset and stepped; fix the '
                f'cause: {self.newest}'
            )
        self.num_rebuilt += len(environments)
        logging.warning('rebuilding %s (failure %d in a row): %s', names, in_a_row, cause)

    def record_step(self, failed: Container[int] = ()) -> None:
        """Records that all environments except `failed` made a step."""
        if self._any:
            self._in_a_row = [count if i in failed else 0 for i, count in enumerate(self._in_a_row)]
            self._any = any(self._in_a_row)


def cause_of(error: BaseException) -> str:
    """Returns the error in one line, followed by its traceback."""
    trace = ''.join(traceback.format_exception(error)).strip()
    return f'{trace.splitlines()[-1]}\n{trace}'


def seed_of(seed: int | None, index: int, num_rebuilt: int) -> int | None:
    """Returns the seed of environment `index`:
    seed + index, or another one that depends on `num_rebuilt`.

    A rebuilt environment gets another seed, so that it does not fail in the same way.
    """
    if seed is None or not num_rebuilt:
        return None if seed is None else seed + index
    return int(np.random.SeedSequence((seed + index, num_rebuilt)).generate_state(1)[0])


def name_of(environment: Any) -> str:
    """Returns what errors call an environment: its registered name, or else its class,
    unless it has an `error_name`.
    """
    name = getattr(environment, 'error_name', None) or getattr(getattr(environment, 'spec', None), 'id', None)
    return str(name or type(getattr(environment, 'unwrapped', environment)).__name__)


def origin_of(index: int, name: str) -> str:
    """Returns what errors call environment `index`."""
    return f'environment {index} ({name})'


def progress_setter(environment: Any) -> Callable[[int, int], None] | None:
    """Returns the environment's method `set_progress`, which may be a wrapper's;
    None if it has none.
    """
    try:
        return environment.get_wrapper_attr('set_progress')
    except AttributeError:
        return getattr(environment, 'set_progress', None)


def _parts(environment: Any) -> list[Any]:
    """Returns what an environment's wrappers and adapters wrap, which no other one may step."""
    inner = getattr(environment, 'unwrapped', environment)
    if isinstance(inner, gymnasium.vector.SyncVectorEnv):
        return [inner, *itertools.chain.from_iterable(map(_parts, inner.envs))]
    return [inner] if getattr(inner, 'adapted', None) is None else _parts(inner.adapted)


def _release(environment: Any) -> None:
    for part in _parts(environment):
        _in_use.pop(id(part), None)


def close(environment: Any) -> None:
    """Closes an environment. What it raises is logged: there is nothing left to do with it."""
    try:
        if hasattr(environment, 'close'):  # a game need not have it
            environment.close()
    except FAILURES as error:
        logging.warning('could not close %s: %s', name_of(environment), cause_of(error))


@contextlib.contextmanager
def closing(environment: Any) -> Iterator[Any]:
    """Provides an environment, and closes it after the block."""
    try:
        yield environment
    finally:
        close(environment)


def made(make_one: Callable[[], Any]) -> Any:
    """Returns a new environment; its errors propagate, but never as the end of this program."""
    try:
        new = make_one()
    except SystemExit as error:
        raise RuntimeError(f'got sys.exit({error.code!r}) from a new environment; need one that can be made') from error
    if new is None:
        raise UserTypeError('got None from the function that makes an environment; need an environment; return it')
    return new


def _made(make_one: Callable[[], Any]) -> Any:
    """Returns a new environment; raises ValueError if it is one that is stepped already."""
    new = made(make_one)
    parts = _parts(new)
    if len({*map(id, parts)}) < len(parts) or any(_in_use.get(id(part)) is part for part in parts):
        raise UserValueError(
            f'got the same environment ({name_of(new)}) from two calls of its factory; need a new one from each, '
            'since the copies would reset and step each other; make it within the function: lambda: MyEnvironment()'
        )
    for part in parts:
        with contextlib.suppress(TypeError):  # one that cannot be referred to weakly
            _in_use[id(part)] = part
    return new


def spaces_of(environment: gymnasium.Env) -> tuple[spaces.Space, spaces.Space, tuple[int, ...]]:
    """Returns an environment's observation space, action space and shape of rewards.

    Raises:
      UserTypeError: if it is a vector environment.
    """
    if hasattr(environment, 'single_observation_space'):
        raise UserTypeError(
            f'got {name_of(environment)}, a vector environment, where one environment is needed; need a function that '
            'makes one; or vector_env.native, whose function makes a vector environment'
        )
    return environment.observation_space, environment.action_space, reward_shape(environment)


def reward_shape(environment: gymnasium.Env) -> tuple[int, ...]:
    """Returns the shape of an environment's rewards:
    (), or that of its `reward_space`, as in MO-Gymnasium.
    """
    has_several = environment.has_wrapper_attr('reward_space')
    return tuple(environment.get_wrapper_attr('reward_space').shape) if has_several else ()


class Step(NamedTuple):
    """The results of a step. Rebuilt environments have reward 0, and their episodes have not ended.

    Attributes:
      observation: observations in gymnasium's batched form; the next step may overwrite them.
      reward: [B], of any float type; [B, n] of an environment with several rewards.
      terminated: bool [B].
      truncated: bool [B].
      info: see `types.BatchedEnvironment`, but actions are elements of the action space.
      rebuilt: bool [B]; None if no environment was rebuilt.
    """

    observation: Any
    reward: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    info: dict[str, np.ndarray]
    rebuilt: np.ndarray | None = None


class RebuildingVectorEnv:
    """N environments with next-step autoreset that are rebuilt when they fail."""

    _make_one: Callable[[], Any]
    _environments: list[Any]  # those of this process

    def __init__(self, num_environments: int, name: str, of_one: tuple[Any, Any, tuple[int, ...]]):
        """Takes what errors call an environment; and its observation space,
        action space and shape of rewards.
        """
        self.num_envs, self.name = num_environments, name
        self.single_observation_space, self.single_action_space, self.reward_shape = of_one
        self.failures, self._columns = Failures(num_environments), infos.InfoColumns(num_environments)
        self._seed: int | None = None
        self._progress: tuple[int, int] | None = None

    def reset(self, seed: int | None) -> Any:
        """Resets all environments, with seed, seed + 1, ...; returns their observations."""
        raise NotImplementedError

    def step(self, action: Any) -> Step:
        """Steps all environments; those whose episode has ended are reset instead.

        Raises:
          RuntimeError: if one fails too often in a row.
          UserError: if one returns what its spaces or gymnasium's interface do not allow, or raises
            a UserError.
        """
        raise NotImplementedError

    def rebuild(self, causes: Mapping[int, str]) -> tuple[Any, np.ndarray]:
        """Rebuilds environments whose observations or rewards cannot be used.

        Args:
          causes: why, for each of them.

        Returns:
          All environments' observations, and which of them begin a new episode, bool [B].
        """
        raise NotImplementedError

    def made_of(self) -> dict[str, str]:
        """Returns what the environments of this process are made of, before the first reset;
        see `composition`.
        """
        return {'vectorization': type(self).__name__, **composition.composition(self._environments)}

    def set_progress(self, train_step: int, env_steps: int) -> None:
        """Passes the run's progress to the environments that have a method `set_progress`,
        before their next step.
        """
        self._progress = train_step, env_steps
        for environment in self._environments:
            if setter := progress_setter(environment):
                setter(train_step, env_steps)

    def close(self) -> None:
        """Closes all environments."""
        for environment in self._environments:
            _release(environment)
            close(environment)

    def _make(self, make_one: Callable[[], Any], count: int) -> None:
        self._make_one, self._environments = make_one, []
        signs = life.Signs()
        for _ in range(count):
            self._environments.append(_made(make_one))
            if time.monotonic() >= signs.due:
                signs.give()

    @contextlib.contextmanager
    def _closed_after_errors(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self.close()
            raise

    def _rows(self, environments: Iterable[int]) -> np.ndarray:
        return np.isin(np.arange(self.num_envs), list(environments))

    def _step_of(self, batch: Any, results: Sequence[Any], action: Any, failed: Collection[int]) -> Step:
        """Returns the step of all environments' (reward, terminated, truncated, info)."""
        rewards, terminated, truncated, rows = zip(*results, strict=True)
        ends = np.array(terminated, bool), np.array(truncated, bool)
        columns = self._columns.gather(rows, action)
        return Step(batch, np.array(rewards, np.float32), *ends, columns, self._rows(failed) if failed else None)

    def _remade(self, i: int, cause: str, origin: str, rows: Sequence[int] | None = None) -> Any:
        """Closes environment `i` and makes it again until it can be reset.
        Returns its first observation.

        Args:
          rows: its rows of the batch that have failed; None is row `i`.
        """
        rows, signs = [i] if rows is None else rows, life.Signs()
        while True:
            self.failures.add(rows, cause)
            if time.monotonic() >= signs.due:
                signs.give()
            with contextlib.suppress(*FAILURES):  # it is broken
                self._environments[i].close()
            try:
                # The old one stays in use, so that a factory that returns it again is refused.
                made = _made(self._make_one)
                _release(self._environments[i])
                self._environments[i] = made
                if self._progress and (setter := progress_setter(made)):
                    setter(*self._progress)
                seed = seed_of(self._seed, rows[0], self.failures.num_rebuilt)
                return gathering.reset(made, origin, seed=seed)[0]
            except PASSED_ON:
                raise
            except FAILURES as error:
                cause = cause_of(error)


class SyncVectorEnv(RebuildingVectorEnv, Resumable):
    """Steps its environments one after the other."""

    _KEPT = ('_environments', '_ended', '_seed', '_progress', '_columns', 'failures')

    def __init__(self, make_one: Callable[[], gymnasium.Env], num_environments: int):
        """Makes the environments; errors of `make_one` propagate."""
        with self._closed_after_errors():
            self._make(make_one, num_environments)
        super().__init__(num_environments, name_of(self._environments[0]), spaces_of(self._environments[0]))
        gathering.check_space(self.single_observation_space, 'observation')
        gathering.check_space(self.single_action_space, 'action')
        self._origins = [origin_of(i, self.name) for i in range(num_environments)]
        self._no_reward: Any = np.zeros(self.reward_shape, np.float32) if self.reward_shape else 0.0
        self._action_space = batch_space(self.single_action_space, num_environments)
        self._batch = create_empty_array(self.single_observation_space, num_environments)
        self._gather = gathering.gatherer(self.single_observation_space, self._batch, self._origins)
        self._ended = [False] * num_environments
        self._unanswered = life.Unanswered(_UNANSWERED)

    def reset(self, seed: int | None) -> Any:
        """See `RebuildingVectorEnv`."""
        self._seed = seed if seed is not None else self._seed
        self._ended = [False] * self.num_envs
        observations, signs = [], life.Signs()
        with self._unanswered:
            for i, environment in enumerate(self._environments):
                self._unanswered.ask(self._origins[i])
                try:
                    own_seed = seed_of(seed, i, num_rebuilt=0)
                    observations.append(gathering.reset(environment, self._origins[i], seed=own_seed)[0])
                except PASSED_ON:
                    raise
                except FAILURES as error:
                    observations.append(self._remade(i, cause_of(error), self._origins[i]))
                if time.monotonic() >= signs.due:
                    signs.give()
        self._gather(observations)
        return self._batch

    def step(self, action: Any) -> Step:
        """See `RebuildingVectorEnv`."""
        observations, results, failed = [], [], []
        signs, now = life.Signs(), time.monotonic
        with self._unanswered:
            for i, own_action in enumerate(iterate(self._action_space, action)):
                environment = self._environments[i]
                self._unanswered.ask(self._origins[i])
                try:
                    if self._ended[i]:
                        observation, info = gathering.reset(environment, self._origins[i])
                        result: Any = (self._no_reward, False, False, info)
                    else:
                        stepped = environment.step(own_action)
                        observation, *result = gathering.step_result(stepped, self.reward_shape, self._origins[i])
                except PASSED_ON:
                    raise
                except FAILURES as error:
                    observation = self._remade(i, cause_of(error), self._origins[i])
                    result = (self._no_reward, False, False, {})
                    failed.append(i)
                observations.append(observation)
                results.append(result)
                if now() >= signs.due:
                    signs.give()
        self._ended = [terminated or truncated for _, terminated, truncated, _ in results]
        self._gather(observations)
        return self._step_of(self._batch, results, action, failed)

    def rebuild(self, causes: Mapping[int, str]) -> tuple[Any, np.ndarray]:
        """See `RebuildingVectorEnv`."""
        for i, cause in causes.items():
            observation = self._remade(i, cause, self._origins[i])
            assign(self.single_observation_space, self._batch, i, observation, self._origins[i])
            self._ended[i] = False
        return self._batch, self._rows(causes)


def assign(space: spaces.Space, batch: Any, i: int, observation: Any, origin: str) -> None:
    """Writes one observation to row `i` of a batch."""
    gathering.gatherer(space, row_of(batch, i), [origin])([observation])


def row_of(batch: Any, i: int) -> Any:
    """Returns row `i` of a nest of arrays [B, ...], as a batch of one that shares their memory."""
    return mapped(lambda part: part[i : i + 1], batch)


def item_of(batch: Any, i: int) -> Any:
    """Returns element `i` of a nest of arrays [B, ...],
    as vector environments of other libraries return them.
    """
    return mapped(lambda part: part[i], batch)


def mapped(function: Callable[[Any], Any], batch: Any) -> Any:
    """Returns what a function returns for each array of a nest,
    of mappings in the order of their keys.
    """
    if isinstance(batch, Mapping):
        return {key: mapped(function, part) for key, part in sorted(batch.items())}
    return tuple(mapped(function, part) for part in batch) if isinstance(batch, tuple) else function(batch)
