"""Two critics and their targets: values of one discrete action, or of a vector of continuous ones.

Fujimoto et al. 2018, "Addressing Function Approximation Error in Actor-Critic Methods" (arXiv 1802.09477): the lesser
of two values is overestimated less; targets follow their critics slowly.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf
from tf_agents.typing import types

from tflearn.core.errors import UserValueError
from tflearn.networks import networks, spec_checks


def check_action(spec: types.NestedTensorSpec, algorithm: str) -> None:
    """Checks the action's spec.

    Args:
      spec: the action's spec.
      algorithm: the algorithm's name, for the message.

    Raises:
      ValueError: if it is neither one discrete action with bounds, nor one vector of floats with bounds.
    """
    leaves = tf.nest.flatten(spec)
    one = len(leaves) == 1
    if one and leaves[0].dtype.is_floating and leaves[0].shape.rank == 1:
        spec_checks.check_bounded(leaves[0], algorithm)
    elif not one or not leaves[0].dtype.is_integer or leaves[0].shape.rank != 0 or leaves[0].minimum != 0:
        raise UserValueError(
            f'got the action {spec}; {algorithm} needs one discrete action with bounds, or one vector of '
            'continuous actions; choose another algorithm, or wrap the environment so that it has one'
        )


class WithTargets(tf.Module):
    """Critics and their targets, which have the same variables."""

    def __init__(self, critics: Sequence[Any], targets: Sequence[Any], tau: float):
        """Takes networks, and the weight of the critics in an update of their targets, in (0, 1].

        Raises:
          ValueError: if tau is out of its bounds.
        """
        super().__init__('critics')
        if not 0 < tau <= 1:
            raise UserValueError(f'got target_update_tau={tau!r}; need a number above 0, at most 1')
        self._critics, self._targets, self._tau = tuple(critics), tuple(targets), tau

    @property
    def trainable_variables(self) -> list[tf.Variable]:
        """Those of the critics, in a fixed order, without their targets'."""
        return [variable for critic in self._critics for variable in critic.trainable_variables]

    def copy_to_targets(self) -> None:
        """Makes the targets equal to the critics."""
        self._assign(1.0)

    def update_targets(self) -> None:
        """Moves the targets towards the critics by the weight tau, in replica context."""
        # Only in cross-replica context may variables be assigned what all replicas share.
        tf.distribute.get_replica_context().merge_call(lambda strategy: self._assign(self._tau))

    def _assign(self, tau: float) -> None:
        for critic, target in zip(self._critics, self._targets, strict=True):
            for new, old in zip(critic.variables, target.variables, strict=True):
                old.assign((1 - tau) * old + tau * new if tau < 1 else new)


class TwinCritics(WithTargets):
    """See the module. Observations and actions are [B, T, ...]; actions of floats are clipped to their bounds first.

    So are they before an environment gets them, while a normal distribution may draw others.
    """

    def __init__(
        self,
        observation_spec: types.NestedTensorSpec,
        action_spec: types.NestedTensorSpec,
        fc_layer_params: Sequence[int],
        encoding: Mapping[str, Any],
        tau: float,
    ):
        """Makes the variables, in the strategy's scope.

        Args:
          observation_spec: the spec of what the critics see.
          action_spec: a spec that `check_action` accepts.
          fc_layer_params: units of each critic's fully connected layers.
          encoding: how observations enter each of them: conv_layer_params, preprocessing_layers, make_network.
          tau: the weight of the critics in an update of their targets, in (0, 1].

        Raises:
          ValueError: if tau is out of its bounds.
        """
        (action,) = tf.nest.flatten(action_spec)
        is_discrete = action.dtype.is_integer

        def make(name: str) -> Any:
            if is_discrete:
                made: Any = networks.QNetwork(
                    observation_spec, action, fc_layer_params=fc_layer_params, name=name, **encoding
                )
            else:
                made = networks.CriticNetwork((observation_spec, action), fc_layer_params, name=name, **encoding)
            made.create_variables()
            return made

        critics = [make(name) for name in ('critic_1', 'critic_2')]
        super().__init__(critics, [make(name) for name in ('target_critic_1', 'target_critic_2')], tau)
        self.is_discrete, self._bounds = is_discrete, (action.minimum, action.maximum)

    def values(
        self, observation: types.NestedTensor, action: types.NestedTensor, targets: bool = False, training: bool = False
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns both critics' values of actions, float32 [B, T] each; those of their `targets` on request."""
        (action,) = tf.nest.flatten(action)
        if self.is_discrete:
            first, second = self.all_values(observation, targets, training)
            choose = lambda values: tf.gather(values, action, batch_dims=2)  # noqa: E731
            return choose(first), choose(second)
        outer = tf.shape(action)[:2]
        joined = (_merged(observation), _merged(tf.clip_by_value(action, *self._bounds)))
        critics = self._targets if targets else self._critics
        made = [critic(joined, step_type=None, training=training)[0] for critic in critics]
        first, second = (tf.reshape(values, outer) for values in made)
        return first, second

    def all_values(
        self, observation: types.NestedTensor, targets: bool = False, training: bool = False
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns both critics' values of all discrete actions, float32 [B, T, number of actions] each."""
        outer = tf.shape(tf.nest.flatten(observation)[0])[:2]
        critics, merged = self._targets if targets else self._critics, _merged(observation)
        made = [critic(merged, training=training)[0] for critic in critics]
        first, second = (tf.reshape(values, tf.concat([outer, [values.shape[-1]]], axis=0)) for values in made)
        return first, second


def _merged(nest: types.NestedTensor) -> types.NestedTensor:
    """Returns tensors [B, T, ...] as [B * T, ...]."""
    return tf.nest.map_structure(lambda leaf: tf.reshape(leaf, tf.concat([[-1], tf.shape(leaf)[2:]], axis=0)), nest)
