"""Pipeline: a run's transforms, one after the other, made for the environment's specs."""

import copy
import itertools
from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from tf_agents.trajectories import time_step as ts
from tf_agents.typing import types

from tflearn.core.errors import UserTypeError, UserValueError
from tflearn.core.experience import Slicing
from tflearn.core.types import EnvironmentSpecs
from tflearn.transforms import rewards
from tflearn.transforms.transform import ObservationTransform, Transform


class Pipeline:
    """Applies transforms in their order.

    Attributes:
      specs: the transformed specs, which the agent gets.
      state_spec: what the transforms keep between two steps of an episode while a policy acts; () if nothing.
      statistics: the modules with the transforms' variables, in their order.
      extra_steps: the rows before and after a sequence that the transforms need in training, and remove.
    """

    def __init__(self, transforms: Sequence[Transform], specs: EnvironmentSpecs, slicing: Slicing):
        """Prepares copies of the transforms, in the strategy's scope.

        Args:
          transforms: the transforms.
          specs: the environment's specs.
          slicing: how steps become items.

        Raises:
          ValueError: if a transform does not fit what the one before it returns, or stands behind one that it has to
            precede, or items have other rows than the transforms need.
        """
        _check(transforms)
        _check_rows(transforms, slicing)
        self._sequence_length = slicing.sequence_length
        self.extra_steps = (slicing.history_steps, slicing.future_steps)
        self._transforms = [copy.copy(transform) for transform in transforms]
        for transform in self._transforms:
            specs = transform.transform_specs(specs)
        self.specs = specs
        states = tuple(transform.state_spec for transform in self._transforms)
        self.state_spec: types.NestedTensorSpec = states if tf.nest.flatten(states) else ()
        self.statistics = [transform.statistics for transform in self._transforms if transform.statistics is not None]

    @property
    def description(self) -> str:
        """The transforms and their numbers, in one line."""
        return ', '.join(map(_described, self._transforms))

    @property
    def reward_weights(self) -> tf.Variable | None:
        """The weights of several rewards; None if there are none."""
        return next((item.weights for item in self._transforms if isinstance(item, rewards.Weighted)), None)

    @property
    def variables(self) -> list[tf.Variable]:
        """The transforms' variables that policies use."""
        return [variable for transform in self._transforms for variable in transform.policy_variables]

    def transform_time_step(self, time_step: ts.TimeStep, states: Any) -> tuple[ts.TimeStep, Any]:
        """Returns transformed time steps [B] and the next states, of states [B, *state_spec]."""
        states = states or ((),) * len(self._transforms)
        after = []
        for transform, state in zip(self._transforms, states, strict=True):
            time_step, state = transform.transform_time_step(time_step, state)
            after.append(state)
        return time_step, tuple(after) if self.state_spec else ()

    def transform_experience(self, experience: Any) -> tuple[Any, list[Any]]:
        """Transforms a Trajectory [B, T, ...]. Returns it, and what each transform got, for `update`."""
        before = []
        for transform in self._transforms:
            before.append(experience)
            experience = transform.transform_experience(experience)
        return experience, before

    def update(self, before: Sequence[Any]) -> None:
        """Updates the transforms' statistics, in replica context, by what `transform_experience` returned."""
        for transform, experience in zip(self._transforms, before, strict=True):
            if transform.statistics is not None:
                transform.update(experience, self._counts(experience))

    def _counts(self, experience: Any) -> tf.Tensor:
        """Returns float32 [B, T]: 1 for steps that the agent trained on, 0 in between episodes and in other rows."""
        counts = tf.cast(experience.next_step_type != ts.StepType.FIRST, tf.float32)
        end = experience.next_step_type.shape[1] - 1
        begin = end + 1 - self._sequence_length
        return tf.pad(counts[:, begin:end], [[0, 0], [begin, 1]])

    def check_unchanged(self, path: str) -> None:
        """Raises ValueError if a transform changes the part of the observation at `path`, the mask of legal actions."""
        for transform in self._transforms:
            if isinstance(transform, ObservationTransform) and path in transform.changed_paths:
                name = type(transform).__name__
                raise UserValueError(
                    f"got {name} of '{path}', the mask of legal actions; need the mask as it is; set {name}.paths"
                )


def _check(transforms: Sequence[Transform]) -> None:
    if not transforms or isinstance(transforms, Transform):
        raise UserValueError(f'got transforms={transforms!r}; need a list of one or more')
    for transform in transforms:
        if not isinstance(transform, Transform):
            raise UserTypeError(
                f'got {transform!r} in transforms; need objects of tflearn.transforms, such as image.Scale()'
            )
    for before, after in itertools.pairwise(transforms):
        if after.stage < before.stage:
            name, other = type(after).__name__, type(before).__name__
            raise UserValueError(
                f'got {name} after {other} in transforms; need it before, since it computes rewards from what the '
                f'environment made; move {name} to the front'
            )


def _check_rows(transforms: Sequence[Transform], slicing: Slicing) -> None:
    for name in ('history_steps', 'future_steps'):
        needed, given = sum(getattr(transform, name) for transform in transforms), getattr(slicing, name)
        if needed != given:
            names = [type(transform).__name__ for transform in transforms if getattr(transform, name)]
            raise UserValueError(
                f'got Slicing.{name}={given}; need {needed}, as {", ".join(names) or "no transform"} does; set '
                f'Slicing.{name}={needed}'
            )
    if slicing.history_steps and slicing.store_policy_state:
        raise UserValueError(
            f'got Slicing.history_steps={slicing.history_steps} with store_policy_state=True; need a network with '
            'memory or a stack of frames, not both'
        )


def _described(transform: Transform) -> str:
    values = {
        name.lstrip('_'): value for name, value in vars(transform).items() if isinstance(value, int | float | str)
    }
    return f'{type(transform).__name__}({", ".join(f"{name}={value!r}" for name, value in values.items())})'
