"""Checks an environment before anything is trained in it: what it returns, its episodes, its seeds,
its speed.
"""

import contextlib
import functools
import importlib
import time
from collections.abc import Callable, Iterator
from typing import Any, Literal, NamedTuple

import gymnasium
import numpy as np
import tensorflow as tf
from tf_agents.trajectories import time_step as ts

from tflearn.core.errors import UserError, UserTypeError
from tflearn.core.types import BatchedEnvironment
from tflearn.environments import gathering, gymnasium_env, registry, sync_vector_env, vector_env

State = Literal['ok', 'LOOK', 'error']
MakeOne = Callable[[], gymnasium.Env]

_NUM_ENVIRONMENTS = 2  # of the rollouts
_SEEDED_STEPS = 100
_LARGE_OBSERVATION, _LARGE_REWARD = 10.0, 100.0
_LEAST_EPISODES = 4  # before their lengths mean something
_IMAGE_SIZE = 16  # the least height and width of an image


class Finding(NamedTuple):
    """What one check says.

    Attributes:
      state: 'ok', 'LOOK' (it can be trained in, but probably not as it was meant) or 'error' (it
        cannot).
      check: what was checked.
      text: what was seen, and what to do.
    """

    state: State
    check: str
    text: str

    def __str__(self) -> str:
        return f'{self.state:6}{self.check:22}{self.text}'


def check_environment(
    environment: str | MakeOne, num_steps: int = 1_000, seed: int = 0, secs: float = 1.0
) -> list[Finding]:
    """Takes random actions in copies of an environment, and says what would trouble a run.

    Args:
      environment: a registered name ('CartPole-v1', 'module:Name-v0'), or a class or a function
        without arguments that makes a gymnasium environment.
      num_steps: steps of each of two copies.
      seed: of the environments and the actions.
      secs: how long each kind of vectorization is timed [s]; 0: none is.

    Returns:
      The findings. An error ends the checks.

    Raises:
      ValueError: if there is no such environment.
      TypeError: if `environment` is neither a name nor callable.
    """
    make_one = _maker(environment)
    found: list[Finding] = []
    try:
        found += _rollout_findings(make_one, num_steps, seed)
        found += _seed_findings(make_one, seed)
        if secs:
            found += _speed_findings(environment, seed, secs)
    except _RaisedError as error:
        found.append(Finding('error', 'exceptions', str(error)))
    except UserError as error:
        found.append(Finding('error', 'what it returns', ' '.join(str(error).split())))
    return found


def imported(name: str) -> str | MakeOne:
    """Returns 'module:Class' or 'module:function' as the object,
    and the name of a registered environment as it is.

    Raises:
      ValueError: if there is no such module.
    """
    module_name, colon, attribute = name.partition(':')
    if not colon or not attribute.isidentifier():
        return name
    with registry.needed(name):
        module = importlib.import_module(module_name)
    found = getattr(module, attribute, None)
    return found if callable(found) else name


class _RaisedError(UserError):
    """The environment raised an exception, after which a run would rebuild it and go on."""


class _Stopping(gymnasium.Wrapper):
    """Turns the environment's own exceptions into errors for which it is not rebuilt."""

    def __init__(self, make_one: MakeOne):
        with _stopping('its factory', 'copies that can be made beside each other; of a robot, check a simulation'):
            env = make_one()
        if not isinstance(env, gymnasium.Env):
            raise UserTypeError(f'got an environment of type {type(env).__name__}; need a gymnasium.Env')
        super().__init__(env)

    def reset(self, **kwargs: Any) -> Any:
        with _stopping('reset() with random actions'):
            return gathering.reset(self.env, sync_vector_env.name_of(self.env), **kwargs)

    def step(self, action: Any) -> Any:
        with _stopping('step() with random actions'):
            return self.env.step(action)


@contextlib.contextmanager
def _stopping(where: str, need: str = 'none') -> Iterator[None]:
    try:
        yield
    except UserError:
        raise
    except sync_vector_env.FAILURES as error:
        raise _RaisedError(f'got {type(error).__name__}: {error} from {where}; need {need}') from error


