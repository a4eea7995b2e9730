"""PPO: several epochs of steps on new sequences, with a policy that is kept close to the one that acted.

Schulman et al. 2017, "Proximal Policy Optimization Algorithms" (arXiv 1707.06347): the clipped objective (equation 7)
and the adaptive KL penalty (section 4); Schulman et al. 2016 (arXiv 1506.02438): generalized advantage estimation.
TF-Agents' PPOAgent has the same terms. Unlike there, the result does not depend on the number of replicas, a truncated
episode is bootstrapped from its last observation, and means are over the valid steps.

With one epoch of one minibatch, without clipping, this is the advantage actor-critic A2C (Mnih et al. 2016, arXiv
1602.01783).
"""

import functools
from typing import Any, NamedTuple

import tensorflow as tf
from tf_agents.agents import tf_agent
from tf_agents.utils import common

from tflearn.agents import own_loss, parts
from tflearn.agents.actor_value import DIST_PARAMS, ActorValueAgent, ActorValueNetwork, complete
from tflearn.agents.algorithm import ANY_ACTION, Example, factory
from tflearn.agents.normalizer import Normalizers, make_normalizers
from tflearn.agents.parts import Problem
from tflearn.core.errors import UserValueError
from tflearn.core.experience import BatchItems, Experience, Iteration, Queue, Slicing
from tflearn.core.moments import variable
from tflearn.core.settings import Fraction, NonNegativeFloat, NonNegativeInt, PositiveFloat, checked, checked_dataclass
from tflearn.core.types import Agent
from tflearn.networks import heads, recurrent, state_dependent
from tflearn.networks.state_dependent import StateDependentNoise
from tflearn.optimization import schedules, vtrace
from tflearn.optimization.schedules import Schedule


@checked_dataclass(frozen=True)
class PPOLoss:
    """The loss: policy + value_coefficient * value - entropy_coefficient * entropy + kl_coefficient * KL.

    Attributes:
      gamma: the discount per environment step, in [0, 1].
      lambda_: the lambda of the advantages, from 0 (one step) to 1 (to the end of the sequence).
      normalize_advantages: whether to normalize advantages to mean 0 and variance 1 over an iteration's steps.
      clip_epsilon: the distance from 1 at which a probability ratio is clipped, or a schedule of the train step; None
        does not clip.
      value_coefficient: the coefficient of the value's squared error.
      value_clipping: the largest change of a value from the iteration's start that its loss takes into account; None is
        no bound. With `normalize_values` it is in deviations of the targets, from the second iteration on.
      entropy_coefficient: the coefficient of the policy's entropy, or a schedule of the train step.
      kl_coefficient: the initial coefficient of the divergence from the policy that acted; 0 has no such penalty.
      kl_target: the target of that divergence [nats]. After an iteration whose divergence exceeds 1.5 times the target,
        the coefficient is doubled; below the target divided by 1.5 it is halved. The divergence is that of the last
        minibatch before its step, unlike in the paper, where it is over all steps. None keeps the coefficient constant.
      value_warmup_steps: train steps at the beginning of a run in which only the value's loss counts, so that the first
        advantages that the policy learns from are better than chance. What policy and value share is trained too.
    """

    gamma: Fraction = 0.99
    lambda_: Fraction = 0.95
    normalize_advantages: bool = True
    clip_epsilon: PositiveFloat | Schedule | None = 0.2
    value_coefficient: NonNegativeFloat = 0.5
    value_clipping: PositiveFloat | None = None
    entropy_coefficient: NonNegativeFloat | Schedule = 0.0
    kl_coefficient: NonNegativeFloat = 0.0
    kl_target: PositiveFloat | None = 0.01
    value_warmup_steps: NonNegativeInt = 0

    def warmed_up(self, term: tf.Tensor, train_step: tf.Tensor) -> tf.Tensor:
        """Returns a term of the loss, which is not the value's; 0 in the warm-up's train steps."""
        return tf.where(train_step >= self.value_warmup_steps, term, 0.0) if self.value_warmup_steps else term


