"""A network with two heads, the action's distribution and the observation's value; its policy, and its agents."""

from collections.abc import Mapping
from typing import Any

import tensorflow as tf
from tf_agents.agents import tf_agent
from tf_agents.agents.ppo import ppo_utils
from tf_agents.networks import network
from tf_agents.policies import tf_policy
from tf_agents.trajectories import policy_step
from tf_agents.trajectories import time_step as ts
from tf_agents.typing import types

from tflearn.agents import own_loss, parts
from tflearn.agents.normalizer import Normalizer, Normalizers
from tflearn.agents.pop_art import PopArt
from tflearn.core.action_mask import make_mask
from tflearn.core.errors import UserValueError
from tflearn.core.types import EnvironmentSpecs
from tflearn.networks import heads, spec_checks, state_dependent
from tflearn.networks.critics import Targets
from tflearn.networks.networks import NetworkOptions
from tflearn.optimization.optimizers import Optimizer

DIST_PARAMS = 'dist_params'  # a key of the policy info: the parameters of the distribution of the action

_TARGET, _ERROR, _VARIANCE = 'value_target', 'value_error', 'value_target_variance'  # metrics that nobody sees


def complete(problem: parts.Problem, algorithm: str, unused: tuple[str, ...] = ()) -> NetworkOptions:
    """Returns the layers of an algorithm that learns a policy's gradient; see `NetworkOptions.completed`."""
    spec_checks.check_policy_gradient_action(problem.specs.action, algorithm)
    return problem.network.completed(problem.specs, algorithm, unused, fc_layer_params=(64, 64), activation='tanh')


