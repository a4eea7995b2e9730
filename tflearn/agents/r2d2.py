"""R2D2: recurrent deep Q-networks on replayed sequences that start with the stored state.

Kapturowski et al. 2019, "Recurrent Experience Replay in Distributed Reinforcement Learning" (ICLR):
stored states, burn-in, priorities of sequences (section 2.3), double Q-learning, dueling, n-step
returns. Pohlen et al. 2018, "Observe and Look Further: Achieving Consistent Performance on Atari"
(arXiv 1805.11593): rescaled values, with

  h(x) = sign(x) (sqrt(|x| + 1) - 1) + epsilon x

For the steps of a sequence after its burn-in, with the values Q of the trained network, Q' of the
target network, and a* = argmax_a Q(x_t, a):

  V_t = h^-1(Q'(x_t, a*))
  G_t = r_t + gamma_t r_t+1 + ... + gamma_t ... gamma_t+m-1 V_t+m
  loss_t = 0.5 (h(G_t) - Q(x_t, a_t))^2

m is n, or less where the episode or the sequence ends before; both end with a value, except after a
termination, where gamma is 0. The target network has its own state, from the same stored one and
the same burn-in.

Differs from the paper: sequences may continue from one episode into the next
(`Slicing.cross_episodes`), where the state is reset: short episodes fill sequences, and the first
steps of an episode are trained too. The last reward and action are inputs of the network only with
`NetworkOptions.previous_action` and `previous_reward`. Adam is the default.
"""

from collections.abc import Mapping
from typing import Any

import tensorflow as tf
from tf_agents.policies import epsilon_greedy_policy, q_policy, tf_policy
from tf_agents.trajectories import time_step as ts

from tflearn.agents import parts, value_exploration
from tflearn.agents.algorithm import Example, factory
from tflearn.agents.parts import Problem
from tflearn.core.action_mask import ActionMask, make_mask
from tflearn.core.experience import BatchItems, Experience, Slicing, Uniform
from tflearn.core.settings import (
    Fraction,
    NonNegativeInt,
    PositiveFloat,
    PositiveFraction,
    PositiveInt,
    checked,
    checked_dataclass,
)
from tflearn.core.types import Agent
from tflearn.networks import recurrent, spec_checks
from tflearn.networks.critics import Targets
from tflearn.networks.networks import NetworkOptions
from tflearn.optimization import schedules
from tflearn.optimization.optimizers import Optimizer

# 10 steps of burn-in, 20 that are trained, and the observation after them; each step is trained in
# one sequence.
EXPERIENCE = Experience(
    slicing=Slicing(sequence_length=31, stride=20, cross_episodes=True, store_policy_state=True),
    replay=Uniform(max_size=20_000, min_size=100, samples_per_insert=32.0),
    batch=BatchItems(32),
)


@checked_dataclass(frozen=True)
class R2D2Loss:
    """The targets of the values, and the priorities.

    Attributes:
      gamma: the discount per environment step, in [0, 1].
      n_step: the largest number of rewards in a return [environment steps].
      burn_in_steps: the first steps of a sequence, which only change the network's state
        [environment steps].
      double: whether the trained network chooses the next action (van Hasselt et al. 2016, arXiv
        1509.06461).
      rescaling: epsilon of h; None does not rescale values.
      priority_eta: the weight of the largest error of a sequence in its priority; the mean error
        has the rest.
    """

    gamma: Fraction = 0.997
    n_step: PositiveInt = 5
    burn_in_steps: NonNegativeInt = 10
    double: bool = True
    rescaling: PositiveFloat | None = 1e-3
    priority_eta: Fraction = 0.9


EXAMPLE = Example(
    ('discrete',),
    network=NetworkOptions((8,), lstm_size=(4,)),
    settings={'loss': R2D2Loss(burn_in_steps=1)},
    sequence_length=5,
)


