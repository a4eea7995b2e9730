"""Transform: a change of observations or rewards between the environment and the agent.
The base classes.

A transform acts twice: on the time steps that a policy acts on, and on the trajectories that the
agent trains on, which the replay holds as the environment made them. `transformed.make_agent`
applies a list of transforms in both places.

A transform is constructed with its settings only. `transform_specs` is called once, on a copy,
before anything else: it checks the specs, makes variables if there are any, and returns what the
next transform gets.
"""

import enum
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import tensorflow as tf
from tf_agents.trajectories import time_step as ts
from tf_agents.typing import types

from tflearn.core.errors import UserValueError
from tflearn.core.types import EnvironmentSpecs, leaf_paths


class Stage(enum.IntEnum):
    """Which transforms come first in a list."""

    RELABEL = 0  # changes goals, and computes rewards from them
    REWARD = 1  # computes rewards from the environment's observations
    REST = 2


class Transform:
    """Changes nothing; subclasses override what they change.

    Attributes:
      stage: which transforms come first.
      history_steps: the rows before a sequence that it needs in training.
      future_steps: the rows after a sequence that it needs in training, and removes.
      state_spec: nest of specs of what it keeps between two steps of an episode while a policy
        acts; () is nothing.
      draws_per_step: how often the agent trains on an environment step, on average, as far as known.
      statistics: the module with the variables that it updates; None has none.
      policy_variables: those of its variables that a policy uses.
    """

    stage = Stage.REST
    history_steps = 0
    future_steps = 0
    state_spec: types.NestedTensorSpec = ()
    draws_per_step = 1.0
    statistics: tf.Module | None = None
    policy_variables: Sequence[tf.Variable] = ()

    def transform_specs(self, specs: EnvironmentSpecs) -> EnvironmentSpecs:
        """Prepares the transform for an environment's specs, in the strategy's scope.
        Returns the transformed specs.

        Raises:
          ValueError: if the transform does not fit the specs.
        """
        return specs

    def transform_time_step(self, time_step: ts.TimeStep, state: Any) -> tuple[ts.TimeStep, Any]:
        """Transforms time steps [B] for a policy.

        Args:
          time_step: the time steps.
          state: nest of tensors [B, *state_spec], zeros at an episode's first step.

        Returns:
          The transformed time steps, and the state for the next step.
        """
        return time_step, state

    def transform_experience(self, experience: Any) -> Any:
        """Transforms a Trajectory [B, T, ...] for training."""
        return experience

    def update(self, experience: Any, counts: tf.Tensor) -> None:
        """Updates the statistics after a train step, in replica context.

        Args:
          experience: this replica's Trajectory [B, T, ...] before this transform.
          counts: float32 [B, T], 1 for the steps that the agent trained on, else 0.
        """