def generalized_advantages(
    rewards: tf.Tensor, discounts: tf.Tensor, values: tf.Tensor, last: tf.Tensor, valid: tf.Tensor, lambda_: float
) -> tf.Tensor:
    """Generalized advantage estimation (arXiv 1506.02438, equation 16) for sequences that may contain several episodes.

    delta_t = r_t + gamma_t V(x_t+1) - V(x_t)
    A_t = delta_t + lambda gamma_t (1 - last_t) A_t+1      A_T = 0

    Args:
      rewards: float32 [B, T], r_t.
      discounts: float32 [B, T], gamma_t: 0 where the episode was terminated.
      values: float32 [B, T + 1], V(x_t), including that of x_T.
      last: bool [B, T], whether x_t+1 is an episode's last observation; its value is used, as after a time limit.
      valid: bool [B, T], whether the step is valid; otherwise A_t is 0 and nothing is traced back through it.
      lambda_: from 0 to 1.

    Returns:
      A, float32 [B, T].
    """
    deltas = tf.where(valid, rewards + discounts * values[:, 1:] - values[:, :-1], 0.0)
    return vtrace.backward_sums(deltas, tf.where(valid & ~last, lambda_ * discounts, 0.0))


def policy_loss(ratios: tf.Tensor, advantages: tf.Tensor, epsilon: tf.Tensor | float | None) -> tf.Tensor:
    """Returns - min(ratio A, clip(ratio, 1 - epsilon, 1 + epsilon) A), or - ratio A without an epsilon, [B]."""
    if epsilon is None:
        return -ratios * advantages
    return -tf.minimum(ratios * advantages, tf.clip_by_value(ratios, 1 - epsilon, 1 + epsilon) * advantages)


def value_loss(errors: tf.Tensor, changes: tf.Tensor, clipping: float | None) -> tf.Tensor:
    """Returns (V - target)^2, or the maximum of that and the same for V with its change clipped to +- `clipping`, [B].

    Args:
      errors: float32 [B], V - target.
      changes: float32 [B], V less its value at the iteration's start.
      clipping: the bound of a change; None is no bound.
    """
    if clipping is None:
        return tf.square(errors)
    excess = changes - tf.clip_by_value(changes, -clipping, clipping)
    return tf.maximum(tf.square(errors), tf.square(errors - excess))


def next_kl_coefficient(coefficient: tf.Tensor, divergence: tf.Tensor, target: float) -> tf.Tensor:
    """Returns the penalty's coefficient after an iteration with this divergence [nats]."""
    factor = tf.where(divergence > 1.5 * target, 2.0, tf.where(divergence < target / 1.5, 0.5, 1.0))
    return tf.clip_by_value(coefficient * factor, 1e-15, 1e15)


def normalized(advantages: tf.Tensor, counts: tf.Tensor) -> tf.Tensor:
    """Returns advantages [B, T] normalized to mean 0 and variance 1 over the valid steps of the global batch."""
    reduce = tf.distribute.get_replica_context().all_reduce
    count, total = reduce(tf.distribute.ReduceOp.SUM, [tf.reduce_sum(counts), tf.reduce_sum(counts * advantages)])
    mean = tf.math.divide_no_nan(total, count)
    squares = reduce(tf.distribute.ReduceOp.SUM, tf.reduce_sum(counts * tf.square(advantages - mean)))
    return (advantages - mean) * tf.math.rsqrt(tf.math.divide_no_nan(squares, count) + 1e-8)


# Sequences of 128 transitions and the observation after them, with which the next sequence starts.
EXPERIENCE = Experience(
    slicing=Slicing(sequence_length=129, stride=128, cross_episodes=True),
    replay=Queue(max_size=16, max_policy_lag=2, versions_ahead=1, training=Iteration(10, 64)),
    batch=BatchItems(8),
)


class Samples(NamedTuple):
    """Prepared steps; outer dimensions [B] or [B, T]. With memory they are sequences [B, T], else in any order.

    Attributes:
      observation: the normalized observation.
      action: the action that was taken.
      behaviour: the parameters of the distribution of the action, as policy info.
      log_prob: float32, the action's log-probability under that distribution.
      value: float32, the observation's value before training.
      target: float32, the target of the value.
      advantage: float32, the action's advantage: normalized over the iteration, or in the unit of returns.
      step_type: int32, with memory: where it is FIRST, the network's state is reset; else ().
      state: with memory, the network's state [B, ...] before each sequence; else ().
      has_unit: bool, whether `value` is of the unit of returns, with normalized values whose change is clipped: not
        before their statistics have begun; else ().
    """

    observation: Any
    action: Any
    behaviour: Any
    log_prob: tf.Tensor
    value: tf.Tensor
    target: tf.Tensor
    advantage: tf.Tensor
    step_type: Any = ()
    state: Any = ()
    has_unit: Any = ()


EXAMPLE = Example(
    ANY_ACTION,
    data=('queue',),
    sequence_length=5,
    variants={'a2c': {'settings': {'loss': PPOLoss(clip_epsilon=None)}}},
)


