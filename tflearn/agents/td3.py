"""TD3, twin delayed deep deterministic policy gradients, for continuous actions; TD3+BC and ReBRAC, for recorded data.

Fujimoto et al. 2018, "Addressing Function Approximation Error in Actor-Critic Methods" (arXiv
1802.09477, algorithm 1). With the actor mu, the critics Q_1 and Q_2, their slowly updated targets
mu', Q'_1 and Q'_2, and the half range h of the actions:

  a' = clip(mu'(s') + h clip(e, -c, c), lowest, highest)       e ~ N(0, sigma^2)
  y = r + gamma min_i Q'_i(s', a')                             after n steps, the sum of their n rewards
  critic loss = sum_i (y - Q_i(s, a))^2
  actor loss = - Q_1(s, mu(s))                                 each `policy_delay` train steps, as are the targets

Fujimoto and Gu 2021, "A Minimalist Approach to Offline Reinforcement Learning" (arXiv 2106.06860,
equations 5 and 6), adds the distance from the data's action, with alpha:

  actor loss = - lambda Q_1(s, mu(s)) + mean(((mu(s) - a) / h)^2)          lambda = alpha / mean |Q_1(s, a)|

Tarasov et al. 2023, "Revisiting the Minimalist Approach to Offline Reinforcement Learning" (arXiv
2305.09836, ReBRAC), takes a distance from the targets too, with a weight of its own, and normalizes
the critics' layers (Ba et al. 2016). With the data's next action a+, and beta:

  y = r + gamma (min_i Q'_i(s', a') - beta mean(((a' - a+) / h)^2))

Its distances are sums over the A numbers of an action, and its lambda is 1 / mean |Q|: its beta_1
is 1 / (A alpha) here, and its beta_2 is beta / A.

Differs from the papers: layers, learning rates and batch size are those of the authors' later code,
256-256, 3e-4 and 256. The mean of equation 6 is over the data's actions as there; the authors' code
takes the actor's. The mean of the distance is over the batch and the action's numbers, as in that
code. ReBRAC's code has the least critic in the actor's loss, and normalizes after each activation.

TF-Agents' Td3Agent is not used: it neither scales the target's noise to the bounds nor clips its
sum with the action, takes means over a replica's own batch, and applies gradients in a branch,
which several replicas cannot do.
"""

from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf
import tensorflow_probability as tfp
from tf_agents.policies import actor_policy
from tf_agents.trajectories import policy_step
from tf_agents.trajectories import time_step as ts
from tf_agents.typing import types

from tflearn.agents import actor_critic, parts
from tflearn.agents.algorithm import Example, factory
from tflearn.agents.parts import Problem
from tflearn.core.errors import UserValueError
from tflearn.core.experience import BatchItems, Experience, Uniform
from tflearn.core.settings import (
    Finite,
    Fraction,
    NonNegativeFloat,
    PositiveFloat,
    PositiveFraction,
    PositiveInt,
    checked,
    checked_dataclass,
)
from tflearn.core.types import Agent, EnvironmentSpecs
from tflearn.networks import critics as critics_lib
from tflearn.networks import noisy, spec_checks
from tflearn.networks.critics import CriticOptions, Targets
from tflearn.networks.networks import DeterministicActor, NetworkOptions
from tflearn.optimization import schedules
from tflearn.optimization.optimizers import Optimizer


@checked_dataclass(frozen=True)
class TD3Loss:
    """The losses, and how often the actor is trained.

    Attributes:
      gamma: the discount per environment step, in [0, 1].
      reward_scale: the factor of the rewards.
      policy_delay: train steps between two updates of the actor and of all targets, the paper's d.
      target_policy_noise: the deviation of the noise in the targets' actions, the paper's sigma, as
        a share of half the range of each action.
      target_policy_noise_clip: the largest absolute value of that noise, the paper's c, as such a
        share.
      behavior_cloning_alpha: TD3+BC's alpha, the weight of the values beside the distance from the
        data's actions; the paper's is 2.5. For training from files; None has no such distance.
      target_cloning_beta: ReBRAC's beta, in the unit of scaled returns: the weight of the distance of
        the targets' actions from the data's next ones. Those at the end of an episode that was cut
        off are not known, and have none.
    """

    gamma: Fraction = 0.99
    reward_scale: Finite = 1.0
    policy_delay: PositiveInt = 2
    target_policy_noise: NonNegativeFloat = 0.2
    target_policy_noise_clip: NonNegativeFloat = 0.5
    behavior_cloning_alpha: PositiveFloat | None = None
    target_cloning_beta: NonNegativeFloat = 0.0


