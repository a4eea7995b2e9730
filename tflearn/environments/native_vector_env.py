"""A vector environment of gymnasium or another library, which steps its environments itself."""

import contextlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv

from tflearn.core.errors import UserError, UserValueError
from tflearn.core.resumable import Resumable
from tflearn.environments import gathering, sync_vector_env


class NativeVectorEnv(Resumable):
    """A `sync_vector_env.RebuildingVectorEnv` over a vector environment, rebuilt as one if it raises an error.

    Its environments may share a random number generator. One with autoreset mode SAME_STEP has reset an environment in
    the step that ended its episode: that step returns the final observation of its infos, and the next one returns the
    new episode's second observation as its first. The step between them, whose action was chosen before the reset, is
    in no data.
    """

    _KEPT = ('_vector_env', '_ended', '_seed', '_progress', '_columns', 'failures')

    def __init__(self, make_all: Callable[[], VectorEnv]):
        """Makes the vector environment; errors of `make_all` propagate.

        Raises:
          UserValueError: if it does not reset its environments itself.
        """
        self._make_all = make_all
        self._vector_env = make_all()
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
        self.num_envs = self._vector_env.num_envs
        self.single_observation_space = self._vector_env.single_observation_space
        self.single_action_space = self._vector_env.single_action_space
        self.reward_shape: tuple[int, ...] = ()
        self.name = sync_vector_env.name_of(self._vector_env)
        self._origin = f'the vector environment ({self.name})'
        self.failures = sync_vector_env.Failures(self.num_envs)
        self._columns = sync_vector_env.InfoColumns(self.num_envs)
        self._seed: int | None = None
        self._progress: tuple[int, int] | None = None
        self._ended = np.zeros(self.num_envs, bool)  # in the step before, where `_resets_in_step`

    def reset(self, seed: int | None) -> Any:
        """See `sync_vector_env.RebuildingVectorEnv`."""
        self._seed = seed if seed is not None else self._seed
        self._ended = np.zeros(self.num_envs, bool)
        try:
            result = self._vector_env.reset(seed=seed)
        except UserError:
            raise
        except Exception as error:
            return self._rebuild(sync_vector_env.cause_of(error))
        return self._batch(gathering.reset_result(result, self._origin)[0])

    def step(self, action: Any) -> sync_vector_env.Step:
        """See `sync_vector_env.RebuildingVectorEnv`."""
        try:
            result = self._vector_env.step(action)
        except UserError:
            raise
        except Exception as error:
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

    def close(self) -> None:
        """See `sync_vector_env.RebuildingVectorEnv`."""
        self._vector_env.close()

    def rebuild(self, causes: Mapping[int, str]) -> tuple[Any, np.ndarray]:
        """See `sync_vector_env.RebuildingVectorEnv`."""
        return self._rebuild('; '.join(causes.values())), np.ones(self.num_envs, bool)

    def set_progress(self, train_step: int, env_steps: int) -> None:
        """See `sync_vector_env.RebuildingVectorEnv`."""
        self._progress = train_step, env_steps
        if setter := sync_vector_env.progress_setter(self._vector_env):
            setter(train_step, env_steps)

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
        observation = _copied(observation)
        for i in np.flatnonzero(ended).tolist():
            one = found[i] if isinstance(found, np.ndarray) and found.dtype == object else _item(found, i)
            sync_vector_env.assign(
                self.single_observation_space, observation, i, one, sync_vector_env.origin_of(i, self.name)
            )
        last = info.get('final_info')
        return observation, _merged(
            sync_vector_env.numeric_info(info), sync_vector_env.numeric_info(last), ended
        ) if isinstance(last, Mapping) else info

    def _rebuild(self, cause: str) -> Any:
        while True:
            self.failures.add(range(self.num_envs), cause)
            self._ended = np.zeros(self.num_envs, bool)
            with contextlib.suppress(Exception):  # it is broken
                self._vector_env.close()
            try:
                self._vector_env = self._make_all()
                if self._progress and (setter := sync_vector_env.progress_setter(self._vector_env)):
                    setter(*self._progress)
                result = self._vector_env.reset(seed=sync_vector_env.seed_of(self._seed, 0, self.failures.num_rebuilt))
                return self._batch(gathering.reset_result(result, self._origin)[0])
            except UserError:
                raise
            except Exception as error:
                cause = sync_vector_env.cause_of(error)


def _merged(info: Mapping[str, Any], last: Mapping[str, Any], ended: np.ndarray) -> dict[str, Any]:
    """Returns the infos of a step, with those of the last step of the episodes where `ended`, bool [B]."""
    merged = {key: value for key, value in info.items() if not key.startswith('final_info/')}
    for key, value in last.items():
        values, mask = np.asarray(value), sync_vector_env.mask_name(key)
        if key.rpartition('/')[2].startswith('_') or values.shape[:1] != ended.shape:
            continue
        valid, before = ended & np.asarray(last.get(mask, ended)), merged.get(key)
        rows = valid.reshape(-1, *[1] * (values.ndim - 1))
        merged[mask] = valid
        if before is not None and np.shape(before) == values.shape:
            values, merged[mask] = np.where(rows, values, before), valid | np.asarray(info.get(mask, ~ended))
        merged[key] = values
    return merged


def _copied(batch: Any) -> Any:
    if isinstance(batch, Mapping):
        return {key: _copied(part) for key, part in batch.items()}
    return tuple(map(_copied, batch)) if isinstance(batch, tuple) else np.array(batch)


def _item(batch: Any, i: int) -> Any:
    """Returns element `i` of a nest of arrays [B, ...], as vector environments of other libraries return them."""
    if isinstance(batch, Mapping):
        return {key: _item(part, i) for key, part in batch.items()}
    return tuple(_item(part, i) for part in batch) if isinstance(batch, tuple) else batch[i]