@checked
@factory
def make_agent(
    problem: Problem,
    *,
    loss: R2D2Loss = R2D2Loss(),
    dueling: bool = True,
    action_mask: str | None = None,
    epsilon: float | schedules.Schedule = 0.1,
    exploration: value_exploration.ByValues | None = None,
    target_update_period: PositiveInt = 100,
    target_update_tau: PositiveFraction = 1.0,
) -> Agent:
    """Makes an R2D2 agent for one discrete action.

    Args:
      experience: the experience, of uniform or prioritized order, of sequences with more than
        `burn_in_steps` + 1 rows. The last row is only used for its observation's value. Without
        `Slicing.store_policy_state` each sequence starts with a state of zeros. With prioritized
        order, `train` takes the items' weights [B], and the extra `td_error` [B] becomes their
        priorities.
      network: the layers; (64,) units, before an LSTM of (64,).
      optimizer: the optimizer, of the part `r2d2`; 1e-3, clipped at 40.
      loss: the targets of the values, the burn-in, and the priorities.
      exploration: as DQN has it; values are the rescaled ones of the network.

    Raises:
      ValueError: if the action is not one discrete number, the experience is a queue, or its
        sequences are too short.
    """
    specs = problem.specs
    spec_checks.check_one_discrete_action(specs.action, 'R2D2')
    unused = ('shared', 'critic_fc_layer_params', 'make_head')
    network = problem.network.completed(specs, 'R2D2', unused, fc_layer_params=(64,), lstm_size=(64,))
    parts.check_experience(problem.experience, 'R2D2', True, loss.burn_in_steps)
    mask, observation_spec = make_mask(specs, action_mask)

    def q_network(name: str) -> recurrent.RecurrentQNetwork:
        features = network.make_encoder(observation_spec, 'encoder', with_memory=True)
        return recurrent.RecurrentQNetwork(observation_spec, specs.action, features, dueling, name)

    optimizers = problem.optimizers({'r2d2': 1e-3}, 40.0)
    networks = q_network('QNetwork'), q_network('TargetNetwork')
    targets = Targets([networks], target_update_tau, target_update_period)
    return R2D2Agent(problem, networks, mask, optimizers, targets, loss, problem.scheduled(epsilon), exploration)


class R2D2Agent(parts.PartsAgent):
    """See the module.

    The extra metrics of the loss: `td_error` [B], the errors of the sequences from which priorities
    are made; and means over the valid trained steps of the global batch: `td_loss`,
    `mean_abs_td_error`, `mean_value` (of the actions that were taken).
    """

    def __init__(
        self,
        problem: Problem,
        networks: tuple[recurrent.RecurrentQNetwork, recurrent.RecurrentQNetwork],
        mask: ActionMask | None,
        optimizers: Mapping[str, Optimizer],
        targets: Targets,
        loss: R2D2Loss,
        epsilon: Any,
        exploration: value_exploration.ByValues | None,
    ):
        """Makes the agent, within the strategy's scope; see `make_agent`. `networks` are the trained and the target."""
        self._options, self._action_mask = loss, mask
        self._network, self._target = networks
        policy = q_policy.QPolicy(
            problem.specs.time_step,
            problem.specs.action,
            self._network,
            observation_and_action_constraint_splitter=mask,
        )
        explored: tf_policy.TFPolicy = epsilon_greedy_policy.EpsilonGreedyPolicy(policy, epsilon)
        if exploration is not None:
            explored = value_exploration.ValuePolicy(policy, exploration, problem.train_step)
        super().__init__(problem, explored, optimizers, targets, policy)
        self._stored_state = problem.experience.slicing.store_policy_state

    def _trained(self, part: str) -> list[Any]:
        return [self._network]

    def errors(self, errors: tf.Tensor, counts: tf.Tensor) -> tf.Tensor:
        """See `PartsAgent.errors`; here the paper's mix of the largest and the mean one."""
        return sequence_errors(errors, counts, self._options.priority_eta)

    def _losses(self, experience: Any, weights: tf.Tensor | None, training: bool) -> parts.Losses:
        """Returns the loss of the trained steps, [B, M]."""
        options, burn_in = self._options, self._options.burn_in_steps
        trained = tf.nest.map_structure(lambda leaf: leaf[:, burn_in:-1], experience._replace(policy_info=()))
        # Rows between two episodes, and those in which an environment failed, have no action.
        valid = trained.next_step_type != ts.StepType.FIRST

        def loss(_: parts.Metrics) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
            values, bootstraps = self._values(experience, training)
            discounts = options.gamma * trained.discount
            returns = n_step_returns(trained.reward, discounts, bootstraps, valid, options.n_step)
            targets = tf.stop_gradient(rescaled_values(returns, options.rescaling))
            taken = tf.gather(values[:, :-1], tf.cast(trained.action, tf.int32), batch_dims=2)
            errors = tf.where(valid, targets - taken, 0.0)
            losses = 0.5 * tf.square(errors)
            metrics = {'td_loss': losses, 'mean_abs_td_error': tf.abs(errors), 'mean_value': taken}
            return losses, metrics | {parts.ERRORS: errors}

        return tf.cast(valid, tf.float32), {'r2d2': loss}

    def _values(self, experience: Any, training: bool) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the actions' values [B, M + 1, A] after the burn-in, and V [B, M + 1] of the targets."""
        observation, mask = experience.observation, None
        if self._action_mask is not None:
            observation, mask = self._action_mask(observation)
        state = recurrent.stored_state(experience) if self._stored_state else ()
        burn_in = self._options.burn_in_steps
        values, targets = (
            recurrent.after_burn_in(made, observation, experience.step_type, state, burn_in, training)
            for made in (self._network, self._target)
        )
        choice = values if self._options.double else targets
        if mask is not None:
            choice = tf.where(mask[:, burn_in:], choice, choice.dtype.min)
        best = tf.gather(targets, tf.argmax(choice, axis=-1, output_type=tf.int32), batch_dims=2)
        return values, tf.stop_gradient(unscaled(best, self._options.rescaling))