def smoothed_actions(actions: tf.Tensor, noise: tf.Tensor, bounds: tuple[Any, Any], options: TD3Loss) -> tf.Tensor:
    """Returns the targets' actions with clipped noise, within their bounds; float32 [B, A].

    Args:
      actions: float32 [B, A].
      noise: float32 [B, A], standard normal.
      bounds: the least and the greatest actions, float32 [A] each.
      options: deviation and clipping of the noise, as shares of half the range.
    """
    low, high = bounds
    bound = options.target_policy_noise_clip
    shares = tf.clip_by_value(options.target_policy_noise * noise, -bound, bound)
    return tf.clip_by_value(actions + (high - low) / 2 * shares, low, high)


def value_scale(alpha: float, values: tf.Tensor, counts: tf.Tensor) -> tf.Tensor:
    """Returns TD3+BC's lambda, alpha / mean |value| over the global batch, in replica context; a constant scalar.

    Args:
      alpha: the paper's alpha.
      values: float32 [B], the values of the data's actions.
      counts: float32 [B], 0 for the items that are left out.
    """
    sums = tf.stop_gradient(tf.stack([tf.reduce_sum(counts * tf.abs(values)), tf.reduce_sum(counts)]))
    total, count = tf.unstack(tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, sums))
    return tf.math.divide_no_nan(alpha * count, total)


def distances(actions: tf.Tensor, others: tf.Tensor, bounds: tuple[Any, Any]) -> tf.Tensor:
    """Returns the mean squared distances of actions [B, A], in units of half the range of each number; float32 [B]."""
    low, high = bounds
    shares = tf.math.divide_no_nan(actions - others, (high - low) / 2)
    return tf.reduce_mean(tf.square(shares), axis=1)


EXPERIENCE = Experience(
    replay=Uniform(max_size=1_000_000, min_size=10_000, samples_per_insert=256.0), batch=BatchItems(256)
)

_REBRAC = TD3Loss(behavior_cloning_alpha=2.5, target_cloning_beta=0.1)
EXAMPLE = Example(
    ('continuous',),
    variants={
        'td3_bc': {'settings': {'loss': TD3Loss(behavior_cloning_alpha=2.5)}},
        'rebrac': {'settings': {'loss': _REBRAC, 'critic_layer_norm': True}},
    },
)


@checked
@factory
def make_agent(
    problem: Problem,
    *,
    loss: TD3Loss = TD3Loss(),
    target_update_tau: PositiveFraction = 0.005,
    exploration_noise: NonNegativeFloat | schedules.Schedule = 0.1,
    exploration_damping: PositiveFraction = 1.0,
    critic_layer_norm: bool = False,
) -> Agent:
    """Makes a TD3 agent for continuous actions, with n-step returns, n = `experience.slicing.sequence_length` - 1.

    Args:
      network: the layers of actor and critics; (256, 256) units each; without memory.
      optimizer: the optimizers of `critic` and `actor`; 3e-4, not clipped.
      critic_layer_norm: whether the critics' features are normalized, as ReBRAC's are.

    Raises:
      ValueError: if the action is not of floats with bounds, the experience is a queue, or a number
        is invalid.
    """
    network = checked_network(problem, 'TD3', (256, 256))
    optimizers = problem.optimizers({'critic': 3e-4, 'actor': 3e-4})
    networks, target_actor = make_networks(problem.specs, network, CriticOptions(2, layer_norm=critic_layer_norm))
    noise = (exploration_noise, exploration_damping)
    return DeterministicAgent(problem, networks, target_actor, optimizers, loss, target_update_tau, noise)


def checked_network(problem: Problem, algorithm: str, units: tuple[int, ...]) -> NetworkOptions:
    """Checks what the algorithm can learn from; returns the layers, of which `units` are the defaults.

    Raises:
      ValueError: see `make_agent`.
    """
    specs, leaves = problem.specs, tf.nest.flatten(problem.specs.action)
    if not leaves or not all(leaf.dtype.is_floating for leaf in leaves):
        raise UserValueError(
            f'got the action {specs.action}; {algorithm} needs continuous actions, one tensor of floats or a nest of '
            'these; choose another algorithm, or wrap the environment so that it has them'
        )
    for leaf in leaves:
        spec_checks.check_bounded(leaf, algorithm)
    parts.check_experience(problem.experience, algorithm)
    return problem.network.completed(specs, algorithm, fc_layer_params=units)


