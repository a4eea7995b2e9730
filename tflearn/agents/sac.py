"""Soft actor-critic with a learned temperature, for continuous actions; and conservative Q-learning, for recorded data.

Haarnoja et al. 2018, "Soft Actor-Critic Algorithms and Applications" (arXiv 1812.05905). With the
actor pi, critics Q_i and their targets Q'_i, and the temperature alpha:

  y = r + gamma (min_i Q'_i(s', a') - alpha log pi(a' | s'))   a' drawn from pi(. | s')
  critic loss = sum_i (y - Q_i(s, a))^2
  actor loss = alpha log pi(a | s) - min_i Q_i(s, a)           a drawn from pi(. | s)
  temperature loss = - log alpha (log pi(a | s) + target entropy)

Differs from the paper: the log of the standard deviation is clipped to [-20, 2]; squares have the
factor 1, not 1/2.

CQL (Kumar et al. 2020, arXiv 2006.04779) adds to the critics' loss, with the `gap` of
`optimization/conservative.py`:

  weight sum_i gap(Q_i)                                        with a fixed weight
  weight sum_i (gap(Q_i) - target gap)                         with one that is adapted: it grows above the target gap

The integral over actions is estimated from N uniform actions and N of the policy, each divided by
its density (appendix F). The authors' code also draws from the policy at the next observation, and
leaves the entropy out of the targets; here they are SAC's. `Conservative.calibrated` is Cal-QL,
whose returns are without entropies.

With memory, actor and critics have LSTMs of their own, trained on sequences after a burn-in, as in
Ni et al. 2022, "Recurrent Model-Free RL Can Be a Strong Baseline for Many POMDPs" (arXiv
2110.05038); stored states and burn-in are those of Kapturowski et al. 2019, "Recurrent Experience
Replay in Distributed Reinforcement Learning" (ICLR). A critic's memory is of observations only. The
actor starts with its stored state; the critics, which do not act, start with zeros, so they need
the burn-in.
"""

import dataclasses
import functools
import math
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from tf_agents.networks import network as network_lib
from tf_agents.utils import common

from tflearn.agents import actor_critic, own_loss, parts
from tflearn.agents.actor_critic import ActorCriticAgent, Networks
from tflearn.agents.algorithm import Example, factory
from tflearn.agents.parts import Problem
from tflearn.core.errors import UserValueError
from tflearn.core.experience import BatchItems, Experience, Uniform
from tflearn.core.settings import (
    Finite,
    Fraction,
    NonNegativeInt,
    PositiveFraction,
    PositiveInt,
    checked,
    checked_dataclass,
)
from tflearn.core.train_step import Draws
from tflearn.core.types import Agent, EnvironmentSpecs
from tflearn.networks import critics as critics_lib
from tflearn.networks import heads, networks, own_heads, recurrent, spec_checks, state_dependent
from tflearn.networks.networks import NetworkOptions
from tflearn.networks.state_dependent import StateDependentNoise
from tflearn.optimization import conservative as conservative_lib
from tflearn.optimization import ensemble
from tflearn.optimization.conservative import Conservative

_MAX_CONSERVATIVE_WEIGHT = 1e6
RATES = {'critic': 3e-4, 'actor': 3e-4, 'alpha': 3e-4}
EXPERIENCE = Experience(
    replay=Uniform(max_size=1_000_000, min_size=10_000, samples_per_insert=256.0), batch=BatchItems(256)
)


@checked_dataclass(frozen=True)
class SACLoss:
    """The losses; see the module.

    Attributes:
      gamma: the discount per environment step, in [0, 1].
      reward_scale: the factor of the rewards.
      target_entropy: the entropy [nats] of actions rescaled to [-1, 1] to which the temperature
        adapts; None is minus the number of action dimensions.
      initial_log_alpha: the initial log of the temperature.
      burn_in_steps: with memory, the first steps of a sequence, which only change the networks'
        states.
    """

    gamma: Fraction = 0.99
    reward_scale: Finite = 1.0
    target_entropy: float | None = None
    initial_log_alpha: Finite = 0.0
    burn_in_steps: NonNegativeInt = 10


