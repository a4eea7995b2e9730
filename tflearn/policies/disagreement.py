"""Disagreement: how far an ensemble of critics disagrees on the action that a policy takes,
in the policy's info.
"""

from typing import Any

import tensorflow as tf
from tf_agents.policies import greedy_policy, tf_policy
from tf_agents.trajectories import policy_step
from tf_agents.trajectories import time_step as ts

from tflearn.core.agent_data import innermost
from tflearn.core.errors import UserValueError

_NAME = 'disagreement'


class DisagreementPolicy(tf_policy.TFPolicy):
    """A policy without memory with the info 'disagreement', float32 [B]:
    an agent's `disagreement` on the actions.
    """

    def __init__(self, policy: tf_policy.TFPolicy, agent: Any):
        """Takes the agent's policy, before any change of observations or actions."""
        super().__init__(
            policy.time_step_spec,
            policy.action_spec,
            info_spec={_NAME: tf.TensorSpec((), tf.float32, _NAME)},
            clip=False,
            observation_and_action_constraint_splitter=policy.observation_and_action_constraint_splitter,
            name=policy.name,
        )
        self._wrapped_policy = policy
        self._agent = lambda: agent

    def _action(self, time_step: ts.TimeStep, policy_state: Any, seed: Any) -> policy_step.PolicyStep:
        step = self._wrapped_policy.action(time_step, policy_state, seed)
        return step._replace(info={_NAME: self._agent().disagreement(time_step.observation, step.action)})


def added(agent: Any, policy: tf_policy.TFPolicy) -> tf_policy.TFPolicy:
    """Returns the greedy policy of an agent with the disagreement of its critics.

    Raises:
      ValueError: if the agent has no critics of this package's, or memory.
    """
    inner = innermost(agent)
    if not hasattr(inner, 'disagreement') or tf.nest.flatten(inner.policy.policy_state_spec):
        raise UserValueError(
            f'got ExportOptions.disagreement=True with a {type(inner).__name__}; need an agent with several critics '
            'and without memory, such as those of sac, td3, tqc, droq, cross_q, awac and discrete_sac'
        )
    return _around(policy, inner)


def _around(policy: tf_policy.TFPolicy, agent: Any) -> tf_policy.TFPolicy:
    if isinstance(policy, greedy_policy.GreedyPolicy):
        return _around(policy.wrapped_policy, agent)
    if hasattr(policy, 'with_wrapped'):  # it converts observations or actions
        return policy.with_wrapped(_around(policy.wrapped_policy, agent))
    return DisagreementPolicy(greedy_policy.GreedyPolicy(policy), agent)