class ActorValueNetwork(network.Network):
    """Observation -> (distribution of the action, value float32), of observations [B, ...] or [B, T, ...]."""

    def __init__(
        self,
        specs: EnvironmentSpecs,
        options: NetworkOptions,
        action_mask: str | None = None,
        name: str = 'ActorValueNetwork',
        noise: state_dependent.StateDependentNoise | float = heads.INITIAL_DEVIATION,
        normalizes_values: bool = False,
    ):
        """Makes the variables, in the strategy's scope.

        Args:
          specs: the environment's specs.
          options: the layers.
          action_mask: the path of the observation's part that marks legal actions; None has none.
          name: the network's name.
          noise: state-dependent noise for exploration, or the initial deviation of float actions;
            see `heads`.
          normalizes_values: whether the value's last layer learns normalized values; see `pop_art`.

        Raises:
          ValueError: if values are to be normalized, and a network of one's own computes them
            itself.
        """
        mask, observation_spec = make_mask(specs, action_mask)
        if options.shared:
            choices = heads.num_choices(specs.action)
            actor = value = options.make_encoder(observation_spec, 'encoder', True, choices)
        else:
            actor = options.make_encoder(observation_spec, 'actor', with_memory=True)
            value = options.of_critic().make_encoder(observation_spec, 'value', with_memory=True)
        state_spec = actor.state_spec
        if state_spec and not options.shared:
            state_spec = {'actor': actor.state_spec, 'value': value.state_spec}
        super().__init__(input_tensor_spec=specs.observation, state_spec=state_spec, name=name)
        self._shared, self._actor, self._value = options.shared, actor, value
        self.action_mask = mask
        # A network of one's own may compute logits and value itself.
        own = options.make_network is not None
        self._has_heads = own and isinstance(actor.create_variables(observation_spec), list | tuple)
        masked = mask is not None
        if self._has_heads:
            projections = heads.of_logits(specs.action)
        else:
            projections = heads.projections(specs.action, masked, noise, options.make_head)
        self._projections = projections
        # Not attributes, since Keras would wrap their nests.
        self._heads = lambda: tf.nest.flatten(projections)
        self._as_action = lambda leaves: tf.nest.pack_sequence_as(specs.action, leaves)
        self._value_head = tf.keras.layers.Dense(1, kernel_initializer='glorot_uniform', dtype='float32', name='head')
        if normalizes_values and self._has_heads:
            raise UserValueError(
                'got normalize_values=True with a make_network that computes the value itself; need a network that '
                'returns features, or normalize_values=False'
            )
        self.pop_art = PopArt() if normalizes_values else None
        self.create_variables(specs.observation)

    def call(
        self, observation: types.NestedTensor, step_type: Any = None, network_state: Any = (), training: bool = False
    ) -> tuple[tuple[Any, tf.Tensor], Any]:
        """See `network.Network.call`. Returns ((distribution, value), state)."""
        mask = None
        if self.action_mask is not None:
            observation, mask = self.action_mask(observation)
        separate = bool(self.state_spec) and not self._shared
        own = network_state or {'actor': (), 'value': ()} if separate else {'actor': network_state, 'value': ()}
        features, state = self._actor(observation, step_type, own['actor'], training=training)
        if self._has_heads:
            features, value = (tf.cast(output, tf.float32) for output in features)
        else:
            value_features = features
            if not self._shared:
                value_features, value_state = self._value(observation, step_type, own['value'], training=training)
                state = {'actor': state, 'value': value_state} if separate else state
            value = self._value_head(tf.cast(value_features, tf.float32))
            value = self.pop_art(value) if self.pop_art else value
        if value.shape.rank == features.shape.rank:
            value = tf.squeeze(value, axis=-1)
        outer_rank = features.shape.rank - 1
        distributions = [head(features, outer_rank, training=training, mask=mask)[0] for head in self._heads()]
        return (self._as_action(distributions), value), state

    # These two are not attributes, since Keras would wrap their dictionaries.
    @property
    def info_spec(self) -> dict[str, Any]:
        """The spec of the policy info with the distribution's parameters."""
        return {DIST_PARAMS: self._as_action([spec.input_params_spec for spec in self._distribution_specs])}

    @property
    def _distribution_specs(self) -> list[Any]:
        return [head.output_spec for head in self._heads()]

    @property
    def value_scale(self) -> tf.Tensor | float:
        """What a value's errors are divided by in its loss, and advantages."""
        return self.pop_art.scale if self.pop_art else 1.0

    def scaled(self, errors: tf.Tensor) -> tf.Tensor:
        """Returns values' errors or advantages as losses have them; see `PopArt.scaled`."""
        return self.pop_art.scaled(errors) if self.pop_art else errors

    def update_values(self, mean: tf.Tensor, variance: tf.Tensor, due: tf.Tensor) -> dict[str, tf.Tensor]:
        """Normalizes values by the targets of a train step as well, in replica context; see `PopArt.update`."""
        return self.pop_art.update(self._value_head, mean, variance, due) if self.pop_art else {}

    @property
    def value_variables(self) -> list[tf.Variable]:
        """The trainable variables that only the value uses."""
        own = [] if self._shared else self._value.trainable_variables
        return [*own, *self._value_head.trainable_variables]

    @property
    def policy_variables(self) -> list[tf.Variable]:
        """The other trainable variables."""
        of_value = {variable.ref() for variable in self.value_variables}
        return [variable for variable in self.trainable_variables if variable.ref() not in of_value]

    def parameters(self, distribution: Any) -> dict[str, Any]:
        """Returns the policy info with a distribution's parameters."""
        return {DIST_PARAMS: ppo_utils.get_distribution_params(distribution, legacy_distribution_network=True)}

    def distribution(self, info: Any) -> Any:
        """Returns the distribution of a policy info that `parameters` returned."""
        return ppo_utils.distribution_from_spec(
            self._as_action(self._distribution_specs), info[DIST_PARAMS], legacy_distribution_network=True
        )


class ActorValuePolicy(tf_policy.TFPolicy):
    """Draws from the network's distribution. Actions are not clipped, since that would change their probabilities."""

    def __init__(
        self,
        specs: EnvironmentSpecs,
        actor_value: ActorValueNetwork,
        normalizer: Normalizer | None,
        records_distribution: bool,
        name: str,
    ):
        """Makes the policy.

        Args:
          specs: the environment's specs.
          actor_value: the network.
          normalizer: normalizes observations, and its variables are a part of the policy; None
            takes them as they are.
          records_distribution: whether the policy info has the parameters of the distribution.
          name: the policy's name.
        """
        super().__init__(
            specs.time_step,
            specs.action,
            policy_state_spec=actor_value.state_spec,
            info_spec=actor_value.info_spec if records_distribution else (),
            clip=False,
            observation_and_action_constraint_splitter=actor_value.action_mask,
            name=name,
        )
        self._network, self._records_distribution = actor_value, records_distribution
        self._normalizer = normalizer

    def _variables(self) -> list[tf.Variable]:
        return [*self._network.variables, *(self._normalizer.statistics if self._normalizer else [])]

    def _distribution(self, time_step: ts.TimeStep, policy_state: Any) -> policy_step.PolicyStep:
        observation = self._normalizer(time_step.observation) if self._normalizer else time_step.observation
        (distribution, _), state = self._network(observation, step_type=time_step.step_type, network_state=policy_state)
        return policy_step.PolicyStep(
            distribution, state, self._network.parameters(distribution) if self._records_distribution else ()
        )


