"""Actor: steps a batched environment with a policy, as one compiled program,
and passes trajectories to observers.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tf_agents.policies import tf_policy
from tf_agents.specs import tensor_spec
from tf_agents.trajectories import policy_step, trajectory
from tf_agents.trajectories import time_step as ts

from tflearn.actors.episode_metrics import EXECUTED_ACTION
from tflearn.core.action_mask import mask_of
from tflearn.core.errors import UserValueError
from tflearn.core.layout import ColumnLayout
from tflearn.core.resumable import Resumable
from tflearn.core.types import ActingPolicy, BatchedEnvironment, check_batch

POLICY_STATE = 'policy_state'
_SEED_STRIDE = 1_000_003  # between the seeds of two parts; a prime
# A run that is resumed repeats fewer, in some seconds; the program of each seed keeps 0.4 MB.
_CALLS_BY_SEED = 100_000


def with_policy_state(info: Any, state: Any) -> dict[str, Any]:
    """Returns a policy's info, `()` or a dictionary, with its state added:
    nests of arrays, or of specs.

    So training can start in the middle of an episode (Kapturowski et al. 2019, "Recurrent
    Experience Replay in Distributed Reinforcement Learning", ICLR, section 3). It is the state
    before the row's step. Agents of TF-Agents ignore keys that are not in their own spec of the
    info.

    Raises:
      ValueError: if there is no state, or the info is of another kind.
    """
    if not tf.nest.flatten(state):
        raise UserValueError(
            'got a policy without a state to be stored; need a recurrent one; set store_policy_state=False'
        )
    if isinstance(info, Mapping) and POLICY_STATE not in info:
        return {**info, POLICY_STATE: state}
    if not isinstance(info, tuple) or info:
        raise UserValueError(
            f'got the policy info {info}; need () or a dictionary without {POLICY_STATE!r}, to store the policy state '
            'there; set store_policy_state=False'
        )
    return {POLICY_STATE: state}


def state_before_step(step_type: np.ndarray, state: Any, initial: Any) -> Any:
    """Returns the state before a step.

    Args:
      step_type: int32 [B].
      state: the state that was passed to the policy, a nest of tensors [B, ...].
      initial: the state at an episode's start, the same nest, which replaces `state` where a step
        is FIRST.

    Returns:
      Nest of arrays [B, ...].
    """
    first = step_type == 0
    if not first.any():
        return tf.nest.map_structure(lambda leaf: leaf.numpy(), state)

    def of_leaf(leaf: tf.Tensor, initial_leaf: tf.Tensor) -> np.ndarray:
        columns = first.reshape(first.shape + (1,) * (leaf.shape.rank - 1))
        return np.where(columns, initial_leaf.numpy(), leaf.numpy())

    return tf.nest.map_structure(of_leaf, state, initial)


class CompiledPolicy:
    """A TF-Agents policy for batches of one size, traced once, and again whenever its seed changes.
    Each call reads the policy's current variables.

    `TFPolicy.action` resets the policy state where a time step is FIRST.

    Attributes:
      num_calls: how often it has acted, which is all that the state of its random numbers depends
        on.
    """

    # TensorFlow's operations keep that state to themselves: it is set by acting so often again. A
    # seed of its own for each part of the calls limits how often that is.

    def __init__(self, policy: tf_policy.TFPolicy, batch_size: int):
        """Traces the policy."""
        self.batch_size, self.num_calls = batch_size, 0
        self.time_step_spec = policy.time_step_spec
        self._policy = policy
        # Each array that becomes a tensor takes about four microseconds.
        self._joined = ColumnLayout(policy.time_step_spec.observation)
        self._trace()

    def _trace(self) -> None:
        policy, part = self._policy, self.num_calls // _CALLS_BY_SEED
        given = policy.time_step_spec._replace(observation=self._joined.specs)
        inputs = tensor_spec.add_outer_dim((given, policy.policy_state_spec), self.batch_size)
        structure: list[Any] = []

        def program(*leaves: tf.Tensor) -> list[tf.Tensor]:
            graph = tf.compat.v1.get_default_graph()
            self._is_seeded = graph.seed is not None
            if self._is_seeded:
                graph.seed = (graph.seed + part * _SEED_STRIDE) % 2**31
            time_step, state = tf.nest.pack_sequence_as(inputs, leaves)
            observation = self._joined.divide(time_step.observation)
            step = policy.action(time_step._replace(observation=observation), state)
            structure[:] = step
            return tf.nest.flatten(list(step))

        self._program = tf.function(program, autograph=False).get_concrete_function(*tf.nest.flatten(inputs))
        parts = [tf.nest.map_structure(lambda _: None, part) for part in structure]
        self._packers = [_packer(part) for part in parts]
        self._are_states = [k == 1 for k, part in enumerate(parts) for _ in tf.nest.flatten(part)]
        # Constant, but slow to look up.
        self._name, self._captures = self._program.name, self._program.captured_inputs
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
        """Returns (action, policy state): nests of numpy arrays [B, ...],
        and of tensors for the next call.
        """
        step = self.step(time_step, policy_state)
        return step.action, step.state

    def step(self, time_step: ts.TimeStep, policy_state: Any) -> policy_step.PolicyStep:
        """Acts on time steps [B].

        Args:
          time_step: numpy arrays [B, ...] of the policy's time step spec. They are not checked
            here; see `check`.

        Returns:
          PolicyStep: action and info are nests of numpy arrays [B, ...]; the state is a nest of
            tensors.
        """
        if self._is_seeded and self.num_calls and self.num_calls % _CALLS_BY_SEED == 0:
            self._trace()
        self.num_calls += 1
        if self._joined.joins:
            time_step = time_step._replace(observation=self._joined.join_arrays(time_step.observation))
        leaves = [
            leaf if unread is None else unread
            for leaf, unread in zip(tf.nest.flatten(time_step), self._unread, strict=True)
        ]
        # The operation behind a function call. Calling `self._program` itself first binds and
        # checks the arguments in Python: 270 us instead of 40 us for an MLP of 100-50.
        outputs = tf.raw_ops.StatefulPartitionedCall(
            args=[*leaves, *tf.nest.flatten(policy_state), *self._captures], Tout=self._output_dtypes, f=self._name
        )
        pairs = zip(outputs, self._are_states, strict=True)
        values = iter([output if is_state else output.numpy() for output, is_state in pairs])
        return policy_step.PolicyStep(*[pack(values) for pack in self._packers])

    def go_on(self, num_calls: int, time_step: ts.TimeStep, policy_state: Any) -> None:
        """Makes the next calls draw the random numbers that they would draw after `num_calls` calls;
        acts on the given time step meanwhile.
        """
        self.num_calls = max(self.num_calls, num_calls // _CALLS_BY_SEED * _CALLS_BY_SEED)
        while self._is_seeded and self.num_calls < num_calls:
            self.step(time_step, policy_state)
        self.num_calls = max(self.num_calls, num_calls)

    def check(self, time_step: ts.TimeStep) -> None:
        """Checks that time steps [B] have the spec and the batch size that the policy was compiled for.

        Raises:
          ValueError: naming the leaf that differs.
        """
        check_batch(time_step, self.time_step_spec, self.batch_size, 'time step')


def _packer(structure: Any) -> Callable[[Iterator[Any]], Any]:
    """Returns a function that takes a nest's leaves, in the order of `tf.nest`,
    whose own takes 20 us a call.
    """
    if isinstance(structure, Mapping):
        parts = {key: _packer(structure[key]) for key in sorted(structure)}
        return lambda leaves: {key: pack(leaves) for key, pack in parts.items()}
    if isinstance(structure, tuple | list):
        kind: Any = getattr(structure, '_make', type(structure))
        packers = [_packer(part) for part in structure]
        return lambda leaves: kind([pack(leaves) for pack in packers])
    return next


Observer = Callable[[trajectory.Trajectory], None]
SECS = ('policy_secs', 'environment_secs', 'writing_secs')  # the parts of an actor's time


class Actor(Resumable):
    """Acts in all environments of a batch: one compiled policy call and one environment step at a time.

    If an environment reports that it executed another action than the policy's
    (`BatchedEnvironment.info`), that action is recorded; the policy info, such as the
    log-probability, remains that of the policy's action.

    Attributes:
      env_steps: the number of environment steps, without boundary rows and steps in which an
        environment failed.
      secs: what the parts of `SECS` have taken since the start [s]; writing is what the observers
        do, and wait for.
    """

    _KEPT = ('env_steps', '_time_step', '_checked_executed_action', '_num_steps')

    def __init__(
        self,
        environment: BatchedEnvironment,
        policy: tf_policy.TFPolicy | ActingPolicy,
        observers: Sequence[Observer] = (),
        stores_policy_state: bool = False,
    ):
        """Compiles the policy for the environment's batch.

        Args:
          environment: the environments, which the caller closes.
          policy: the policy, whose variables may change between two steps.
          observers: functions that are called, in this order, with the Trajectory of each step:
            numpy arrays [B, ...], which they may keep and must not change. A row whose step type is
            LAST is the boundary between two episodes: its action had no effect, its reward is 0,
            its discount 1 and its next step type FIRST. FIRST is also the next step type of a row
            in which an environment failed; only the observation of such a row is valid.
          stores_policy_state: whether to add the policy state before each step to the policy info.
        """
        self.env_steps, self.secs, self._lap_at = 0, dict.fromkeys(SECS, 0.0), 0.0
        self._environment = environment
        self._observers = tuple(observers)
        self._stores_policy_state = stores_policy_state
        self._checked_executed_action = False
        self._time_step: ts.TimeStep | None = None
        self._policy_state: Any = ()
        self._initial_state: Any = ()
        self._num_steps = 0
        self._action_mask = mask_of(policy)
        self._policy = self._compiled(policy)

    @property
    def time_step(self) -> ts.TimeStep | None:
        """The newest time step [B], that after the newest row; None before the first."""
        return self._time_step

    def set_policy(self, policy: tf_policy.TFPolicy | ActingPolicy) -> None:
        """Replaces the policy by one of the same specs, which continues with the policy state."""
        self._action_mask = mask_of(policy) or self._action_mask
        self._policy = self._compiled(policy)

    def content(self) -> dict[str, Any]:
        """See `Resumable`."""
        state = tf.nest.map_structure(np.asarray, (self._policy_state, self._initial_state))
        return {**super().content(), 'states': state, 'num_calls': getattr(self._policy, 'num_calls', 0)}

    def set_content(self, content: Mapping[str, Any]) -> None:
        """See `Resumable`; the policy goes on with the same random numbers."""
        super().set_content(content)
        if self._time_step is None:
            return
        self._policy_state, self._initial_state = tf.nest.map_structure(tf.constant, content['states'])
        if isinstance(self._policy, CompiledPolicy):
            self._policy.go_on(content['num_calls'], self._time_step, self._policy_state)

    def _compiled(self, policy: tf_policy.TFPolicy | ActingPolicy) -> ActingPolicy:
        if isinstance(policy, tf_policy.TFPolicy):
            return CompiledPolicy(policy, self._environment.num_environments)
        return policy

    def run(self, num_steps: int, *observers: Observer) -> None:
        """Takes `num_steps` batched steps, from where the last call stopped (the first call resets the environment).

        An exception of an observer propagates; its step counts as taken.

        Args:
          observers: further observers, of these steps only; they come last.

        Raises:
          ValueError: if the environment's time steps do not have the policy's spec, or an executed
            action does not have the action's spec, or an environment's mask has no legal action.
        """
        if self._time_step is None:
            time_step = self._environment.reset()
            self._policy.check(time_step)
            self._time_step = time_step
            self._policy_state = self._initial_state = self._policy.initial_state(self._environment.num_environments)
        for _ in range(num_steps):
            self._lap_at = time.perf_counter()
            row = self._step(self._time_step)
            for observer in (*self._observers, *observers):
                observer(row)
            self._lap('writing_secs')

    def _lap(self, part: str) -> None:
        """Adds the time since the last call, or since the step began, to a part of `secs`."""
        now = time.perf_counter()
        self.secs[part] += now - self._lap_at
        self._lap_at = now

    def _step(self, time_step: ts.TimeStep) -> trajectory.Trajectory:
        if self._action_mask is not None:
            self._action_mask.check(time_step, self._num_steps)
        self._num_steps += 1
        state = self._policy_state
        action, self._policy_state, info = self._policy.step(time_step, state)
        self._lap('policy_secs')
        self._time_step = next_time_step = self._environment.step(action)
        self._lap('environment_secs')
        # FIRST is 0; no action leads to it.
        self.env_steps += int(np.count_nonzero(next_time_step.step_type))
        reported = self._environment.info
        if reported and EXECUTED_ACTION in reported:
            action = reported[EXECUTED_ACTION]
            if not self._checked_executed_action:
                environment = self._environment
                check_batch(action, environment.specs.action, environment.num_environments, 'executed action')
                self._checked_executed_action = True
        if self._stores_policy_state:
            info = with_policy_state(info, state_before_step(time_step.step_type, state, self._initial_state))
        return trajectory.Trajectory(
            step_type=time_step.step_type,
            observation=time_step.observation,
            action=action,
            policy_info=info,
            next_step_type=next_time_step.step_type,
            reward=next_time_step.reward,
            discount=next_time_step.discount,
        )
