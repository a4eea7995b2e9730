"""gymnasium environments, by their registered names."""

import contextlib
import contextvars
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

import gymnasium
import numpy as np
import tensorflow as tf
from gymnasium.vector import AutoresetMode, VectorEnv

from tflearn.core.errors import UserError, UserValueError
from tflearn.core.settings import NonNegativeInt, PositiveFloat, PositiveInt, checked
from tflearn.core.types import BatchedEnvironment
from tflearn.environments import registry, sync_vector_env, vector_env
from tflearn.environments.vector_env import OnNonfinite

# What shows or records each single environment that is made, see `rendered`.
_wraps: contextvars.ContextVar[Callable[[gymnasium.Env], gymnasium.Env] | None] = contextvars.ContextVar('wraps')


@contextlib.contextmanager
def rendered(wrap: Callable[[gymnasium.Env], gymnasium.Env]) -> Iterator[None]:
    """Makes environments during the block that render their frames as arrays,
    and puts each into `wrap`.
    """
    token = _wraps.set(wrap)
    try:
        yield
    finally:
        _wraps.reset(token)


Vectorization = Literal['auto', 'native', 'in_process', 'worker_processes']


@checked
def make(
    name: str,
    num_environments: PositiveInt,
    seed: NonNegativeInt | None,
    vectorization: Vectorization = 'auto',
    max_episode_steps: PositiveInt | None = None,
    kwargs: dict[str, Any] | None = None,
    step_timeout_secs: PositiveFloat = vector_env.STEP_TIMEOUT_SECS,
    register: Callable[[], object] | None = None,
    mask_in_info: str | None = None,
    action_repeat: PositiveInt = 1,
    reset_options: Mapping[str, Any] | None = None,
    on_nonfinite: OnNonfinite = 'rebuild',
) -> BatchedEnvironment:
    """Makes a batch of a gymnasium environment.

    Terminated is LAST with discount 0, truncated is LAST with discount 1. Observations and actions
    of dtype float64 become float32, discrete ones int64, counted from their start.

    Args:
      name: a registered name such as 'CartPole-v1', or 'module:Name-v0' to import `module` first.
      num_environments: the number of environments, which are stepped together.
      seed: environment i is seeded with seed + i; None draws the seeds. ('native': the batch is
        seeded with seed.)
      vectorization: 'native' is the vector environment that is registered under the name, by far
        the fastest: one call steps all environments. 'in_process' steps them one after the other.
        'worker_processes' runs each in its own process, which is faster if a step takes longer than
        about half a millisecond, and the only way to replace environments that hang or die. 'auto'
        is 'native' if that is registered as the same task and neither `max_episode_steps` nor
        `kwargs` are given, else 'in_process'.
      max_episode_steps: the number of steps after which an episode is truncated; None keeps the
        registered number.
      kwargs: further arguments of the environment's constructor.
      step_timeout_secs: the longest step or reset; a worker process that takes longer is replaced.
      register: a function that registers environments, for packages that do not do so when they are
        imported; it is called unless `name` is registered already.
      mask_in_info: the key of the environment's `info` with a mask of legal actions. The
        observation then has the parts 'observation' and 'action_mask', for
        `make_agent.action_mask`; None leaves it as it is.
      action_repeat: how often the environment is stepped with each action: their rewards are added,
        and the episode may end in between. `max_episode_steps` counts the environment's own steps.
      reset_options: what each `reset(options=...)` gets; None passes no options.
      on_nonfinite: what happens to an environment whose observation or reward is not finite:
        'rebuild' treats it as one that raises an error, 'stop' ends the job, 'keep' passes the
        number on.

    Returns:
      The batch; see `BatchedEnvironment`. Close it when done.

    Raises:
      ValueError: for an unknown name, a missing package, or invalid arguments.
      RuntimeError: if an environment cannot be made in its worker process.
    """
    spec, wrap = registry.find(name, register), _wraps.get(None)
    wrappers: dict[str, tuple[Any, Any]] = {  # the innermost one first
        'reset_options': (sync_vector_env.ResetOptions, reset_options),
        'action_repeat': (ActionRepeat, action_repeat if action_repeat > 1 else None),
        'mask_in_info': (sync_vector_env.MaskFromInfo, mask_in_info),
    }
    wrapped = [argument for argument, (_, value) in wrappers.items() if value]
    _check_native(vectorization, name, spec, wrapped)
    need = 'an environment that can be rendered' if wrap else 'what an environment of fixed-size spaces takes'
    wrong = (TypeError, gymnasium.error.Error) if wrap else (TypeError,)
    # A missing package is an error of gymnasium's too, so it is named first.
    with _explained(name, kwargs, need, *wrong), registry.needed(name):
        # gymnasium's checker costs more than a step itself; our conformance test replaces it.
        given = {**(kwargs or {}), **({'render_mode': 'rgb_array'} if wrap else {})}
        make_one: Any = functools.partial(
            gymnasium.make, spec, max_episode_steps=max_episode_steps, disable_env_checker=True, **given
        )
        if wrap:
            make_one, vectorization = functools.partial(_put_into, wrap, make_one), 'in_process'
        for wrapper, value in (wrappers[argument] for argument in wrapped):
            make_one = functools.partial(wrapper, make_one, value)
        if max_episode_steps is not None:
            given['max_episode_steps'] = max_episode_steps
        make_all = functools.partial(gymnasium.make_vec, spec, vectorization_mode='vector_entry_point', **given)
        if vectorization == 'auto':
            plain = not given and not wrapped and spec.vector_entry_point is not None
            vectorization = 'native' if plain and _are_same_task(make_one, make_all) else 'in_process'
        if vectorization == 'native':
            return vector_env.native(functools.partial(make_all, num_envs=num_environments), seed, on_nonfinite)
        if vectorization == 'in_process':
            return vector_env.in_process(make_one, num_environments, seed, on_nonfinite)
        return vector_env.in_worker_processes(make_one, num_environments, seed, step_timeout_secs, on_nonfinite)