EXAMPLE = Example(
    ('continuous',),
    variants={
        'recurrent_sac': {
            'network': NetworkOptions((8,), lstm_size=(4,)),
            'settings': {'loss': SACLoss(burn_in_steps=1)},
            'sequence_length': 5,
        },
        'cql': {'settings': {'conservative': Conservative(5.0, num_actions=2)}},
        'cal_ql': {
            'settings': {'conservative': Conservative(5.0, num_actions=2, calibrated=True)},
            'sequence_length': 4,
        },
    },
)


@checked
@factory
def make_agent(
    problem: Problem,
    *,
    loss: SACLoss = SACLoss(),
    conservative: Conservative = Conservative(),
    target_update_tau: PositiveFraction = 0.005,
    target_update_period: PositiveInt = 1,
    actor_network: network_lib.Network | None = None,
    state_dependent_noise: StateDependentNoise | None = None,
    extra_loss: own_loss.ExtraLoss | None = None,
) -> Agent:
    """Makes a SAC agent for one vector of continuous actions. The defaults are the paper's (table 1).

    Args:
      experience: the experience, of uniform or prioritized order; returns are of n steps, n =
        sequence_length - 1, without the entropies of the steps between (1 step if calibrated).
        With memory, sequences are longer than `burn_in_steps` + 1, and the last row is only used
        for its observation.
      network: the layers of actor and critics; (256, 256) units each. With `lstm_size`, the first
        layer is before the memory of each network, the others after it.
      optimizer: the optimizers of `critic`, `actor`, `alpha`, and with a target gap `conservative`;
        3e-4, not clipped.
      conservative: CQL's regularizer; by default it has none. For training from files, without
        memory.
      actor_network: observation -> distribution of the environment's action, with which the agent
        works on actions in their own unit; None makes a tanh-squashed normal one, of actions in
        [-1, 1].

    Raises:
      ValueError: if the action is not one vector of floats with bounds, or the experience is a
        queue, or its sequences are too short.
    """
    network = checked_network(problem, 'SAC', ('shared',))
    if network.lstm_size:
        others = {'state_dependent_noise': state_dependent_noise, 'extra_loss': extra_loss}
        _check_memory(conservative, actor_network=actor_network, **others)
        parts.check_experience(problem.experience, 'SAC', True, loss.burn_in_steps)
    if conservative.calibrated and problem.experience.slicing.sequence_length == 2:
        raise UserValueError(
            "got Conservative.calibrated=True with Slicing.sequence_length=2; need an episode's longest duration + 1: "
            'the return is that of an item'
        )
    networks = make_networks(problem.specs, network, critics_lib.CriticOptions(), actor_network, state_dependent_noise)
    rates = RATES if conservative.target_gap is None else {**RATES, 'conservative': 3e-4}
    optimizers = problem.optimizers(rates)
    targets = networks.make_targets(target_update_tau, target_update_period)
    kind = RecurrentSACAgent if network.lstm_size else SACAgent
    rule = ensemble.Least(2, for_actor=True)
    agent = kind(
        problem, networks, optimizers, targets, loss, rule=rule, conservative=conservative, extra_loss=extra_loss
    )
    return own_loss.checked(agent, extra_loss, problem.experience)


def checked_network(
    problem: Problem,
    algorithm: str,
    unused: tuple[str, ...] = ('lstm_size', 'shared'),
    **defaults: Any,
) -> NetworkOptions:
    """Checks what an algorithm with these losses can learn from; returns the layers; see `NetworkOptions.completed`."""
    specs, network = problem.specs, problem.network
    actions = tf.nest.flatten(specs.action)
    if len(actions) != 1 or not actions[0].dtype.is_floating or actions[0].shape.rank != 1:
        raise UserValueError(
            f'got the action {specs.action}; {algorithm} needs one vector of continuous actions; choose another '
            'algorithm, or wrap the environment so that it has one'
        )
    spec_checks.check_bounded(actions[0], algorithm)
    parts.check_experience(problem.experience, algorithm, with_memory=network.lstm_size is not None)
    return network.completed(specs, algorithm, unused, fc_layer_params=(256, 256), **defaults)


def _check_memory(conservative: Conservative, **others: Any) -> None:
    for name, value in others.items():
        if value is not None:
            raise UserValueError(f'got {name} with lstm_size; need one of them; remove {name} or lstm_size')
    if conservative.weight:
        raise UserValueError('got Conservative.weight with lstm_size; need one of them; remove lstm_size')