def make_networks(
    specs: EnvironmentSpecs, network: NetworkOptions, options: CriticOptions
) -> tuple[actor_critic.Networks, DeterministicActor]:
    """Makes the agent's networks and their variables, and the actor of the targets, within the strategy's scope."""
    actors = [DeterministicActor(specs.observation, specs.action, network, name) for name in ('Actor', 'TargetActor')]
    for actor in actors:
        actor.create_variables()
    numbers = sum(leaf.shape.num_elements() for leaf in tf.nest.flatten(specs.action))
    joined = tf.TensorSpec((numbers,), tf.float32, 'action')
    critics = critics_lib.make(specs.observation, joined, network, options)
    return actor_critic.Networks(actors[0], *critics), actors[1]


class NoisyPolicy(actor_policy.ActorPolicy):
    """Adds normal noise to an actor's action, and clips the sum to the bounds."""

    def __init__(self, specs: EnvironmentSpecs, actor: DeterministicActor, noise: float | Callable[[], tf.Tensor]):
        """
        Args:
          specs: the environment's specs.
          actor: observation -> action.
          noise: the deviation, or a function that returns the present one, as a share of half the
            range of each action.
        """
        super().__init__(specs.time_step, specs.action, actor, training=False)
        self._noise = noise

    def _apply_actor_network(self, *args: Any, **kwargs: Any) -> Any:
        actions, state = super()._apply_actor_network(*args, **kwargs)
        noise = self._noise() if callable(self._noise) else self._noise

        def distribution(mean: tf.Tensor, spec: types.BoundedTensorSpec) -> tfp.distributions.Distribution:
            half = tf.constant((spec.maximum - spec.minimum) / 2, spec.dtype)
            deviation = tf.cast(noise, spec.dtype) * half * tf.ones_like(mean)
            return tfp.distributions.Independent(tfp.distributions.Normal(mean, deviation), spec.shape.rank)

        return tf.nest.map_structure(distribution, actions, self.action_spec), state


class CorrelatedPolicy(noisy.NoisePolicy):
    """Noise of an Ornstein-Uhlenbeck process, from 0 on in each episode, in place of a `NoisyPolicy`'s.

    Uhlenbeck and Ornstein 1930, as in Lillicrap et al. 2016 (arXiv 1509.02971, section 7), in time
    steps of 1. In units of the policy's deviation, x' = (1 - damping) x + e, e ~ N(0, 1); the state
    is x.
    """

    def __init__(self, policy: NoisyPolicy, damping: float):
        """Takes the policy, and the damping in (0, 1), theta in the papers."""
        noise = tf.nest.map_structure(lambda spec: tf.TensorSpec(spec.shape, spec.dtype, 'noise'), policy.action_spec)
        super().__init__(policy, noise, 'correlated_policy', clip=True)
        self._damping = damping

    def _get_initial_state(self, batch_size: Any) -> Any:
        return tf.nest.map_structure(tf.zeros_like, super()._get_initial_state(batch_size))

    def _distribution(self, time_step: Any, policy_state: Any) -> policy_step.PolicyStep:
        def shifted(each: tfp.distributions.Independent, noise: tf.Tensor) -> tfp.distributions.Independent:
            mean, deviation = each.mean(), each.stddev()
            shift = deviation * (1 - self._damping) * noise
            return tfp.distributions.Independent(
                tfp.distributions.Normal(mean + shift, deviation), each.reinterpreted_batch_ndims
            )

        step = self._policy.distribution(time_step)
        return step._replace(action=tf.nest.map_structure(shifted, step.action, policy_state), state=policy_state)

    def _action(self, time_step: Any, policy_state: Any, seed: Any) -> policy_step.PolicyStep:
        step = self._distribution(time_step, policy_state)
        drawn = tf.nest.map_structure(lambda noise: tf.random.normal(tf.shape(noise), dtype=noise.dtype), policy_state)
        state = tf.nest.map_structure(lambda noise, new: (1 - self._damping) * noise + new, policy_state, drawn)
        action = tf.nest.map_structure(lambda each, new: each.mean() + each.stddev() * new, step.action, drawn)
        return step._replace(action=action, state=state)


