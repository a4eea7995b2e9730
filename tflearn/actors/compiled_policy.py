"""CompiledPolicy: a TF-Agents policy as one compiled program that takes numpy arrays."""

from typing import Any

import tensorflow as tf
from tf_agents.policies import tf_policy
from tf_agents.specs import tensor_spec
from tf_agents.trajectories import policy_step
from tf_agents.trajectories import time_step as ts

from tflearn.core.errors import UserValueError
from tflearn.core.layout import ColumnLayout
from tflearn.core.types import check_batch


class CompiledPolicy:
    """A TF-Agents policy for batches of one size, traced once. Each call reads the policy's current variables.

    `TFPolicy.action` resets the policy state where a time step is FIRST.

    Attributes:
      num_calls: how often it has acted, which is all that the state of its random numbers depends on.
    """

    def __init__(self, policy: tf_policy.TFPolicy, batch_size: int):
        """Traces the policy."""
        self.batch_size, self.num_calls = batch_size, 0
        self.time_step_spec = policy.time_step_spec
        self._policy = policy
        # Each array that becomes a tensor takes about four microseconds.
        self._joined = ColumnLayout(policy.time_step_spec.observation)
        given = policy.time_step_spec._replace(observation=self._joined.specs)
        inputs = tensor_spec.add_outer_dim((given, policy.policy_state_spec), batch_size)
        structure: list[Any] = []

        def program(*leaves: tf.Tensor) -> list[tf.Tensor]:
            time_step, state = tf.nest.pack_sequence_as(inputs, leaves)
            observation = self._joined.divide(time_step.observation)
            step = policy.action(time_step._replace(observation=observation), state)
            structure[:] = step
            return tf.nest.flatten(list(step))

        self._program = tf.function(program, autograph=False).get_concrete_function(*tf.nest.flatten(inputs))
        self._structure = [tf.nest.map_structure(lambda _: None, part) for part in structure]
        self._name, self._captures = self._program.name, self._program.captured_inputs  # constant, but slow to look up
        self._output_dtypes = [output.dtype for output in self._program.outputs]
        # Inputs that the program never reads (usually rewards) are not converted at each call.
        leaves = tf.nest.flatten(inputs[0])
        self._unread = [
            None if placeholder.consumers() else tf.zeros(leaf.shape, leaf.dtype)
            for leaf, placeholder in zip(leaves, self._program.inputs[: len(leaves)], strict=True)
        ]

    def initial_state(self, batch_size: int) -> Any:
        """Returns the policy state [B, ...] before the first step.

        Raises:
          ValueError: if the batch size is not the program's.
        """
        if batch_size != self.batch_size:
            raise UserValueError(
                f'got batch_size={batch_size}; need {self.batch_size}, as this policy was compiled for'
            )
        return self._policy.get_initial_state(batch_size)

    def action(self, time_step: ts.TimeStep, policy_state: Any) -> tuple[Any, Any]:
        """Returns (action, policy state): nests of numpy arrays [B, ...], and of tensors for the next call."""
        step = self.step(time_step, policy_state)
        return step.action, step.state

    def step(self, time_step: ts.TimeStep, policy_state: Any) -> policy_step.PolicyStep:
        """Acts on time steps [B].

        Args:
          time_step: numpy arrays [B, ...] of the policy's time step spec. They are not checked here; see `check`.

        Returns:
          PolicyStep: action and info are nests of numpy arrays [B, ...]; the state is a nest of tensors.
        """
        self.num_calls += 1
        if self._joined.joins:
            time_step = time_step._replace(observation=self._joined.join_arrays(time_step.observation))
        leaves = [
            leaf if unread is None else unread
            for leaf, unread in zip(tf.nest.flatten(time_step), self._unread, strict=True)
        ]
        # The operation behind a function call. Calling `self._program` itself first binds and checks the arguments in
        # Python: 270 us instead of 40 us for an MLP of 100-50.
        outputs = tf.raw_ops.StatefulPartitionedCall(
            args=[*leaves, *tf.nest.flatten(policy_state), *self._captures], Tout=self._output_dtypes, f=self._name
        )
        action, state, info = self._pack(outputs)
        return policy_step.PolicyStep(_numpy(action), state, _numpy(info))

    def check(self, time_step: ts.TimeStep) -> None:
        """Checks that time steps [B] have the spec and the batch size that the policy was compiled for.

        Raises:
          ValueError: naming the leaf that differs.
        """
        check_batch(time_step, self.time_step_spec, self.batch_size, 'time step')

    def _pack(self, outputs: list[tf.Tensor]) -> list[Any]:
        if len(outputs) == 1 and self._structure[0] is None:  # the usual case: one action, no state, no info
            return [outputs[0], *self._structure[1:]]
        return tf.nest.pack_sequence_as(self._structure, outputs)


def _numpy(nest: Any) -> Any:
    if isinstance(nest, tf.Tensor):
        return nest.numpy()
    return tf.nest.map_structure(lambda leaf: leaf.numpy(), nest) if nest else nest