@checked
@factory
def make_agent(
    problem: Problem,
    *,
    loss: PPOLoss = PPOLoss(),
    normalize_observations: bool = True,
    normalize_rewards: bool = True,
    normalize_values: bool = False,
    action_mask: str | None = None,
    max_kl: PositiveFloat | None = None,
    state_dependent_noise: StateDependentNoise | None = None,
    initial_deviation: PositiveFloat | None = None,
    extra_loss: own_loss.ExtraLoss | None = None,
) -> Agent:
    """Makes a PPO agent, for discrete, several discrete, or continuous actions.

    Args:
      experience: the experience, a queue, with an `iteration` for several steps on the same sequences. The last row of
        a sequence is only used for its observation's value, and is the first row of the next sequence (stride =
        sequence_length - 1).
      network: the layers of policy and value; (64, 64) units, with tanh. With memory, minibatches are of complete
        sequences, which start with the state that the collector had there (`Slicing.store_policy_state`).
      optimizer: the optimizer, of the part `ppo`; 3e-4, clipped at 0.5.
      max_kl: the divergence from the policy that acted [nats] of a minibatch after which the other steps of its
        iteration change nothing, as SB3's 1.5 * `target_kl` ends them; None does not.

    Raises:
      ValueError: if the experience is not a queue of new items, there is a `max_kl` or the KL coefficient adapts
        without iterations, observations to normalize are not floats, or the network has memory and the experience
        holds no policy states, or `minibatch_steps` is less than a sequence.
    """
    replay = problem.experience.replay
    if not replay.learns_from_old_items and replay.training is None:
        if loss.kl_coefficient and loss.kl_target is not None:
            raise UserValueError(
                f'got kl_target={loss.kl_target} without Queue.training=Iteration(...), after which the coefficient '
                'adapts to it; need an iteration, or kl_target=None'
            )
        if max_kl is not None:
            raise UserValueError(
                f'got max_kl={max_kl} without Queue.training=Iteration(...), whose steps it ends; need an iteration, '
                'or max_kl=None'
            )
    normalized = (normalize_observations, normalize_rewards, normalize_values)
    noise = heads.noise_of(problem.specs.action, initial_deviation, state_dependent_noise, problem.network.make_head)
    actor_value, normalizers = make_networks(problem, action_mask, normalized, 'PPO', noise)
    optimizers = problem.optimizers({'ppo': 3e-4}, 0.5)
    agent = PPOAgent(problem, actor_value, optimizers, loss, normalizers, max_kl=max_kl, extra_loss=extra_loss)
    return own_loss.checked(agent, extra_loss, problem.experience)


def make_networks(
    problem: Problem,
    action_mask: str | None,
    normalized: tuple[bool, bool, bool],
    algorithm: str,
    noise: StateDependentNoise | float = heads.INITIAL_DEVIATION,
    unused: tuple[str, ...] = (),
) -> tuple[ActorValueNetwork, Normalizers]:
    """Checks the arguments of `make_agent`, and makes the network and the normalizers of observations and rewards.

    `normalized` is which of observations, rewards and values are; `unused` are the fields of `NetworkOptions` that the
    algorithm has no use for.

    Raises:
      ValueError: see `make_agent`.
    """
    network, replay = complete(problem, algorithm, unused), problem.experience.replay
    if replay.learns_from_old_items or replay.reuse:
        raise UserValueError(
            f'got Experience.replay={replay!r}; {algorithm} needs a Queue without Reuse, since it learns only from new '
            'items; set Queue.training=Iteration(...) for several steps on them'
        )
    normalizers = make_normalizers(problem.specs, network, action_mask, *normalized[:2])
    if isinstance(noise, StateDependentNoise):
        state_dependent.check(problem.specs.action, algorithm)
    actor_value = ActorValueNetwork(problem.specs, network, action_mask, noise=noise, normalizes_values=normalized[2])
    if actor_value.state_spec:
        _check_sequences(problem.experience)
    return actor_value, normalizers


def _check_sequences(experience: Experience) -> None:
    """Checks an experience for a network with memory."""
    slicing, replay = experience.slicing, experience.replay
    if not slicing.store_policy_state:
        raise UserValueError(
            'got a network with memory and Slicing.store_policy_state=False; need True: the ratios of probabilities '
            'compare with a policy that started each sequence with its own state'
        )
    iteration = replay.iteration
    if iteration and iteration.minibatch_steps < slicing.sequence_length - 1:
        raise UserValueError(
            f'got a network with memory and Iteration.minibatch_steps={iteration.minibatch_steps} with '
            f'Slicing.sequence_length={slicing.sequence_length}; need at least {slicing.sequence_length - 1}: a '
            'minibatch consists of complete sequences'
        )


