"""An exported policy as a function: `policy(observation)` -> action.
For programs that act without TF-Agents' types.
"""

import os
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf
from tf_agents.trajectories import time_step as ts

from tflearn.core.errors import UserTypeError, UserValueError
from tflearn.files.run_dir import local_path
from tflearn.policies import external, signatures
from tflearn.policies.loader import LoadedPolicy


class PolicyFunction:
    """Acts on observations: plain arrays, or dicts,
    lists and tuples of arrays as the policy's environment has them.

    A policy with memory (a recurrent network) remembers what it has seen since it was loaded or
    since `reset`; for such a policy call `reset` before each episode, and do not share it between
    threads.

    Attributes:
      path: the directory of the version.
      metadata: what is known of the version: train_step, env_steps, the specs, ...
      observation_spec: nest of `tf.TensorSpec` of a batch of observations [B, ...].
      loaded: the policy of time steps, with TF-Agents' types.
    """

    def __init__(self, policy: LoadedPolicy, allow_nonfinite: bool = False):
        self._allow_nonfinite = allow_nonfinite
        self.path, self.metadata = policy.path, policy.metadata
        self.observation_spec = policy.time_step_spec.observation
        self.loaded = policy
        self.reset()

    @property
    def train_step(self) -> int:
        """The train step of the weights."""
        return self.loaded.train_step

    def reset(self) -> None:
        """Forgets what a policy with memory has seen:
        the next call begins new episodes, in a batch of any size.
        """
        self._batch_size: int | None = None
        self._state: Any = ()

    def __call__(self, observation: Any, reward: Any = None) -> Any:
        """Chooses actions.

        Args:
          observation: one observation, of the shapes of the environment's observation space, or a
            batch of them: every array with one more dimension [B, ...] in front. Arrays of another
            dtype are converted if no number changes by it but for its precision.
          reward: the reward of the step before, a number, or [B] of a batch: for a policy whose
            memory takes it (`NetworkOptions.previous_reward`), except in an episode's first step.

        Returns:
          The action of one observation, or the actions [B, ...] of a batch: numpy values, in a nest
          if the action space is one.

        Raises:
          TypeError: if the observation has another structure or another kind of numbers.
          ValueError: if it has other shapes or a number that is not finite, or a policy with memory
            gets another batch size before `reset`, or no reward that it takes.
        """
        arrays = _arrays(self.observation_spec, observation, 'observation')
        if not (self._allow_nonfinite or all(map(_is_finite, tf.nest.flatten(arrays)))):
            raise UserValueError(
                f'got an observation {signatures.NONFINITE}; if the policy was trained with others, '
                'load_policy(path, allow_nonfinite=True) takes them'
            )
        is_single = _is_single(self.observation_spec, arrays)
        if is_single:
            arrays = tf.nest.map_structure(lambda array: array[np.newaxis], arrays)
        batch_size = len(tf.nest.flatten(arrays)[0])
        step_type = ts.StepType.MID
        if self._batch_size is None:
            self._state, step_type = self.loaded.initial_state(batch_size), ts.StepType.FIRST
        elif self._batch_size != batch_size and tf.nest.flatten(self._state):
            raise UserValueError(
                f'got {batch_size} observations after {self._batch_size}; a policy with memory needs the same episodes '
                'until they end; call reset() where new ones begin'
            )
        self._batch_size = batch_size
        if reward is None and self.loaded.takes_reward and step_type != ts.StepType.FIRST:
            raise UserValueError(
                'got no reward for a policy whose memory takes it; need that of the step before; call '
                'policy(observation, reward), and reset() where an episode begins'
            )
        given = np.asarray(0.0 if reward is None else reward, np.float32)
        rewards = tf.nest.map_structure(
            lambda spec: np.zeros((batch_size, *spec.shape[1:]), spec.dtype.as_numpy_dtype) + given,
            self.loaded.time_step_spec.reward,
        )
        ones = np.ones(batch_size, np.float32)
        time_step = ts.TimeStep(np.full(batch_size, step_type, np.int32), rewards, ones, arrays)
        action, self._state = self.loaded.action(time_step, self._state)
        return tf.nest.map_structure(lambda array: array[0], action) if is_single else action


