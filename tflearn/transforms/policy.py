"""TransformedPolicy: a policy that takes the environment's observations and acts on the transformed ones."""

from typing import Any

from tf_agents.policies import greedy_policy, tf_policy
from tf_agents.trajectories import policy_step
from tf_agents.trajectories import time_step as ts
from tf_agents.typing import types

from tflearn.core.action_mask import ActionMask
from tflearn.core.types import EnvironmentSpecs
from tflearn.transforms.pipeline import Pipeline


class TransformedPolicy(tf_policy.TFPolicy):
    """Transforms time steps, then asks another policy.

    If a transform keeps something between two steps, such as the newest frames, the policy state is a dictionary of
    'transforms' and 'policy', the other policy's state; else it is the latter.
    """

    def __init__(self, policy: tf_policy.TFPolicy, specs: EnvironmentSpecs, pipeline: Pipeline):
        """
        Args:
          policy: the policy, for transformed specs.
          specs: the environment's specs.
          pipeline: the transforms, made for `specs`.
        """
        mask = policy.observation_and_action_constraint_splitter
        state_spec = policy.policy_state_spec
        if pipeline.state_spec:
            state_spec = {'transforms': pipeline.state_spec, 'policy': state_spec}
        super().__init__(
            specs.time_step,
            policy.action_spec,
            policy_state_spec=state_spec,
            info_spec=policy.info_spec,
            clip=False,
            emit_log_probability=policy.emit_log_probability,
            observation_and_action_constraint_splitter=(
                ActionMask(specs, mask.path) if isinstance(mask, ActionMask) else None
            ),
            name=policy.name,
        )
        # In a function, since TensorFlow would wrap lists and dictionaries in attributes.
        self._parts = lambda: (specs, pipeline)
        self._wrapped_policy = policy
        self._transforms_variables = pipeline.variables  # an attribute, so that it is one of `variables()`

    @property
    def wrapped_policy(self) -> tf_policy.TFPolicy:
        """The policy that acts on transformed observations."""
        return self._wrapped_policy

    def with_wrapped(self, policy: tf_policy.TFPolicy) -> 'TransformedPolicy':
        """Returns a policy with the same transforms that asks `policy`."""
        return TransformedPolicy(policy, *self._parts())

    def _get_initial_state(self, batch_size: types.Int) -> Any:
        state = self._wrapped_policy.get_initial_state(batch_size)
        if not self._parts()[1].state_spec:
            return state
        return {'transforms': super()._get_initial_state(batch_size)['transforms'], 'policy': state}

    def _action(self, time_step: ts.TimeStep, policy_state: Any, seed: Any) -> policy_step.PolicyStep:
        time_step, states, policy_state = self._transform(time_step, policy_state)
        return self._with_states(self._wrapped_policy.action(time_step, policy_state, seed), states)

    def _distribution(self, time_step: ts.TimeStep, policy_state: Any) -> policy_step.PolicyStep:
        time_step, states, policy_state = self._transform(time_step, policy_state)
        return self._with_states(self._wrapped_policy.distribution(time_step, policy_state), states)

    def _transform(self, time_step: ts.TimeStep, policy_state: Any) -> tuple[ts.TimeStep, Any, Any]:
        _, pipeline = self._parts()
        states, policy_state = _divide(policy_state) if pipeline.state_spec else ((), policy_state)
        time_step, states = pipeline.transform_time_step(time_step, states)
        return time_step, states, policy_state

    def _with_states(self, step: policy_step.PolicyStep, states: Any) -> policy_step.PolicyStep:
        if not self._parts()[1].state_spec:
            return step
        return step._replace(state={'transforms': states, 'policy': step.state})


def _divide(state: Any) -> tuple[Any, Any]:
    return state['transforms'], state['policy']


def transformed(policy: tf_policy.TFPolicy, specs: EnvironmentSpecs, pipeline: Pipeline) -> tf_policy.TFPolicy:
    """Returns `policy` for the environment's observations; a greedy one remains a greedy policy of another one."""
    if isinstance(policy, greedy_policy.GreedyPolicy):
        return greedy_policy.GreedyPolicy(transformed(policy.wrapped_policy, specs, pipeline))
    return TransformedPolicy(policy, specs, pipeline)