class PPOAgent(ActorValueAgent):
    """See the module. The info of its collect policy has the parameters of the distribution.

    `prepare` converts new sequences to samples once; `train` takes a step on a minibatch of samples, or on sequences
    that it prepares itself and uses once.

    The extra metrics of the loss are means over the valid steps of the global batch: `policy_loss`, `value_loss`,
    `entropy` [nats], `kl_to_behaviour` (the divergence from the policy that acted) [nats], `clipped_share` (the share
    of clipped ratios); and `explained_variance` of the values, at most 1, `kl_coefficient`, and `valid_share`, the
    share of valid rows.

    Attributes:
      trains_on_sequences: whether minibatches have to be of complete sequences, for a network with memory.
    """

    def __init__(self, *args: Any, max_kl: float | None = None, **more: Any):
        """Takes the arguments of `ActorValueAgent`, with the normalizers; see `make_agent`."""
        super().__init__(*args, records_distribution=True, **more)
        self._max_kl = max_kl
        loss, self.trains_on_sequences = self._options, bool(self._network.state_spec)
        self._kl_coefficient = variable(float(loss.kl_coefficient), 'kl_coefficient')
        self._divergence = variable(loss.kl_target or 0.0, 'divergence')

    def prepare(self, experience: Any) -> tuple[Samples, tf.Tensor]:
        """Computes samples of new sequences, and adds them to the normalizers, in replica context.

        Observations are normalized as they were for the newest policy, so the ratios of its steps are 1 at first. Only
        this updates the KL coefficient, and the normalizers except for sequences that are passed to `train`.

        Args:
          experience: this replica's Trajectory [B, T + 1, ...].

        Returns:
          Samples [B, T, ...], and float32 [B, T]: 1 for valid steps, 0 between two episodes and in padding.
        """
        counts = parts.counts(experience)
        if self._options.kl_coefficient and self._options.kl_target is not None:
            coefficient = next_kl_coefficient(self._kl_coefficient, self._divergence, self._options.kl_target)
            self._kl_coefficient.assign(coefficient)
        if self._max_kl is not None:
            self._divergence.assign(0.0)
        self._update_reward_normalizer(experience, counts)
        samples = self._samples(experience)
        self._update_observation_normalizer(experience, counts)
        return samples, counts

    def _update_reward_normalizer(self, experience: Any, counts: tf.Tensor) -> None:
        if self._reward_normalizer:
            self._reward_normalizer.update(experience.reward[:, :-1], counts)

    def _update_observation_normalizer(self, experience: Any, counts: tf.Tensor) -> None:
        if self._observation_normalizer:
            self._observation_normalizer.update(parts.now(experience.observation), counts)

    def _samples(self, experience: Any) -> Samples:
        """Returns the samples of sequences [B, T + 1]."""
        now = parts.now
        observation, reward = self._normalized(experience.observation, experience.reward[:, :-1])
        counts = parts.counts(experience)
        state = recurrent.stored_state(experience) if self.trains_on_sequences else ()
        (_, values), _ = self._network(observation, step_type=experience.step_type, network_state=state)
        advantages = generalized_advantages(
            reward,
            self._options.gamma * experience.discount[:, :-1],
            values,
            experience.is_last()[:, :-1],
            counts > 0,
            self._options.lambda_,
        )
        behaviour = now({DIST_PARAMS: experience.policy_info[DIST_PARAMS]})
        log_prob = self._log_prob(self._network.distribution(behaviour), now(experience.action))
        clips = self._network.pop_art and self._options.value_clipping is not None
        return Samples(
            observation=now(observation),
            action=now(experience.action),
            behaviour=behaviour,
            log_prob=tf.where(counts > 0, log_prob, 0.0),
            value=values[:, :-1],
            target=advantages + values[:, :-1],
            advantage=normalized(advantages, counts) if self._options.normalize_advantages else advantages,
            step_type=now(experience.step_type) if self.trains_on_sequences else (),
            state=state,
            has_unit=tf.math.is_finite(self._network.value_scale) & (counts >= 0) if clips else (),
        )

    def _value_loss(self, values: tf.Tensor, samples: Samples) -> tf.Tensor:
        """Returns the value's squared errors, of normalized values if they are."""
        changes = (values - samples.value) / self._network.value_scale
        if tf.is_tensor(samples.has_unit):
            changes = tf.where(samples.has_unit, changes, 0.0)
        return value_loss(self._network.scaled(values - samples.target), changes, self._options.value_clipping)

    def _log_prob(self, distribution: Any, action: Any) -> tf.Tensor:
        return common.log_probability(distribution, action, self.action_spec)

    def _step(self, experience: Any, weights: tf.Tensor | None) -> tuple[tf_agent.LossInfo, tf.Tensor | None]:
        """Takes one step on samples [B] or [B, T], or on sequences [B, T + 1], which it adds to the normalizers."""
        is_new = not isinstance(experience, Samples)
        if is_new:
            self._update_reward_normalizer(experience, parts.counts(experience))
        info, taken = super()._step(self._as_samples(experience, weights), None)
        divergence = info.extra['kl_to_behaviour']
        if self._max_kl is not None:  # until the next iteration
            divergence = tf.where(self._divergence > self._max_kl, self._divergence, divergence)
        self._divergence.assign(divergence)
        if is_new:
            counts = parts.counts(experience) * (1.0 if taken is None else tf.cast(taken, tf.float32))
            self._update_observation_normalizer(experience, counts)
        return info, taken

    def _due(self, part: str) -> tf.Tensor | None:
        return None if self._max_kl is None else self._divergence <= self._max_kl

    def _loss(self, experience: Any, weights: tf.Tensor | None = None, training: bool = False) -> tf_agent.LossInfo:
        return super()._loss(self._as_samples(experience, weights), None, training)

    def _losses(self, experience: Any, weights: tf.Tensor | None, training: bool) -> parts.Losses:
        """Takes samples and the weight of each."""
        samples, counts = experience
        return counts, {'ppo': lambda _: self._losses_of(samples, counts, training)}

    def _as_samples(self, experience: Any, weights: tf.Tensor | None) -> tuple[Samples, tf.Tensor]:
        """Returns samples and the weight of each; `weights` are those of steps, or of sequences [B]."""
        if isinstance(experience, Samples):
            return experience, tf.ones_like(experience.advantage) if weights is None else weights  # of each step
        counts = parts.counts(experience)
        samples = tf.nest.map_structure(tf.stop_gradient, self._samples(experience))
        return samples, counts if weights is None else counts * weights[:, tf.newaxis]

    def _outputs(self, samples: Samples, training: bool) -> tuple[Any, tf.Tensor]:
        """Returns the distributions of samples' actions, and the values."""
        step_type = samples.step_type if self.trains_on_sequences else None
        outputs, _ = self._network(
            samples.observation, step_type=step_type, network_state=samples.state, training=training
        )
        return outputs

    def _losses_of(self, samples: Samples, counts: tf.Tensor, training: bool) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        options = self._options
        distribution, values = self._outputs(samples, training)
        log_ratios = tf.where(counts > 0, self._log_prob(distribution, samples.action) - samples.log_prob, 0.0)
        ratios, epsilon = tf.exp(log_ratios), schedules.at(options.clip_epsilon, self.train_step_counter)
        rank = counts.shape.rank
        entropy = heads.entropy(distribution, rank, self._draws)
        divergence = heads.divergence(self._network.distribution(samples.behaviour), distribution, rank, self._draws)
        advantages = samples.advantage if options.normalize_advantages else self._network.scaled(samples.advantage)
        metrics = {
            'policy_loss': policy_loss(ratios, advantages, epsilon),
            'value_loss': self._value_loss(values, samples),
            'entropy': entropy,
            'kl_to_behaviour': divergence,
            'clipped_share': tf.zeros_like(ratios)
            if epsilon is None
            else tf.cast(tf.abs(ratios - 1) > epsilon, tf.float32),
        }
        warmed_up = functools.partial(options.warmed_up, train_step=self.train_step_counter)
        losses = (
            warmed_up(metrics['policy_loss'])
            + options.value_coefficient * metrics['value_loss']
            - warmed_up(schedules.at(options.entropy_coefficient, self.train_step_counter) * entropy)
        )
        if self._extra_loss:
            term, own = own_loss.term_of(self._extra_loss, values, distribution, values, samples)
            losses, metrics = losses + warmed_up(term), metrics | own
        if options.kl_coefficient:
            losses += warmed_up(self._kl_coefficient * divergence)
        metrics['kl_coefficient'] = tf.identity(self._kl_coefficient)
        metrics |= parts.shown(advantage=advantages, ratio=ratios, value=values)
        return losses, metrics | self._value_metrics(values, samples.target)