def load_policy(path: str | os.PathLike[str], allow_nonfinite: bool = False) -> PolicyFunction:
    """Loads an exported policy as a function of observations.

    Args:
      path: a version ('policies/greedy_policy/7000' in a run directory, or the links 'latest' and
        'best' beside it); a directory of versions ('policies/greedy_policy'), of which the newest
        is taken; or a run directory, of which the greedy policy is taken: the best version by
        evaluation, or the newest if none was evaluated.
      allow_nonfinite: whether observations may have NaN and infinities, as those of environments
        with `on_nonfinite='keep'` do.

    Raises:
      FileNotFoundError: if there is no policy.
      ValueError: if it is damaged, or the path is a URL.
    """
    policy = external.load(local_path(path, 'path').resolve())
    if not isinstance(policy, LoadedPolicy):
        raise UserValueError(
            f"got {policy.path}, which TF-Agents' PolicySaver has written; need an exported version; call "
            f"tf.saved_model.load('{policy.path}').action(time_step), or tflearn-evaluate --policy={policy.path}"
        )
    return PolicyFunction(policy, allow_nonfinite)


def _arrays(spec: Any, value: Any, name: str) -> Any:
    """Returns `value` as a nest of arrays in the structure of `spec`, of its dtypes."""
    if isinstance(spec, Mapping):
        if not isinstance(value, Mapping) or value.keys() != spec.keys():
            got = f'a dict with the keys {sorted(map(str, value))}' if isinstance(value, Mapping) else _kind(value)
            raise UserTypeError(f'got {got} as {name}; need a dict with the keys {sorted(spec)}')
        return {key: _arrays(spec[key], value[key], f'{name}[{key!r}]') for key in spec}
    if isinstance(spec, list | tuple):
        if not isinstance(value, list | tuple) or len(value) != len(spec):
            raise UserTypeError(f'got {_kind(value)} as {name}; need a tuple of {len(spec)}')
        parts = [_arrays(part, value[i], f'{name}[{i}]') for i, part in enumerate(spec)]
        return parts if isinstance(spec, list) else tuple(parts)
    return _array(np.asarray(value), np.dtype(spec.dtype.as_numpy_dtype), name)


def _array(array: np.ndarray, dtype: np.dtype, name: str) -> np.ndarray:
    to_float = dtype.kind == 'f'
    converted = array.astype(dtype) if array.dtype.kind in ('biuf' if to_float else 'biu') else None
    if converted is None or not (to_float or np.array_equal(converted, array)):
        raise UserTypeError(f'got {array.dtype} as {name}; need {dtype}; convert it, or pass another observation')
    return converted


def _is_finite(array: np.ndarray) -> bool:
    return array.dtype.kind != 'f' or bool(np.isfinite(array).all())


def _is_single(spec: Any, arrays: Any) -> bool:
    """Returns whether the arrays are one observation; false if they are a batch.
    Raises ValueError if neither.
    """
    leaves = list(zip(tf.nest.flatten(spec), tf.nest.flatten(arrays), strict=True))
    if all(leaf.shape[1:].is_compatible_with(array.shape) for leaf, array in leaves):
        return True
    sizes = {array.shape[:1] for _, array in leaves}
    if len(sizes) == 1 and all(leaf.shape.is_compatible_with(array.shape) for leaf, array in leaves):
        return False
    got, need = [list(array.shape) for _, array in leaves], [list(leaf.shape[1:]) for leaf, _ in leaves]
    raise UserValueError(f'got an observation of shapes {got}; need {need}, or a batch: one more dimension in front')


def _kind(value: Any) -> str:
    length = f' of {len(value)}' if isinstance(value, list | tuple) else ''
    return f'{type(value).__name__}{length}'