class ObservationTransform(Transform):
    """Changes tensors of the observation, each by itself;
    subclasses say which ones fit, and what becomes of them.
    """

    need = 'a tensor'  # what fits, for messages

    def __init__(self, paths: Sequence[str] | None = None):
        """
        Args:
          paths: the paths of the tensors to change, such as 'robot.camera'; None changes all that
            fit.
        """
        if isinstance(paths, str):
            raise UserValueError(f'got paths={paths!r}; need a list of paths, such as [{paths!r}]')
        self.paths = None if paths is None else tuple(paths)
        # Of the tensors that it changes, before it does, by their index.
        self.specs: dict[int, tf.TensorSpec] = {}
        self.changed_paths: tuple[str, ...] = ()

    def fits(self, spec: tf.TensorSpec) -> bool:
        """Returns whether it can change a tensor of this spec."""
        return True

    def transform_leaf_spec(self, spec: tf.TensorSpec) -> tf.TensorSpec:
        """Returns the spec of a changed tensor."""
        return spec

    def transform_leaf(self, values: tf.Tensor, spec: tf.TensorSpec) -> tf.Tensor:
        """Returns the changed values [..., *changed spec] of a tensor [..., *spec]."""
        return values

    def transform_specs(self, specs: EnvironmentSpecs) -> EnvironmentSpecs:
        """See `Transform`."""
        found, leaves = leaf_paths(specs.observation), tf.nest.flatten(specs.observation)
        if self.paths is None:
            wanted = [self.fits(leaf) for leaf in leaves]
        else:
            self._check_paths(self.paths, dict(zip(found, leaves, strict=True)))
            wanted = [path in self.paths for path in found]
        if not any(wanted):
            raise UserValueError(
                f'got the observation {specs.observation} for {type(self).__name__}; need {self.need} in it'
            )
        self.specs = {i: leaf for i, leaf in enumerate(leaves) if wanted[i]}
        self.changed_paths = tuple(found[i] for i in self.specs)
        changed = [self.transform_leaf_spec(leaf) if i in self.specs else leaf for i, leaf in enumerate(leaves)]
        observation = tf.nest.pack_sequence_as(specs.observation, changed)
        return EnvironmentSpecs(observation, specs.action, specs.reward)

    def _check_paths(self, paths: Collection[str], named: Mapping[str, tf.TensorSpec]) -> None:
        """Raises ValueError for a path that the observation does not have, or that does not fit."""
        name = type(self).__name__
        if unknown := sorted(set(paths) - named.keys()):
            raise UserValueError(
                f"got {name}.paths with '{unknown[0]}' and an observation with the parts "
                f'{", ".join(named)}; need some of these'
            )
        for path, leaf in named.items():
            if path in paths and not self.fits(leaf):
                raise UserValueError(f"got '{path}' with the spec {leaf} for {name}; need {self.need}")

    def transform_observation(self, observation: Any) -> Any:
        """Returns the changed observations, a nest of tensors [..., *changed spec]."""
        leaves = tf.nest.flatten(observation)
        for i, spec in self.specs.items():
            leaves[i] = self.transform_leaf(leaves[i], spec)
        return tf.nest.pack_sequence_as(observation, leaves)

    def transform_time_step(self, time_step: ts.TimeStep, state: Any) -> tuple[ts.TimeStep, Any]:
        """See `Transform`."""
        return time_step._replace(observation=self.transform_observation(time_step.observation)), state

    def transform_experience(self, experience: Any) -> Any:
        """See `Transform`."""
        return experience._replace(observation=self.transform_observation(experience.observation))


class RewardTransform(Transform):
    """Changes rewards; those that belong to no step,
    at an episode's first time step and between episodes, are 0.
    """

    def transform_reward_spec(self, spec: tf.TensorSpec) -> tf.TensorSpec:
        """Returns the spec of changed rewards."""
        return spec

    def transform_reward(self, reward: tf.Tensor) -> tf.Tensor:
        """Returns the changed rewards [..., *changed spec] of rewards [..., *spec]."""
        return reward

    def transform_specs(self, specs: EnvironmentSpecs) -> EnvironmentSpecs:
        """See `Transform`."""
        return EnvironmentSpecs(specs.observation, specs.action, self.transform_reward_spec(specs.reward))

    def transform_time_step(self, time_step: ts.TimeStep, state: Any) -> tuple[ts.TimeStep, Any]:
        """See `Transform`."""
        reward = or_zero(self.transform_reward(time_step.reward), time_step.step_type != ts.StepType.FIRST)
        return time_step._replace(reward=reward), state

    def transform_experience(self, experience: Any) -> Any:
        """See `Transform`."""
        reward = self.transform_reward(experience.reward)
        return experience._replace(reward=or_zero(reward, experience.next_step_type != ts.StepType.FIRST))


def or_zero(reward: tf.Tensor, counts: tf.Tensor) -> tf.Tensor:
    """Returns rewards [..., *spec] where `counts`, bool [...], is true, and 0 elsewhere."""
    rank = reward.shape.rank - counts.shape.rank
    counts = tf.reshape(counts, [*tf.unstack(tf.shape(counts)), *[1] * rank])
    return tf.where(counts, reward, tf.zeros_like(reward))
