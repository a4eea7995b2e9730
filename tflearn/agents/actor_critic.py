"""ActorCriticAgent: an actor, and critics of its actions with targets that follow, as of SAC, AWAC and TD3."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from tf_agents.networks import network as network_lib
from tf_agents.policies import actor_policy, tf_policy

from tflearn.agents import parts
from tflearn.agents.parts import Problem
from tflearn.core.action_mask import ActionMask, make_mask
from tflearn.networks import critics as critics_lib
from tflearn.networks import networks
from tflearn.networks.targets import Targets
from tflearn.optimization.optimizers import Optimizer
from tflearn.optimization.transitions import Transitions


class Networks(NamedTuple):
    """The agent's networks.

    Attributes:
      actor: the policy.
      critics: the trained critics.
      targets: the critics of the targets; None if there are no others.
      mask: divides observations into the mask of legal actions and the rest; None takes them as they are.
    """

    actor: network_lib.Network
    critics: critics_lib.Critics
    targets: Any
    mask: ActionMask | None = None

    def make_targets(self, tau: float, period: int = 1) -> Targets:
        """Returns what lets the critics of the targets follow; see `Targets`."""
        return Targets([(self.critics, self.targets)], tau, period)


def make_networks(problem: Problem, algorithm: str, action_mask: str | None) -> Networks:
    """Makes an actor of one action, discrete or a vector of floats, and two critics of (256, 256) units by default.

    Raises:
      ValueError: if the experience is a queue, or the network has what the algorithm has no use for.
    """
    parts.check_experience(problem.experience, algorithm)
    specs, network = problem.specs, problem.network.completed(problem.specs, algorithm, fc_layer_params=(256, 256))
    mask, observation_spec = make_mask(specs, action_mask)
    actor = networks.actor(observation_spec, specs.action, network, masked=mask is not None)
    actor.create_variables()
    return Networks(actor, *critics_lib.make(observation_spec, specs.action, network), mask)


class ActorCriticAgent(parts.PartsAgent):
    """The parts are `critic`, `actor`, and what an algorithm adds."""

    _clips = True  # actions to their bounds, before they are stored
    _policy_delay = 1  # train steps between two steps of all parts but the critics

    def __init__(
        self,
        problem: Problem,
        networks: Networks,
        optimizers: Mapping[str, Optimizer],
        targets: Targets | None,
        loss: Any,
        collect_policy: tf_policy.TFPolicy | None = None,
    ):
        """Makes the agent, within the strategy's scope; see `PartsAgent` for what is not explained here.

        Args:
          problem: what the agent is made for.
          networks: the networks.
          optimizers: the optimizers of the parts.
          targets: what follows the trained networks; None is for an algorithm without target networks.
          loss: the losses' settings.
          collect_policy: the policy that collects; None is the actor's.
        """
        self._actor, self._critics, self._target_critics, self._mask = networks
        self._options = loss
        policy = actor_policy.ActorPolicy(
            problem.specs.time_step,
            problem.specs.action,
            self._actor,
            clip=self._clips,
            observation_and_action_constraint_splitter=self._mask,
        )
        super().__init__(problem, collect_policy or policy, optimizers, targets, policy)

    def _trained(self, part: str) -> list[Any]:
        return [self._critics if part == 'critic' else self._actor]

    def _due(self, part: str) -> tf.Tensor | None:
        if part == 'critic' or self._policy_delay == 1:
            return None
        return tf.equal((self.train_step_counter + 1) % self._policy_delay, 0)

    def _seen(self, observation: Any) -> tuple[Any, Any]:
        """Returns what the networks see of an observation, and its mask of legal actions, or None."""
        return (observation, None) if self._mask is None else self._mask(observation)

    def _distribution(self, observation: Any, training: bool = False) -> Any:
        """Returns what the actor makes of observations [R, ...]."""
        seen, mask = self._seen(observation)
        masked = {} if mask is None else {'mask': mask}
        return self._actor(seen, step_type=(), network_state=(), training=training, **masked)[0]

    def _bounds(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns the least and the greatest numbers of an action of floats, joined to vectors of float32."""
        leaves = tf.nest.flatten(self.action_spec)
        low, high = (
            np.concatenate([np.broadcast_to(getattr(leaf, bound), leaf.shape).ravel() for leaf in leaves])
            for bound in ('minimum', 'maximum')
        )
        return low.astype(np.float32), high.astype(np.float32)


def critic_loss(batch: Transitions, bootstraps: tf.Tensor, values: tf.Tensor) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
    """Returns the squared errors of critics, summed over them, float32 [R], and their metrics.

    Args:
      batch: the transitions.
      bootstraps: float32 [R], the values of the observations that follow.
      values: float32 [R, N], the critics' values of the actions that were taken.
    """
    targets = tf.stop_gradient(batch.reward + batch.discount * bootstraps)
    errors = targets[:, tf.newaxis] - values
    losses = tf.reduce_sum(tf.square(errors), axis=1)
    return losses, {'critic_loss': losses, parts.ERRORS: tf.reduce_mean(tf.abs(errors), axis=1)}