class _Rollout:
    """Time steps of random actions in two copies:
    step types, rewards [steps, 2], and the observations' leaves.
    """

    def __init__(self, make_one: MakeOne, num_steps: int, seed: int):
        make_stopping = functools.partial(_Stopping, make_one)
        with contextlib.closing(
            vector_env.in_process(make_stopping, _NUM_ENVIRONMENTS, seed, on_nonfinite='stop')
        ) as environment:
            self.specs, rng = environment.specs, np.random.default_rng(seed)
            steps = [environment.reset()]
            for _ in range(num_steps):
                steps.append(environment.step(_random_action(environment, steps[-1], rng)))
            self.info = {name: value for name, value in environment.info.items() if value.dtype.kind in 'biuf'}
        self.step_types = np.stack([step.step_type for step in steps])
        self.rewards = np.stack([step.reward for step in steps])
        self.discounts = np.stack([step.discount for step in steps])
        self.observations = [
            np.stack(leaves) for leaves in zip(*(tf.nest.flatten(s.observation) for s in steps), strict=True)
        ]

    def episode_lengths(self) -> list[int]:
        """The steps of the episodes that ended."""
        lengths = []
        for column in self.step_types.T:
            first = np.flatnonzero(column == ts.StepType.FIRST)
            lengths += [int(end - first[first <= end][-1]) for end in np.flatnonzero(column == ts.StepType.LAST)]
        return lengths


def _maker(environment: str | MakeOne) -> MakeOne:
    if isinstance(environment, str):
        spec = registry.find(environment)
        return functools.partial(gymnasium.make, spec, disable_env_checker=True)
    if not callable(environment):
        raise UserTypeError(
            f'got {environment!r}; need the name of an environment, or a class or function that makes one'
        )
    return environment


def _random_action(environment: BatchedEnvironment, step: ts.TimeStep, rng: np.random.Generator) -> Any:
    """Returns actions [B, ...] within the bounds; an unbounded side counts as 1.
    A mask of legal actions is kept.
    """
    mask = step.observation.get('action_mask') if isinstance(step.observation, dict) else None

    def draw(spec: Any) -> np.ndarray:
        shape = (environment.num_environments, *spec.shape)
        if not spec.dtype.is_integer:
            low = np.where(np.isfinite(spec.minimum), spec.minimum, np.minimum(spec.maximum - 2.0, -1.0))
            low = np.where(np.isfinite(low), low, -1.0)
            high = np.where(np.isfinite(spec.maximum), spec.maximum, np.maximum(low + 2.0, 1.0))
            return rng.uniform(low, high, shape).astype(spec.dtype.as_numpy_dtype)
        if mask is not None and not spec.shape and mask.shape[1:] == (spec.maximum - spec.minimum + 1,):
            return (np.argmax(rng.random(mask.shape) * mask, axis=1) + spec.minimum).astype(spec.dtype.as_numpy_dtype)
        return rng.integers(spec.minimum, spec.maximum, shape, spec.dtype.as_numpy_dtype, endpoint=True)

    return tf.nest.map_structure(draw, environment.specs.action)


def _rollout_findings(make_one: MakeOne, num_steps: int, seed: int) -> Iterator[Finding]:
    rollout = _Rollout(make_one, num_steps, seed)
    for spec, values in zip(tf.nest.flatten(rollout.specs.observation), rollout.observations, strict=True):
        yield _observation(spec, values)
    for spec in tf.nest.flatten(rollout.specs.action):
        yield _action(spec)
    yield _rewards(rollout)
    yield _episodes(rollout, num_steps)
    if rollout.info:
        yield Finding('ok', 'metrics', f'numbers of info become metrics: {", ".join(sorted(rollout.info))}')


def _described(spec: Any) -> str:
    bounds = f', {_bound(spec.minimum)} to {_bound(spec.maximum)}' if np.all(np.isfinite(spec.minimum)) else ''
    return f'{spec.dtype.name} {list(spec.shape)}{bounds}'


def _bound(bound: Any) -> str:
    """Returns one number where all are the same."""
    values = np.unique(bound)
    shown = values.reshape(()) if len(values) == 1 else np.asarray(bound)
    text = np.array2string(shown, threshold=8, edgeitems=2, separator=', ', formatter={'all': '{:g}'.format})
    return ' '.join(text.split())


def _observation(spec: Any, values: np.ndarray) -> Finding:
    """Checks one part of the observation; `values` are [steps, 2, ...]."""
    low, high, text = values.min(), values.max(), _described(spec)
    name, seen = spec.name, f'seen {values.min():.4g} to {values.max():.4g}'
    is_image = len(spec.shape) in (2, 3) and min(spec.shape[:2]) >= _IMAGE_SIZE
    if len(spec.shape) == 3 and spec.shape[0] <= 4 and min(spec.shape[1:]) >= _IMAGE_SIZE:
        return Finding('LOOK', name, f'{text}: looks like an image with its channels first; move them to the end')
    if spec.dtype.is_floating and is_image and high > 2.0:
        return Finding(
            'LOOK', name, f'{text}, {seen}: looks like an image of floats; return uint8, a quarter of the memory'
        )
    if low == high:
        return Finding('LOOK', name, f'{text}: always {low:.4g}; leave it out, or see why it never changes')
    if spec.dtype.is_floating and (np.any(values < spec.minimum) or np.any(values > spec.maximum)):
        return Finding('LOOK', name, f'{text}, but {seen}: correct the bounds of the space')
    if spec.dtype.is_floating and max(abs(low), abs(high)) > _LARGE_OBSERVATION:
        return Finding(
            'LOOK', name, f'{text}, {seen}: networks learn slowly from large numbers; normalize it (docs/your-data.md)'
        )
    return Finding('ok', name, f'{text}, {seen}')


