"""What agents have in common whose critics, actor and other parts have losses of their own."""

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf
from tf_agents.agents import tf_agent
from tf_agents.policies import greedy_policy, tf_policy

from tflearn.core.experience import Experience
from tflearn.core.types import EnvironmentSpecs
from tflearn.networks.twin_critics import WithTargets
from tflearn.optimization import optimizers


class CriticsAgent(tf_agent.TFAgent):
    """Minimizes the losses of its parts in turn; then the critics' targets follow."""

    def __init__(
        self,
        specs: EnvironmentSpecs,
        train_step: tf.Variable,
        experience: Experience,
        policy: tf_policy.TFPolicy,
        critics: WithTargets,
    ):
        """Makes the agent, within the strategy's scope; `policy` collects, and the greedy one is made of it."""
        super().__init__(
            specs.time_step,
            specs.action,
            policy=greedy_policy.GreedyPolicy(policy),
            collect_policy=policy,
            train_sequence_length=experience.slicing.sequence_length,
            train_step_counter=train_step,
        )
        self._critics: Any = critics

    def _parts(self, experience: Any, weights: tf.Tensor | None, training: bool) -> list[optimizers.PartialLoss]:
        """Returns the losses of the parts: functions that return this replica's share, and metrics."""
        raise NotImplementedError

    def _trained(self) -> Sequence[tuple[Sequence[tf.Variable], optimizers.Optimizer]]:
        """Returns, for each of the parts, the variables that its loss trains, and their optimizer."""
        raise NotImplementedError

    def _initialize(self) -> None:
        self._critics.copy_to_targets()

    def _train(self, experience: Any, weights: tf.Tensor | None) -> tf_agent.LossInfo:
        losses = optimizers.minimize_in_turn(self._parts(experience, weights, True), self._trained())
        self.train_step_counter.assign_add(1)
        self._critics.update_targets()
        return tf_agent.LossInfo(*losses)

    def _loss(self, experience: Any, weights: tf.Tensor | None = None, training: bool = False) -> tf_agent.LossInfo:
        return tf_agent.LossInfo(*optimizers.total([loss() for loss in self._parts(experience, weights, training)]))


class EntropyAgent(CriticsAgent):
    """One with an actor, and a temperature that keeps the entropy of its actions near a target, as SAC's."""

    def __init__(
        self,
        specs: EnvironmentSpecs,
        train_step: tf.Variable,
        experience: Experience,
        policy: tf_policy.TFPolicy,
        networks: tuple[Any, WithTargets],
        initial_log_alpha: float,
        made: Mapping[str, optimizers.Optimizer],
    ):
        """Makes the agent; see `CriticsAgent`.

        Args:
          specs: the environment's specs.
          train_step: int64 scalar, counts gradient steps.
          experience: the experience.
          policy: the policy that collects.
          networks: the actor, and the critics.
          initial_log_alpha: the logarithm of the temperature at first.
          made: the optimizers by their names: 'critic', 'actor', 'alpha'.
        """
        actor, critics = networks
        super().__init__(specs, train_step, experience, policy, critics)
        self._actor: Any = actor
        self._log_alpha = tf.Variable(initial_log_alpha, dtype=tf.float32, name='log_alpha')
        self._critic_optimizer, self._actor_optimizer, self._alpha_optimizer = (
            made[name] for name in ('critic', 'actor', 'alpha')
        )

    def _trained(self) -> Sequence[tuple[Sequence[tf.Variable], optimizers.Optimizer]]:
        return (
            (self._critics.trainable_variables, self._critic_optimizer),
            (self._actor.trainable_variables, self._actor_optimizer),
            ([self._log_alpha], self._alpha_optimizer),
        )