class DeterministicAgent(actor_critic.ActorCriticAgent):
    """See the module. With one critic and without delay and noise it is DDPG.

    The extra metrics are means over the items of the global batch: `critic_loss`, `actor_loss`, and
    `value` of the data's actions, in the unit of returns; and TD3+BC's lambda, `value_scale`.
    """

    def __init__(
        self,
        problem: Problem,
        networks: actor_critic.Networks,
        target_actor: DeterministicActor,
        optimizers: Mapping[str, Optimizer],
        loss: TD3Loss,
        target_update_tau: float,
        exploration: tuple[float | schedules.Schedule, float],
    ):
        """Makes the agent, within the strategy's scope; see `make_agent`. `exploration`: the noise, and its damping."""
        exploration_noise, damping = exploration
        pairs = [(networks.actor, target_actor), (networks.critics, networks.targets)]
        targets = Targets(pairs, target_update_tau, loss.policy_delay)
        policy: Any = NoisyPolicy(problem.specs, networks.actor, problem.scheduled(exploration_noise))
        if damping < 1:
            policy = CorrelatedPolicy(policy, damping)
        super().__init__(problem, networks, optimizers, targets, loss, policy)
        self._target_actor = target_actor
        self._policy_delay = loss.policy_delay

    def _reduces(self, part: str) -> bool:
        return part == 'critic' and self._options.behavior_cloning_alpha is not None

    def _losses(self, experience: Any, weights: tf.Tensor | None, training: bool) -> parts.Losses:
        """Returns the losses of critics and actor on sequences [B, n + 1, ...]."""
        batch = actor_critic.of_n_steps(experience, self._options.gamma, self._options.reward_scale)
        taken = self._join(batch.action)

        def critic_loss(_: parts.Metrics) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
            bootstraps = self._bootstraps(batch, experience)
            values = tf.squeeze(self._critics(batch.observation, taken, training), axis=2)
            losses, metrics = actor_critic.critic_loss(batch, bootstraps, values)
            metrics = metrics | {'value': values[:, 0]}
            if self._options.behavior_cloning_alpha is not None:
                # Here, since a branch, which the actor's step is, can not reduce over the replicas.
                alpha = self._options.behavior_cloning_alpha
                metrics['value_scale'] = value_scale(alpha, metrics['value'], batch.counts)
            return losses, metrics

        def actor_loss(earlier: parts.Metrics) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
            action = self._join(self._actor(batch.observation, training=training)[0])
            losses = -tf.squeeze(self._critics(batch.observation, action, num=1), axis=[1, 2])
            if 'value_scale' in earlier:
                losses = earlier['value_scale'] * losses + distances(action, taken, self._bounds())
            return losses, {'actor_loss': losses}

        return batch.counts, {'critic': critic_loss, 'actor': actor_loss}

    def _join(self, action: Any) -> tf.Tensor:
        """Returns a nest of actions [B, ...] as float32 [B, numbers of the action]."""
        leaves = zip(tf.nest.flatten(action), tf.nest.flatten(self.action_spec), strict=True)
        flat = [tf.cast(tf.reshape(leaf, [-1, spec.shape.num_elements()]), tf.float32) for leaf, spec in leaves]
        return flat[0] if len(flat) == 1 else tf.concat(flat, axis=1)

    def _noise(self, actions: tf.Tensor) -> tf.Tensor:
        """Returns standard normal noise for the targets' actions."""
        return self._draws.normal(tf.shape(actions))

    def _bootstraps(self, batch: actor_critic.Transitions, experience: Any) -> tf.Tensor:
        """Returns the values of the next observations, float32 [B]."""
        action = self._join(self._target_actor(batch.next_observation)[0])
        if self._options.target_policy_noise:
            action = smoothed_actions(action, self._noise(action), self._bounds(), self._options)
        values = tf.reduce_min(self._target_critics(batch.next_observation, action), axis=[1, 2])
        if self._options.target_cloning_beta:
            taken = self._join(tf.nest.map_structure(lambda leaf: leaf[:, -1], experience.action))
            # Where an episode ends after the first row, no action follows.
            follows = tf.reduce_all(experience.next_step_type[:, 1:] != ts.StepType.FIRST, axis=1)
            penalties = self._options.target_cloning_beta * distances(action, taken, self._bounds())
            values -= tf.where(follows, penalties, 0.0)
        return values
