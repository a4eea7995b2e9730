"""Disagreement: how far an ensemble of critics disagrees on the action that a policy takes, in the policy's info."""

from typing import Any

import tensorflow as tf
from tf_agents.policies import greedy_policy, tf_policy
from tf_agents.trajectories import policy_step
from tf_agents.trajectories import time_step as ts
from tf_agents.typing import types

from tflearn.core.agent_data import WrappedAgent
from tflearn.core.errors import UserValueError

_NAME = 'disagreement'


class DisagreementPolicy(tf_policy.TFPolicy):
    """A policy with the info 'disagreement', float32 [B]: an agent's `disagreement` on the actions."""

    def __init__(self, policy: tf_policy.TFPolicy, agent: Any):
        """Takes the agent's policy, before any change of observations or actions."""
        super().__init__(
            policy.time_step_spec,
            policy.action_spec,
            policy_state_spec=policy.policy_state_spec,
            info_spec={_NAME: tf.TensorSpec((), tf.float32, _NAME)},
            clip=False,
            observation_and_action_constraint_splitter=policy.observation_and_action_constraint_splitter,
            name=policy.name,
        )
        self._wrapped_policy = policy
        self._agent = lambda: agent

    def _get_initial_state(self, batch_size: types.Int) -> Any:
        return self._wrapped_policy.get_initial_state(batch_size)

    def _action(self, time_step: ts.TimeStep, policy_state: Any, seed: Any) -> policy_step.PolicyStep:
        step = self._wrapped_policy.action(time_step, policy_state, seed)
        return step._replace(info={_NAME: self._agent().disagreement(time_step.observation, step.action)})

    def _distribution(self, time_step: ts.TimeStep, policy_state: Any) -> policy_step.PolicyStep:
        raise NotImplementedError('a policy with the disagreement of critics has actions only')


def added(agent: Any, policy: tf_policy.TFPolicy) -> tf_policy.TFPolicy:
    """Returns the greedy policy of an agent with the disagreement of its critics.

    Raises:
      ValueError: if the agent has no critics of this package's, or memory.
    """
    inner = agent
    while isinstance(inner, WrappedAgent):
        inner = vars(inner)['_agent']
    if not hasattr(inner, 'disagreement') or tf.nest.flatten(inner.policy.policy_state_spec):
        raise UserValueError(
            f'got ExportOptions.disagreement=True with a {type(inner).__name__}; need an agent with several critics '
            'and without memory, such as those of sac, td3, tqc, droq, cross_q, awac and discrete_sac'
        )
    around = []
    while isinstance(policy, greedy_policy.GreedyPolicy) or hasattr(policy, 'with_wrapped'):
        around += [] if isinstance(policy, greedy_policy.GreedyPolicy) else [policy]
        policy = policy.wrapped_policy
    made: tf_policy.TFPolicy = DisagreementPolicy(greedy_policy.GreedyPolicy(policy), inner)
    for each in reversed(around):
        made = each.with_wrapped(made)
    return made