def make_networks(
    specs: EnvironmentSpecs,
    network: NetworkOptions,
    options: critics_lib.CriticOptions,
    actor_network: network_lib.Network | None = None,
    noise: StateDependentNoise | None = None,
) -> Networks:
    """Returns a tanh-squashed normal policy unless there is another one; and the critics, and those of the targets."""
    if noise and actor_network:
        raise UserValueError('got state_dependent_noise with actor_network; need one of them')
    heads.check_no_head(network.make_head, state_dependent_noise=noise, actor_network=actor_network)
    if network.lstm_size:
        units, activation = tuple(network.fc_layer_params or ()), network.activation_function
        critic_units = network.of_critic().fc_layer_params
        network = dataclasses.replace(network, fc_layer_params=units[:1], critic_fc_layer_params=critic_units)
        features = network.make_encoder(specs.observation, 'actor', with_memory=True)
        actor: Any = recurrent.RecurrentActor(
            specs.observation, specs.action, features, network.head(heads.tanh_normal), units[1:], activation
        )
    else:
        head: heads.MakeProjection = heads.tanh_normal
        if noise:
            head = functools.partial(state_dependent.Head, options=noise, squashes=True)
        actor = actor_network or networks.actor(specs.observation, specs.action, network, continuous=head)
    actor.create_variables()
    if network.make_head:
        own_heads.check_gradients(network.make_head, tf.nest.flatten(specs.action)[0])
    return Networks(actor, *critics_lib.make(specs.observation, specs.action, network, options))


def critic_targets(
    reward: tf.Tensor, discount: tf.Tensor, bootstraps: tf.Tensor, log_probs: tf.Tensor, alpha: tf.Tensor
) -> tf.Tensor:
    """Returns y = r + gamma (Q'(s', a') - alpha log pi(a' | s')), without a gradient, float32 [R, N].

    Args:
      reward: r, float32 [R].
      discount: gamma, 0 at the end of an episode, float32 [R].
      bootstraps: Q'(s', a') of the target critics, float32 [R, N]; the paper's is the least of
        them.
      log_probs: log pi(a' | s'), float32 [R].
      alpha: the temperature.
    """
    values = bootstraps - (alpha * log_probs)[:, tf.newaxis]
    return tf.stop_gradient(reward[:, tf.newaxis] + discount[:, tf.newaxis] * values)


def actor_losses(log_probs: tf.Tensor, value: tf.Tensor, alpha: tf.Tensor) -> tf.Tensor:
    """Returns alpha log pi(a | s) - Q(s, a) of actions that the actor drew, float32 [R]."""
    return tf.stop_gradient(alpha) * log_probs - value


def temperature_losses(log_alpha: tf.Tensor, entropy: tf.Tensor, target_entropy: float) -> tf.Tensor:
    """Returns - log alpha (log pi(a | s) + target entropy); the estimated entropy is - log pi(a | s), float32 [R]."""
    return log_alpha * (entropy - target_entropy)


