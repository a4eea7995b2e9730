"""IMPALA: an actor-critic whose learner corrects for older policies of the actors by V-trace.
Espeholt et al. 2018, "IMPALA: Scalable Distributed Deep-RL with Importance Weighted Actor-Learner
Architectures" (arXiv 1802.01561). Differs from the paper: the loss is a mean over the steps unless
`ImpalaLoss.reduction` is 'sum', Adam is the default, and the defaults are for small observation
vectors instead of images.

Without the correction (`off_policy_correction=False`) it is the asynchronous actor-critic of Mnih
et al. 2016, "Asynchronous Methods for Deep Reinforcement Learning" (arXiv 1602.01783), section 4,
except that the learner computes the gradients: each ratio counts as 1, and the values' targets are
lambda-returns. RLlib's IMPALA with `vtrace=False`
differs: its values are those of the network that acted, here they are the learner's.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

import tensorflow as tf
from tf_agents.utils import common

from tflearn.agents import own_loss, parts
from tflearn.agents.actor_value import ActorValueAgent, ActorValueNetwork, complete
from tflearn.agents.algorithm import ANY_ACTION, Example, factory
from tflearn.agents.parts import Problem
from tflearn.core.errors import UserValueError
from tflearn.core.experience import BatchItems, Experience, Queue, Slicing
from tflearn.core.settings import Fraction, NonNegativeFloat, PositiveFloat, checked, checked_dataclass
from tflearn.core.types import Agent
from tflearn.networks import heads, recurrent
from tflearn.networks.networks import NetworkOptions
from tflearn.optimization import schedules, vtrace
from tflearn.optimization.optimizers import Optimizer
from tflearn.optimization.schedules import Schedule

Reduction = Literal['mean', 'sum']


@checked_dataclass(frozen=True)
class ImpalaLoss:
    """The loss: policy_coefficient * policy + value_coefficient * value - entropy_coefficient * entropy.

    Attributes:
      gamma: the discount per environment step, in [0, 1].
      rho_bar: the bound of the ratios in the values' errors (see `vtrace.py`); None is no bound.
      c_bar: the bound of the ratios with which errors are traced back; None is no bound.
      pg_rho_bar: the bound of the ratios in the advantages; None is no bound.
      lambda_: from 0 (one step) to 1 (to the end of the sequence).
      policy_coefficient: the coefficient of - advantage * log pi(a | x).
      value_coefficient: the coefficient of half the squared error of the value.
      entropy_coefficient: the coefficient of the policy's entropy, or a schedule of the train step.
      reward_clipping: the bound of a reward's absolute value; 'soft_asymmetric' squashes large
        rewards, and multiplies negative ones by 0.3, as the paper's code does; None does not change
        rewards.
      reduction: 'mean' over the valid steps of the global batch, or their 'sum', as in the paper.
        It changes the scale of learning rate and gradient clipping.
    """

    gamma: Fraction = 0.99
    rho_bar: PositiveFloat | None = 1.0
    c_bar: PositiveFloat | None = 1.0
    pg_rho_bar: PositiveFloat | None = 1.0
    lambda_: Fraction = 1.0
    policy_coefficient: NonNegativeFloat = 1.0
    value_coefficient: NonNegativeFloat = 0.5
    entropy_coefficient: NonNegativeFloat | Schedule = 0.01
    reward_clipping: PositiveFloat | Literal['soft_asymmetric'] | None = None
    reduction: Reduction = 'mean'

    def clip(self, rewards: tf.Tensor) -> tf.Tensor:
        """Returns rewards clipped or squashed according to `reward_clipping`."""
        if self.reward_clipping is None:
            return rewards
        if self.reward_clipping == 'soft_asymmetric':
            squashed = 5.0 * tf.tanh(rewards / 5.0)
            return tf.where(rewards < 0, 0.3 * squashed, squashed)
        return tf.clip_by_value(rewards, -self.reward_clipping, self.reward_clipping)


# 50 transitions and the observation after them, with which the next sequence of the episode starts.
EXPERIENCE = Experience(
    slicing=Slicing(sequence_length=51, stride=50, pad_episodes=True), replay=Queue(max_size=32), batch=BatchItems(10)
)


class Unroll(NamedTuple):
    """The networks' outputs for a batch of sequences of T + 1 rows.

    Attributes:
      experience: the Trajectory [B, T + 1, ...].
      distribution: the distribution of the actions, [B, T + 1, ...].
      log_probs: float32 [B, T], the log-probabilities of the actions.
      behaviour_log_probs: float32 [B, T], those under the policy that took the actions.
      values: float32 [B, T + 1], the values of the observations.
      valid: bool [B, T], false between two episodes and in padding.
    """

    experience: Any
    distribution: Any
    log_probs: tf.Tensor
    behaviour_log_probs: tf.Tensor
    values: tf.Tensor
    valid: tf.Tensor


# How the policy is trained: the logs of V-trace's ratios, float32 [B, T]; advantages
# [B, T] -> losses [B, T]; and additional metrics [B, T], by name.
PolicyObjective = tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor], Mapping[str, tf.Tensor]]


EXAMPLE = Example(
    ANY_ACTION, data=('uniform', 'queue'), network=NetworkOptions((8,), lstm_size=(4,)), sequence_length=5
)


@checked
@factory
def make_agent(
    problem: Problem,
    *,
    loss: ImpalaLoss = ImpalaLoss(),
    action_mask: str | None = None,
    off_policy_correction: bool = True,
    normalize_values: bool = False,
    initial_deviation: PositiveFloat | None = None,
    extra_loss: own_loss.ExtraLoss | None = None,
) -> Agent:
    """Makes an IMPALA agent, for discrete, several discrete, or continuous actions.

    Args:
      experience: the experience, usually a queue, of sequences whose last row is only used for its
        observation's value, and is the first row of the next sequence (stride = sequence_length - 1
        and pad_episodes use each step once).
      network: the layers of policy and value; (64, 64) units, with tanh.
      optimizer: the optimizer of `policy`, which trains the value too, 5e-4, clipped at 40. A
        learning rate of `value` gives it an optimizer of its own; it then needs a network of its
        own.
      loss: the loss's coefficients and bounds.
      off_policy_correction: whether V-trace corrects for the policy that acted; otherwise the data
        count as on-policy, and the bounds of the ratios have no effect.

    Raises:
      ValueError: if the experience is prioritized, or a value has its own optimizer and no network
        of its own.
    """
    network = complete(problem, 'IMPALA')
    optimizers = make_optimizers(problem)
    noise = heads.noise_of(problem.specs.action, initial_deviation, make_head=network.make_head)
    actor_value = ActorValueNetwork(
        problem.specs, network, action_mask, noise=noise, normalizes_values=normalize_values
    )
    agent = ImpalaAgent(
        problem, actor_value, optimizers, loss, off_policy_correction=off_policy_correction, extra_loss=extra_loss
    )
    return own_loss.checked(agent, extra_loss, problem.experience)


def make_optimizers(problem: Problem) -> dict[str, Optimizer]:
    """Checks the arguments of `make_agent`, and makes the optimizers.

    Raises:
      ValueError: see `make_agent`.
    """
    if problem.experience.replay.prioritization:
        raise UserValueError(
            'got Experience.replay=Prioritized(...); need Queue or Uniform: it returns no errors of items'
        )
    made = problem.optimizers({'policy': 5e-4, 'value': None}, 40.0)
    if problem.network.shared and 'value' in made:
        raise UserValueError(
            "got a learning_rate of 'value' with a shared network; need shared=False, so that the value has variables "
            'of its own, or no such learning rate'
        )
    return made


class ImpalaAgent(ActorValueAgent):
    """See the module. The info of its collect policy has the parameters of the distribution.

    The extra metrics of the loss are means over the valid steps of the global batch: `policy_loss`,
    `value_loss`, `entropy` [nats], `kl_to_behaviour` (the divergence from the policy that acted)
    [nats], `mean_rho` (the clipped ratio), `clipped_share` (the share of ratios above rho_bar),
    `mean_abs_log_rho`; and `explained_variance` of the values, at most 1, and `valid_share`, the
    share of valid rows.
    """

    def __init__(self, problem: Problem, *args: Any, off_policy_correction: bool = True, **more: Any):
        """Takes the arguments of `ActorValueAgent`; see `make_agent`. `targets` are those of an extension."""
        super().__init__(problem, *args, records_distribution=True, **more)
        self._corrects, self._stored_state = off_policy_correction, problem.experience.slicing.store_policy_state

    def _optimized(self, part: str) -> list[str]:
        return list(self._optimizers)

    def _trained(self, part: str) -> list[tf.Variable]:
        if part == 'value':
            return self._network.value_variables
        return self._network.policy_variables if 'value' in self._optimizers else [self._network]

    def _losses(self, experience: Any, weights: tf.Tensor | None, training: bool) -> parts.Losses:
        def loss(_: parts.Metrics) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
            options, unroll = self._options, self._unroll(experience, training)
            log_ratios, loss_of, more = self._objective(unroll, training)
            targets, advantages = self._vtrace_targets(unroll, log_ratios)
            policy_loss = loss_of(self._network.scaled(advantages))
            value_loss = 0.5 * tf.square(self._network.scaled(targets - unroll.values[:, :-1]))
            entropy = heads.entropy(unroll.distribution, 2, self._draws)[:, :-1]
            losses = (
                options.policy_coefficient * policy_loss
                + options.value_coefficient * value_loss
                - schedules.at(options.entropy_coefficient, self.train_step_counter) * entropy
            )
            metrics = {'policy_loss': policy_loss, 'value_loss': value_loss, 'entropy': entropy, **more}
            metrics |= self._off_policy(unroll, log_ratios) | self._value_metrics(unroll.values[:, :-1], targets)
            metrics |= parts.shown(advantage=advantages, ratio=tf.exp(log_ratios), value=unroll.values[:, :-1])
            if self._extra_loss:
                found = own_loss.term_of(
                    self._extra_loss, unroll.values, unroll.distribution, unroll.values, experience
                )
                term, own = tf.nest.map_structure(lambda each: each[:, :-1] if each.shape.rank else each, found)
                losses, metrics = losses + term, metrics | own
            if options.reduction == 'sum':
                of_items = 1.0 if weights is None else weights[:, tf.newaxis]
                return tf.reduce_sum(tf.where(unroll.valid, of_items * losses, 0.0)), metrics
            return losses, metrics

        return tf.cast(_valid(experience), tf.float32), {'policy': loss}

    def _vtrace_targets(self, unroll: Unroll, log_ratios: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the values' targets and the advantages; without the correction each ratio is 1."""
        options, experience = self._options, unroll.experience
        bounds = {'rho_bar': options.rho_bar, 'c_bar': options.c_bar, 'pg_rho_bar': options.pg_rho_bar}
        if not self._corrects:
            log_ratios, bounds = tf.zeros_like(log_ratios), dict.fromkeys(bounds)
        return vtrace.targets(
            log_ratios,
            options.clip(experience.reward[:, :-1]),
            options.gamma * experience.discount[:, :-1],
            unroll.values,
            unroll.valid,
            lambda_=options.lambda_,
            **bounds,
        )

    def _unroll(self, experience: Any, training: bool) -> Unroll:
        """Returns the network's outputs for sequences, from their initial state if that is stored."""
        (distribution, values), _ = self._network(
            experience.observation,
            step_type=experience.step_type,
            network_state=self._initial_state(experience),
            training=training,
        )
        valid = _valid(experience)
        log_prob = lambda of: common.log_probability(of, experience.action, self.action_spec)[:, :-1]  # noqa: E731
        behaviour_log_probs = log_prob(self._network.distribution(experience.policy_info))
        # For rows of zeros it is not finite, and their gradients would not be either.
        behaviour_log_probs = tf.where(valid, behaviour_log_probs, 0.0)
        return Unroll(experience, distribution, log_prob(distribution), behaviour_log_probs, values, valid)

    def _initial_state(self, experience: Any) -> Any:
        """Returns the initial state of the sequences; () if it is not stored."""
        return recurrent.stored_state(experience) if self._stored_state else ()

    def _objective(self, unroll: Unroll, training: bool) -> PolicyObjective:
        """Returns how the policy is trained: here by its gradient, weighted with V-trace's advantages."""
        del training
        log_ratios = unroll.log_probs - unroll.behaviour_log_probs
        return log_ratios, lambda advantages: -advantages * unroll.log_probs, {}

    def _off_policy(self, unroll: Unroll, log_ratios: tf.Tensor) -> dict[str, tf.Tensor]:
        """Returns metrics [B, T] of the difference between the policy and the one that acted."""
        bound = self._options.rho_bar
        ratios = vtrace.clipped_ratios(log_ratios, bound)
        behaviour = self._network.distribution(unroll.experience.policy_info)
        divergence = heads.divergence(behaviour, unroll.distribution, 2, self._draws)
        return {
            'kl_to_behaviour': divergence[:, :-1],
            'mean_rho': ratios,
            'clipped_share': tf.zeros_like(ratios)
            if bound is None
            else tf.cast(log_ratios > math.log(bound), tf.float32),
            'mean_abs_log_rho': tf.abs(log_ratios),
        }


def _valid(experience: Any) -> tf.Tensor:
    """Returns bool [B, T], false for rows without an action: between two episodes, and where an environment failed."""
    return ~(experience.is_boundary() | (experience.next_step_type == 0))[:, :-1]
