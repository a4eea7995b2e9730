"""FrameStack: the newest observations of an episode as one."""

from collections.abc import Sequence
from typing import Annotated, Any

import numpy as np
import tensorflow as tf
from tf_agents.trajectories import time_step as ts
from tf_agents.typing import types

from tflearn.core.errors import UserValueError
from tflearn.core.settings import Range, checked
from tflearn.core.types import EnvironmentSpecs, named_leaves, with_shape
from tflearn.transforms.transform import ObservationTransform


class FrameStack(ObservationTransform):
    """Joins the newest `num_frames` observations on the last axis, oldest first, as in Mnih et al.
    2015.

    Before an episode's first observation there are copies of it. A policy keeps the frames in its
    state. The replay holds each frame once; in training they come from the rows before a sequence,
    `Slicing.history_steps`, so the agent trains on what the policy acted on.
    """

    need = 'an image, or another tensor with at least one dimension'

    @checked
    def __init__(self, num_frames: Annotated[int, Range(least=2)] = 4, paths: Sequence[str] | None = None):
        """
        Args:
          num_frames: the number of joined observations, at least 2.
          paths: the paths of the parts to stack; None stacks a single observation, or the images of
            a nest.
        """
        super().__init__(paths)
        self.history_steps = num_frames - 1

    def fits(self, spec: tf.TensorSpec) -> bool:
        """See `ObservationTransform`."""
        return bool(spec.shape.rank)

    def transform_specs(self, specs: EnvironmentSpecs) -> EnvironmentSpecs:
        """See `Transform`.

        Raises:
          ValueError: if nothing is to be stacked.
        """
        if self.paths is None and tf.nest.is_nested(specs.observation):
            self.paths = tuple(path for path, leaf in named_leaves(specs.observation).items() if leaf.shape.rank == 3)
            if not self.paths:
                raise UserValueError(
                    f'got the observation {specs.observation} for FrameStack; need an image in it, or FrameStack.paths'
                )
        transformed = super().transform_specs(specs)
        frames = tuple(
            tf.TensorSpec((self.history_steps, *spec.shape), spec.dtype, 'frames') for spec in self.specs.values()
        )
        self.state_spec: types.NestedTensorSpec = {'frames': frames, 'started': tf.TensorSpec((), tf.bool, 'started')}
        return transformed

    def transform_leaf_spec(self, spec: tf.TensorSpec) -> tf.TensorSpec:
        """See `ObservationTransform`."""
        num_frames = self.history_steps + 1
        shape = (*spec.shape[:-1], num_frames * spec.shape[-1])
        return with_shape(spec, shape, lambda bound: np.concatenate([bound] * num_frames, axis=-1))

    def transform_time_step(self, time_step: ts.TimeStep, state: Any) -> tuple[ts.TimeStep, Any]:
        """See `Transform`."""
        leaves, kept = tf.nest.flatten(time_step.observation), []
        for i, frames in zip(self.specs, state['frames'], strict=True):
            newest = leaves[i][:, tf.newaxis]
            started = tf.reshape(state['started'], [-1, *[1] * (newest.shape.rank - 1)])
            stack = tf.concat([tf.where(started, frames, newest), newest], axis=1)
            leaves[i] = tf.concat(tf.unstack(stack, axis=1), axis=-1)
            kept.append(stack[:, 1:])
        observation = tf.nest.pack_sequence_as(time_step.observation, leaves)
        state = {'frames': tuple(kept), 'started': tf.ones_like(state['started'])}
        return time_step._replace(observation=observation), state

    def transform_experience(self, experience: Any) -> Any:
        """See `Transform`. Removes the rows of the history."""
        is_first = experience.is_first()
        index = tf.broadcast_to(tf.range(tf.shape(is_first)[1]), tf.shape(is_first))
        indices = [index]
        for _ in range(self.history_steps):  # one step back, but not beyond the episode's first row
            stays = tf.gather(is_first, index, batch_dims=1) | (index == 0)
            index = tf.where(stays, index, index - 1)
            indices.insert(0, index)
        leaves = tf.nest.flatten(experience.observation)
        for i in self.specs:
            leaves[i] = tf.concat([tf.gather(leaves[i], index, batch_dims=1) for index in indices], axis=-1)
        observation = tf.nest.pack_sequence_as(experience.observation, leaves)
        stacked = experience._replace(observation=observation)
        return tf.nest.map_structure(lambda leaf: leaf[:, self.history_steps :], stacked)