def n_step_returns(
    rewards: tf.Tensor, discounts: tf.Tensor, values: tf.Tensor, valid: tf.Tensor, n_step: int
) -> tf.Tensor:
    """Returns G of the module's equation, float32 [B, T].

    Args:
      rewards: float32 [B, T], r_t.
      discounts: float32 [B, T], gamma_t: 0 where the episode was terminated.
      values: float32 [B, T + 1], V(x_t), including that of the last observation.
      valid: bool [B, T], false between two episodes and where an environment failed: returns end
        there with the value of that row's observation, which is the last one of the episode. The
        other arguments have no effect there.
      n_step: the largest number of rewards in a return.
    """
    rewards, discounts = (tf.where(valid, part, 0.0) for part in (rewards, discounts))
    returns = values
    for _ in range(n_step):  # after round k they have k rewards
        extended = tf.where(valid, rewards + discounts * returns[:, 1:], values[:, :-1])
        returns = tf.concat([extended, values[:, -1:]], axis=1)
    return returns[:, :-1]


def rescaled_values(values: tf.Tensor, epsilon: float | None) -> tf.Tensor:
    """Returns h(x), of any shape; x if epsilon is None. (Without the difference of the formula, which rounds badly.)"""
    if epsilon is None:
        return values
    return values * (1.0 / (tf.sqrt(tf.abs(values) + 1.0) + 1.0) + epsilon)


def unscaled(values: tf.Tensor, epsilon: float | None) -> tf.Tensor:
    """Returns h^-1(x), of any shape; x if epsilon is None (Pohlen et al. 2018, proposition A.2)."""
    if epsilon is None:
        return values
    size = tf.abs(values) + 1.0 + epsilon
    root = 2.0 * size / (tf.sqrt(1.0 + 4.0 * epsilon * size) + 1.0)
    return tf.sign(values) * (tf.square(root) - 1.0)


def sequence_errors(errors: tf.Tensor, counts: tf.Tensor, eta: float) -> tf.Tensor:
    """Returns eta max |error| + (1 - eta) mean |error| of each sequence, float32 [B]; 0 for one without valid steps.

    Args:
      errors: float32 [B, T], 0 at invalid steps.
      counts: float32 [B, T], 1 for valid steps, 0 for others.
      eta: the weight of the maximum.
    """
    sizes = tf.abs(tf.stop_gradient(errors))
    mean = tf.math.divide_no_nan(tf.reduce_sum(sizes, axis=1), tf.reduce_sum(counts, axis=1))
    return eta * tf.reduce_max(sizes, axis=1) + (1.0 - eta) * mean