def _action(spec: Any) -> Finding:
    text = _described(spec)
    if spec.dtype.is_floating and not (np.all(np.isfinite(spec.minimum)) and np.all(np.isfinite(spec.maximum))):
        return Finding('LOOK', spec.name, f'{text}, without bounds: SAC, TD3 and others need bounds; give the Box some')
    return Finding('ok', spec.name, text)


def _rewards(rollout: _Rollout) -> Finding:
    rewards = rollout.rewards[rollout.step_types != ts.StepType.FIRST]
    low, high, lengths = rewards.min(), rewards.max(), rollout.episode_lengths()
    if low == high and (low == 0 or len(set(lengths)) < 2):
        text = f'always {low:.4g} with random actions: exploration has to find another one first'
        return Finding('LOOK', 'reward', text)
    text = f'{low:.4g} to {high:.4g}, mean {rewards.mean():.4g}'
    if np.abs(rewards).max() > _LARGE_REWARD:
        return Finding('LOOK', 'reward', f'{text}: large; scale it (make_agent.reward_scale)')
    return Finding('ok', 'reward', text)


def _episodes(rollout: _Rollout, num_steps: int) -> Finding:
    lengths = rollout.episode_lengths()
    if not lengths:
        text = f'none ended within {num_steps:,} steps; take more, or set a time limit (max_episode_steps)'
        return Finding('LOOK', 'episodes', text)
    ends = rollout.step_types == ts.StepType.LAST
    truncated = int((rollout.discounts[ends] == 1).sum())
    text = f'{len(lengths)} ended after {min(lengths)} to {max(lengths)} steps, {truncated} of them by truncation'
    if len(lengths) >= _LEAST_EPISODES and min(lengths) == max(lengths) > 1 and not truncated:
        return Finding(
            'LOOK', 'episodes', f'{text}: all as long; if that is a time limit, return truncated=True, not terminated'
        )
    return Finding('ok', 'episodes', text)


def _seed_findings(make_one: MakeOne, seed: int) -> Iterator[Finding]:
    """Checks that the seed, and nothing else, decides what an environment does."""

    def differ(one: _Rollout, other: _Rollout) -> bool:
        pairs = zip([one.rewards, *one.observations], [other.rewards, *other.observations], strict=True)
        return any(not np.array_equal(a, b) for a, b in pairs)

    first, again = (_Rollout(make_one, _SEEDED_STEPS, seed) for _ in range(2))
    if differ(first, again):
        text = 'the same seed and actions give other steps; draw from self.np_random, after super().reset(seed=seed)'
        yield Finding('LOOK', 'seed', text)
    elif not any((leaf[0, 0] != leaf[0, 1]).any() for leaf in first.observations):
        yield Finding(
            'LOOK', 'seed', 'each seed gives the same first observation; fine if the task begins in one state'
        )
    else:
        yield Finding('ok', 'seed', 'the same seed gives the same episode, another one another')


def _speed_findings(environment: str | MakeOne, seed: int, secs: float) -> Iterator[Finding]:
    """Times the kinds of vectorization, and names the fastest."""
    make_one = _maker(environment)
    sides: dict[str, Callable[..., BatchedEnvironment]] = {
        "'in_process', 1 environment": functools.partial(vector_env.in_process, make_one, 1),
        "'in_process', 8 environments": functools.partial(vector_env.in_process, make_one, 8),
        "'worker_processes', 8 environments": functools.partial(vector_env.in_worker_processes, make_one, 8),
    }
    if isinstance(environment, str) and registry.find(environment).vector_entry_point is not None:
        native = functools.partial(gymnasium_env.make, environment, 8, vectorization='native')
        sides["'native', 8 environments"] = native
    rates = {}
    for name, make in sides.items():
        with contextlib.closing(make(seed=seed)) as batch:
            rates[name] = _steps_per_sec(batch, seed, secs)
        yield Finding('ok', 'speed', f'{rates[name]:,.0f} environment steps/s with vectorization={name}')
    yield Finding('ok', 'speed', f'the fastest here: vectorization={max(rates, key=lambda name: rates[name])}')


def _steps_per_sec(environment: BatchedEnvironment, seed: int, secs: float) -> float:
    rng, step = np.random.default_rng(seed), environment.reset()
    start, count = time.perf_counter(), 0
    while (passed := time.perf_counter() - start) < secs:
        step = environment.step(_random_action(environment, step, rng))
        count += environment.num_environments
    return count / passed