class ActorValueAgent(parts.PartsAgent):
    """An agent of one `ActorValueNetwork`."""

    def __init__(
        self,
        problem: parts.Problem,
        network: ActorValueNetwork,
        optimizers: Mapping[str, Optimizer],
        loss: Any,
        normalizers: Normalizers = (None, None),
        *,
        records_distribution: bool = False,
        targets: Targets | None = None,
        extra_loss: own_loss.ExtraLoss | None = None,
    ):
        """Makes the agent, within the strategy's scope; see `PartsAgent` for what is not explained here.

        Args:
          problem: what the agent is made for.
          network: policy and value.
          optimizers: the optimizers of the parts.
          loss: the losses' settings.
          normalizers: the normalizers of observations and rewards.
          records_distribution: whether the info of the collect policy has the parameters of the
            distribution.
          targets: what follows the trained networks.
          extra_loss: the term of one's own in the loss; None has none.
        """
        # The names of network and normalizer are those of all such agents, for a warm start
        # (`train.Initial`).
        self._network, self._options, self._extra_loss = network, loss, extra_loss
        self._observation_normalizer, self._reward_normalizer = normalizers
        policy, collect_policy = (
            ActorValuePolicy(problem.specs, network, self._observation_normalizer, records, name)
            for records, name in ((False, 'policy'), (records_distribution, 'collect_policy'))
        )
        collect_policy = state_dependent.exploring(collect_policy, network)
        super().__init__(problem, collect_policy, optimizers, targets, policy)

    def _trained(self, part: str) -> list[Any]:
        return [self._network]

    def _after_parts(self, info: tf_agent.LossInfo, taken: tf.Tensor | None) -> tf_agent.LossInfo:
        info, statistics = _popped(super()._after_parts(info, taken))
        if statistics:
            due = (info.extra['valid_share'] > 0) & (True if taken is None else taken)
            info.extra.update(self._network.update_values(*statistics, due))
        return info

    def _loss(self, experience: Any, weights: tf.Tensor | None = None, training: bool = False) -> tf_agent.LossInfo:
        return _popped(super()._loss(experience, weights, training))[0]

    def _value_metrics(self, values: tf.Tensor, targets: tf.Tensor) -> dict[str, tf.Tensor]:
        """Returns metrics of rows, of which `_means` makes `explained_variance` and what PopArt's statistics need."""
        return {_TARGET: targets, _ERROR: targets - values}

    def _means(self, metrics: dict[str, tf.Tensor], counts: tf.Tensor, experience: Any) -> dict[str, tf.Tensor]:
        means = super()._means(metrics, counts, experience)
        if _TARGET in means:
            # Less their means before they are squared: float32 would lose a variance that is small
            # beside the mean.
            shifts = tf.stack([metrics[_TARGET] - means[_TARGET], metrics[_ERROR] - means.pop(_ERROR)])
            rows = tf.stack([*tf.unstack(tf.square(tf.stop_gradient(shifts))), tf.ones_like(counts)])
            sums = tf.reduce_sum(tf.where(counts > 0, counts * rows, 0.0), axis=list(range(1, rows.shape.rank)))
            sums = tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, sums)
            means['explained_variance'] = 1.0 - tf.math.divide_no_nan(sums[1], sums[0])
            means[_VARIANCE] = tf.math.divide_no_nan(sums[0], sums[2])
        return means

    def _normalized(self, observation: Any, reward: tf.Tensor) -> tuple[Any, tf.Tensor]:
        """Returns both as the losses have them."""
        if self._observation_normalizer:
            observation = self._observation_normalizer(observation)
        return observation, self._reward_normalizer(reward) if self._reward_normalizer else reward


def _popped(info: tf_agent.LossInfo) -> tuple[tf_agent.LossInfo, tuple[tf.Tensor, tf.Tensor] | None]:
    """Returns metrics without the mean and the variance of the targets, and these, if they have them."""
    if _TARGET not in info.extra:
        return info, None
    extra = dict(info.extra)
    statistics = extra.pop(_TARGET), extra.pop(_VARIANCE)
    return info._replace(extra=extra), statistics