class SACAgent(ActorCriticAgent):
    """See the module.

    The extra metrics are means over the items of the global batch: `critic_loss`, `actor_loss`,
    `alpha_loss`; `value` in the unit of returns; `entropy` [nats], estimated by the drawn actions;
    and `alpha`. With CQL also
    `excess_gap`: the critics' gaps, less the target gap.
    """

    def __init__(
        self,
        problem: Problem,
        *args: Any,
        rule: ensemble.Rule,
        conservative: Conservative = Conservative(),
        extra_loss: own_loss.ExtraLoss | None = None,
    ):
        """Takes the arguments of `ActorCriticAgent`, the rule of targets and errors, and those of `make_agent`."""
        super().__init__(problem, *args)
        self._rule, self._conservative, self._extra_loss = rule, conservative, extra_loss
        self._stored_state = problem.experience.slicing.store_policy_state
        self._log_alpha = tf.Variable(self._options.initial_log_alpha, dtype=tf.float32, name='log_alpha')
        low, high = self._bounds()
        given = self._options.target_entropy
        self._target_entropy = float((np.log((high - low) / 2) - 1.0).sum()) if given is None else given
        if self._conservative.target_gap is not None:
            self._log_conservative_weight = tf.Variable(math.log(self._conservative.weight), name='conservative')

    def _trained(self, part: str) -> list[Any]:
        if part == 'conservative':
            return [self._log_conservative_weight]
        return [self._log_alpha] if part == 'alpha' else super()._trained(part)

    def _losses(self, experience: Any, weights: tf.Tensor | None, training: bool) -> parts.Losses:
        batch = self._transitions(experience)
        draws = self._draws if training else None

        def critic_loss(_: parts.Metrics) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
            action, log_probs, _ = self._draw(batch, following=True)
            values, following = self._both_values(batch, action, training)
            bootstraps = self._rule.bootstraps(following, self._draws)
            y = critic_targets(batch.reward, batch.discount, bootstraps, log_probs, tf.exp(self._log_alpha))
            losses = self._rule.losses(values, y)
            metrics = {parts.ERRORS: ensemble.errors(values, y)}
            if self._conservative.weight:
                metrics['excess_gap'] = self._excess_gaps(batch)
                losses += self._conservative_weight() * metrics['excess_gap']
            return losses, metrics | {'critic_loss': losses} | parts.shown(target=y, q_value=values)

        def actor_loss(_: parts.Metrics) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
            action, log_probs, distribution = self._draw(batch, training)
            value = self._rule.value(self._values(batch, action, self._critics, draws=draws))
            losses = actor_losses(log_probs, value, tf.exp(self._log_alpha))
            metrics = {'actor_loss': losses, 'value': value, 'entropy': -tf.stop_gradient(log_probs)}
            if self._extra_loss:
                term, own = own_loss.term_of(self._extra_loss, losses, distribution, value, batch)
                losses, metrics = losses + term, metrics | own
            return losses, metrics

        def alpha_loss(earlier: parts.Metrics) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
            # Of the actor's own draws: others would cost another pass through its network.
            losses = temperature_losses(self._log_alpha, earlier['entropy'], self._target_entropy)
            return losses, {'alpha_loss': losses, 'alpha': tf.exp(self._log_alpha)}

        def conservative_loss(earlier: parts.Metrics) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
            return -self._conservative_weight() * tf.stop_gradient(earlier['excess_gap']) / 2, {}

        made = {'critic': critic_loss, 'actor': actor_loss, 'alpha': alpha_loss}
        if self._conservative.target_gap is not None:
            made['conservative'] = conservative_loss
        return batch.counts, made

    def _transitions(self, experience: Any) -> Any:
        """Returns `actor_critic.Transitions`, or an extension, of sequences."""
        scales = self._options.gamma, self._options.reward_scale
        batch = actor_critic.of_n_steps(experience, *scales)
        if not self._conservative.calibrated:
            return batch
        first = tf.nest.map_structure(lambda leaf: leaf[:, :2], experience)
        return actor_critic.of_steps(first, *scales)._replace(returns=batch.reward)

    def _both_values(self, batch: Any, action: tf.Tensor, training: bool) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the critics' values of the actions that were taken, and the targets' of the ones that follow."""
        following = self._values(batch, action, self._target_critics, following=True, draws=self._draws)
        (taken,) = tf.nest.flatten(batch.action)
        draws = self._draws if training else None
        return self._values(batch, taken, self._critics, training=training, draws=draws), following

    def _values(
        self,
        batch: Any,
        action: tf.Tensor,
        critics: critics_lib.Critics,
        following: bool = False,
        training: bool = False,
        draws: Draws | None = None,
    ) -> tf.Tensor:
        """Returns what critics have for actions at the observations of a batch, or those that follow, [R, N, M]."""
        features = self._features(batch, critics, following, training)
        return critics.of_features(features, action, draws, training=training)

    def _features(self, batch: Any, critics: critics_lib.Critics, following: bool, training: bool) -> list[tf.Tensor]:
        """Returns what the encoders of critics make of these observations."""
        return critics.features(batch.next_observation if following else batch.observation, training)

    def _draw(self, batch: Any, training: bool = False, following: bool = False) -> tuple[tf.Tensor, tf.Tensor, Any]:
        """Returns actions of the policy, float32 [R, A], their log-probabilities [R], and the distribution."""
        return self._drawn(self._distribution(batch.next_observation if following else batch.observation, training))

    def _drawn(self, distribution: Any) -> tuple[tf.Tensor, tf.Tensor, Any]:
        """Returns actions [..., A] of a distribution, their log-probabilities, and the distribution."""
        drawn = heads.sample(distribution, self._draws)
        return tf.nest.flatten(drawn)[0], common.log_probability(distribution, drawn, self.action_spec), distribution

    def _conservative_weight(self) -> float | tf.Tensor:
        if self._conservative.target_gap is None:
            return self._conservative.weight
        return tf.minimum(tf.exp(self._log_conservative_weight), _MAX_CONSERVATIVE_WEIGHT)

    def _excess_gaps(self, batch: Any) -> tf.Tensor:
        """Returns the critics' gaps, less the target gap, summed over critics, float32 [R]."""
        actions, log_densities = self._draw_others(batch)
        count = actions.shape[1]
        repeated = tf.nest.map_structure(lambda leaf: tf.repeat(leaf, count, axis=0), batch.observation)
        values = self._critics(repeated, tf.reshape(actions, [-1, actions.shape[2]]))[..., 0]
        (taken,) = tf.nest.flatten(batch.action)
        own = tf.unstack(self._critics(batch.observation, taken)[..., 0], axis=1)
        values = tf.reshape(values, [-1, count, len(own)])
        if self._conservative.calibrated:
            values = conservative_lib.calibrated(values, batch.returns)
        pairs = zip(tf.unstack(values, axis=2), own, strict=True)
        gaps = [conservative_lib.gap(*each, log_densities) for each in pairs]
        return tf.add_n(gaps) - len(own) * (self._conservative.target_gap or 0.0)

    def _draw_others(self, batch: Any) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns uniform actions and the policy's, float32 [R, 2 N, A], and the logs of their densities [R, 2 N]."""
        (spec,), count = tf.nest.flatten(self.action_spec), self._conservative.num_actions
        distribution = tf.nest.flatten(self._distribution(batch.observation, training=True))[0]
        own = heads.sample(distribution, self._draws, (count,))
        own_densities = common.log_probability(distribution, own, spec)
        low, high = self._bounds()
        uniform = low + (high - low) * tf.cast(self._draws.uniform(tf.shape(own)), own.dtype)
        density = -np.log((high - low)[high > low]).sum()
        log_densities = tf.concat([tf.fill(tf.shape(own_densities), np.float32(density)), own_densities], axis=0)
        return tf.transpose(tf.concat([uniform, own], axis=0), [1, 0, 2]), tf.transpose(log_densities)