def _put_into(wrap: Callable[[gymnasium.Env], gymnasium.Env], make_one: Callable[[], gymnasium.Env]) -> gymnasium.Env:
    return wrap(make_one())


def _check_native(vectorization: str, name: str, spec: Any, wrapped: Sequence[str]) -> None:
    """Raises ValueError where a native batch is asked for, and there is none,
    or not with these arguments.
    """
    if vectorization != 'native':
        return
    if wrapped:
        raise UserValueError(f"got vectorization='native' with {', '.join(wrapped)}; choose 'in_process'")
    if spec.vector_entry_point is None:
        raise UserValueError(f"got vectorization='native' of name={name!r}, which has none registered; choose 'auto'")


class ActionRepeat(gymnasium.Wrapper):
    """Another environment in which an action counts for several of its steps, as in Mnih et al.
    2015 ("frame skip").

    The reward is the sum of theirs; the observation and the info are the last step's. An episode
    that ends in between ends with the step. `TimeLimit` wrappers inside count the environment's own
    steps.
    """

    def __init__(self, make_one: Callable[[], gymnasium.Env], num_repeats: int):
        """Makes the environment; `num_repeats` of its steps become one."""
        super().__init__(make_one())
        self._num_repeats = num_repeats

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """See `gymnasium.Env`."""
        total = 0.0
        for _ in range(self._num_repeats):
            observation, reward, terminated, truncated, info = self.env.step(action)
            total += float(reward)
            if terminated or truncated:
                break
        return observation, total, terminated, truncated, info


def goal_reward(
    name: str, kwargs: dict[str, Any] | None = None, register: Callable[[], object] | None = None
) -> Callable[[Any, Any], tf.Tensor]:
    """Returns the rewards of a goal environment as a function for `hindsight.Hindsight.reward`.

    It calls `compute_reward` of an instance that is never stepped: for arrays of goals [N, n], as
    those of gymnasium-robotics take them, or for each goal where it takes but one. It is Python: a
    TensorFlow function, such as `hindsight.sparse_reward`, is faster.

    Args:
      name: as for `make`.
      kwargs: as for `make`.
      register: as for `make`.

    Returns:
      A function of achieved and desired goals [..., n] to rewards, float32 [...].

    Raises:
      ValueError: as for `make`, and if the environment has no goals.
    """
    spec = registry.find(name, register)
    with registry.needed(name):
        environment: Any = gymnasium.make(spec, disable_env_checker=True, **(kwargs or {})).unwrapped
    if not hasattr(environment, 'compute_reward'):
        raise UserValueError(f'got name={name!r}, which has no compute_reward; need a goal environment')

    def compute(achieved: np.ndarray, desired: np.ndarray) -> np.ndarray:
        with contextlib.suppress(TypeError, ValueError):  # of one that compares a single goal
            rewards = np.asarray(environment.compute_reward(achieved, desired, {}), np.float32)
            if rewards.shape == (len(achieved),):
                return rewards
        each = (environment.compute_reward(*goals, {}) for goals in zip(achieved, desired, strict=True))
        return np.array([float(reward) for reward in each], np.float32)

    def reward(achieved: tf.Tensor, desired: tf.Tensor) -> tf.Tensor:
        goals = [tf.reshape(goal, [-1, goal.shape[-1]]) for goal in (achieved, desired)]
        return tf.reshape(tf.numpy_function(compute, goals, tf.float32), tf.shape(achieved)[:-1])

    return reward


@contextlib.contextmanager
def _explained(name: str, kwargs: Any, need: str, *wrong: type[Exception]) -> Iterator[None]:
    """Names the environment and what it needs in an error of the kinds `wrong`."""
    try:
        yield
    except UserError:
        raise
    except wrong as error:
        raise UserValueError(f'got name={name!r}, kwargs={kwargs}; need {need} ({error})') from error


def _are_same_task(make_one: Callable[[], gymnasium.Env], make_all: Callable[..., VectorEnv]) -> bool:
    """Returns whether the vector environment has the single one's spaces (Atari's preprocesses observations)."""
    with sync_vector_env.closing(make_one()) as one, sync_vector_env.closing(make_all(num_envs=1)) as native:
        return (
            native.metadata.get('autoreset_mode') == AutoresetMode.NEXT_STEP
            and native.single_observation_space == one.observation_space
            and native.single_action_space == one.action_space
        )
