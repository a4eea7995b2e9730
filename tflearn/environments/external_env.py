"""An environment whose episodes come from external simulators, which connect to the collector."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging
from tf_agents.trajectories import time_step as ts

from tflearn.core.errors import UserValueError
from tflearn.core.types import IDLE, EnvironmentSpecs, check_batch
from tflearn.environments import external_server
from tflearn.environments.external_server import ExternalOptions, SimulatorServer
from tflearn.environments.external_slots import Slots

# A batched step without any simulator, after which the collector may stop, and sends its report.
_IDLE_SECS = 0.2

_FIRST, _MID, _LAST = (np.int32(step_type) for step_type in (ts.StepType.FIRST, ts.StepType.MID, ts.StepType.LAST))


def make(
    num_environments: int,
    seed: int | None,
    observation: Mapping[str, Any],
    action: Mapping[str, Any],
    options: ExternalOptions = ExternalOptions(),
) -> 'ExternalEnvironment':
    """Makes `num_environments` slots for episodes of external simulators.

    Args:
      num_environments: the number of slots, B: as many simulators take part at the same time.
      seed: has no effect; simulators draw their own random numbers.
      observation: describes an observation, see `external_server`.
      action: describes an action.
      options: where simulators connect to, and how long they may take.

    Raises:
      ValueError: for a description of another form.
    """
    del seed
    specs = EnvironmentSpecs(
        external_server.to_spec(observation, 'observation'), external_server.to_spec(action, 'action')
    )
    return ExternalEnvironment(specs, num_environments, options)


class ExternalEnvironment:
    """A `BatchedEnvironment` over `Slots`. It listens from its first `reset` on,
    since only then somebody acts.

    A slot without an episode returns FIRST, as an environment that failed does, so no data are made
    of it; `info` marks these rows. An episode whose simulator vanished ends in the same way: the
    steps before its last one are data.

    Attributes:
      num_environments: B.
      specs: the specs of one environment.
      info: IDLE: whether a slot has no episode, bool [B].
    """

    def __init__(self, specs: EnvironmentSpecs, num_environments: int, options: ExternalOptions):
        """Makes the slots; listens to nothing yet."""
        self.specs, self.num_environments = specs, num_environments
        self.info: Mapping[str, np.ndarray] = {}
        self._options = options
        self._slots = Slots(num_environments, options.step_timeout_secs, options.begin_wait_secs)
        self._server: SimulatorServer | None = None
        self._closed = False
        self._actions = list(tf.nest.flatten(specs.action))
        self._checked_action = False
        # The newest observation of each slot, in the arrays of the spec's leaves: what a vacant
        # slot returns.
        self._observation = [
            np.broadcast_to(np.maximum(spec.minimum, np.minimum(0, spec.maximum)), (num_environments, *spec.shape))
            .astype(spec.dtype.as_numpy_dtype)
            .copy()
            for spec in tf.nest.flatten(specs.observation)
        ]

    @property
    def address(self) -> str:
        """Where simulators connect to; '' before the first `reset`."""
        return self._server.address if self._server else ''

    @property
    def num_rebuilt(self) -> int:
        """The number of episodes whose simulators did not answer in time, or gave up."""
        return self._slots.num_dropped

    def reset(self) -> ts.TimeStep:
        """Drops all episodes, and begins those that simulators ask for.
        Returns FIRST time steps [B].
        """
        if self._closed:
            raise RuntimeError('got reset() after close(); need an environment that is open')
        if self._server is None:
            self._server = SimulatorServer(self._slots, self.specs, self._options)
        else:
            self._slots.reset()
        return self._time_step()

    def step(self, action: Any) -> ts.TimeStep:
        """Sends the actions to the simulators, and waits for their results.

        Args:
          action: nest of arrays [B, ...] of `specs.action`. Floats beyond their bounds are clipped.

        Returns:
          Time steps [B].

        Raises:
          ValueError: if the action does not match its spec, is not finite, or has integers out of
            bounds.
          RuntimeError: before `reset` and after `close`.
        """
        if self._server is None or self._closed:
            raise RuntimeError('got step() before reset() or after close(); need a reset() first')
        if not self._checked_action:
            check_batch(action, self.specs.action, self.num_environments, 'action')
            self._checked_action = True
        leaves = tf.nest.flatten(action)
        for leaf, spec in zip(leaves, self._actions, strict=True):
            _check_action(leaf, spec, self.num_environments)
        rows = [
            tf.nest.pack_sequence_as(self.specs.action, [leaf[i] for leaf in leaves])
            for i in range(self.num_environments)
        ]
        self._slots.act(rows)
        return self._time_step()

    def close(self) -> None:
        """Tells waiting simulators that the collector has ended. A second call does nothing."""
        if self._server and not self._closed:
            self._server.close()
            logging.info('closed the server of external simulators')
        self._closed = True

    def _time_step(self) -> ts.TimeStep:
        size = self.num_environments
        step_type, idle = np.full(size, _FIRST), np.ones(size, bool)
        reward, discount = np.zeros(size, np.float32), np.ones(size, np.float32)
        leaves = [leaf.copy() for leaf in self._observation]
        for i, (result, observation) in enumerate(self._slots.wait(_IDLE_SECS)):
            if result is not None:
                step_type[i] = _LAST if result.terminated or result.truncated else _MID
                reward[i], discount[i] = result.reward, 0.0 if result.terminated else 1.0
                observation = result.observation
            if observation is not None:
                idle[i] = False
                for leaf, value in zip(leaves, tf.nest.flatten(observation), strict=True):
                    leaf[i] = value
        self._observation, self.info = leaves, {IDLE: idle}
        observations = tf.nest.pack_sequence_as(self.specs.observation, [leaf.copy() for leaf in leaves])
        return ts.TimeStep(step_type, reward, discount, observations)


def _check_action(leaf: np.ndarray, spec: Any, num_environments: int) -> None:
    if leaf.shape != (num_environments, *spec.shape) or leaf.dtype != spec.dtype.as_numpy_dtype:
        raise UserValueError(
            f'got an action with shape {leaf.shape}, {leaf.dtype}; need {(num_environments, *spec.shape)}, '
            f'{spec.dtype.name}'
        )
    if spec.dtype.is_floating:
        if not np.isfinite(leaf).all():
            raise UserValueError(
                f'got {leaf[~np.isfinite(leaf)][0]} in {spec.name}; need finite numbers; check that weights and '
                'observations are'
            )
    elif np.any(leaf < spec.minimum) or np.any(leaf > spec.maximum):
        raise UserValueError(
            f'got {spec.name} from {leaf.min()} to {leaf.max()}; need values from {spec.minimum} to {spec.maximum}'
        )