class _Rows(NamedTuple):
    """The transitions of the rows after the burn-in, and the sequences that they are of, with their burn-in."""

    action: Any
    reward: tf.Tensor
    discount: tf.Tensor
    counts: tf.Tensor
    sequences: Any


class RecurrentSACAgent(SACAgent):
    """The agent with memory: the rows of sequences after the burn-in are its items [R = B * T, ...]."""

    def _transitions(self, experience: Any) -> _Rows:
        trained = tf.nest.map_structure(lambda leaf: leaf[:, self._options.burn_in_steps :], experience)
        rows = actor_critic.of_steps(trained, self._options.gamma, self._options.reward_scale)
        return _Rows(rows.action, rows.reward, rows.discount, rows.counts, experience)

    def _draw(self, batch: _Rows, training: bool = False, following: bool = False) -> tuple[tf.Tensor, tf.Tensor, Any]:
        state = recurrent.stored_state(batch.sequences) if self._stored_state else ()
        drawn, log_probs, distribution = self._drawn(self._unrolled(self._actor, batch, state, training))
        return _rows(drawn, following), _rows(log_probs, following), distribution

    def _features(self, batch: _Rows, critics: critics_lib.Critics, following: bool, training: bool) -> list[tf.Tensor]:
        return [_rows(self._unrolled(memory, batch, (), training), following) for memory in critics.encoders]

    def _unrolled(self, network: Any, batch: _Rows, state: Any, training: bool) -> Any:
        """Returns a network's outputs for each row from the burn-in on, [B, T + 1, ...]."""
        experience, burn_in = batch.sequences, self._options.burn_in_steps
        return recurrent.after_burn_in(network, experience.observation, experience.step_type, state, burn_in, training)


def _rows(leaf: tf.Tensor, following: bool) -> tf.Tensor:
    """Returns all rows but the last of [B, T + 1, ...], or but the first, as [B * T, ...]."""
    return actor_critic.joined_rows(leaf[:, 1:] if following else leaf[:, :-1])
