"""SAC with memory: actor and critics have LSTMs of their own, trained on sequences after a burn-in.

The losses are those of `sac.py` (Haarnoja et al. 2018, arXiv 1812.05905), as means over the steps of sequences. Actor
and critics have separate memories as in Ni et al. 2022, "Recurrent Model-Free RL Can Be a Strong Baseline for Many
POMDPs" (arXiv 2110.05038); stored states and burn-in are those of Kapturowski et al. 2019, "Recurrent Experience Replay
in Distributed Reinforcement Learning" (ICLR). With the memories h of the actor and g of a critic after x_t:

  y_t = r_t + gamma_t (min_i Q'_i(g'_t+1, a') - alpha log pi(a' | h_t+1))       a' drawn from pi(. | h_t+1)
  critic loss = sum_i (y_t - Q_i(g_t, a_t))^2
  actor loss = alpha log pi(a | h_t) - min_i Q_i(g_t, a)                        a drawn from pi(. | h_t)
  temperature loss = - log alpha (log pi(a | h_t) + target entropy)

TF-Agents' SacAgent also takes networks with memory. There each sequence starts with a state of zeros, the networks of
the next step start one step later, and the critics' memory is fed the actions that are evaluated, so that it holds
others than those that were taken. So this is an agent of its own: a critic's memory is of observations only.

The actor starts with its stored state; the critics, which do not act, start with zeros, so they need the burn-in.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf
from tf_agents.agents import tf_agent
from tf_agents.agents.sac import sac_agent
from tf_agents.policies import actor_policy, greedy_policy
from tf_agents.trajectories import time_step as ts
from tf_agents.utils import common

from tflearn.core.errors import UserValueError
from tflearn.core.experience import Experience
from tflearn.core.train_step import Draws
from tflearn.core.types import EnvironmentSpecs
from tflearn.networks import heads, recurrent
from tflearn.optimization import optimizers


class Units(NamedTuple):
    """The sizes of the layers [units].

    Attributes:
      lstm: the LSTM layers of each network.
      actor: the layer before each memory, and the actor's layers after it.
      critic: the critics' layers after the concatenation of memory and action.
    """

    lstm: Sequence[int]
    actor: Sequence[int]
    critic: Sequence[int]


class LossOptions(NamedTuple):
    """The losses' settings; see `sac.make_agent` for them."""

    gamma: float
    reward_scale: float
    target_entropy: float
    initial_log_alpha: float
    burn_in_steps: int


class TargetUpdate(NamedTuple):
    """How the targets' critics follow the others; see `sac.make_agent`."""

    period: int
    tau: float


class Networks(NamedTuple):
    """The agent's networks: two critics, and two for the targets."""

    actor: recurrent.RecurrentActor
    critics: tuple[recurrent.RecurrentCritic, recurrent.RecurrentCritic]
    targets: tuple[recurrent.RecurrentCritic, recurrent.RecurrentCritic]


def check(experience: Experience, burn_in_steps: int, actor_network: Any, conservative_weight: float) -> None:
    """Checks the arguments of `sac.make_agent` that are for an agent with memory.

    Raises:
      ValueError: if the sequences are too short for the burn-in, or there is an `actor_network` or a
        `conservative_weight`.
    """
    if actor_network is not None:
        raise UserValueError(
            'got actor_network with lstm_size; need one of them; use make_network for a memory of your own'
        )
    if conservative_weight:
        raise UserValueError('got conservative_weight with lstm_size; need one of them; remove lstm_size')
    length = experience.slicing.sequence_length
    if burn_in_steps < 0 or length < burn_in_steps + 2:
        raise UserValueError(
            f'got Slicing.sequence_length={length} with burn_in_steps={burn_in_steps}; need at least '
            f'{max(burn_in_steps, 0) + 2}, and at least 0 steps of burn-in, so that a step is trained, with the '
            'observation after it'
        )


def make_networks(specs: EnvironmentSpecs, units: Units, encoding: Mapping[str, Any]) -> Networks:
    """Makes the networks.

    Args:
      specs: the environment's specs.
      units: the sizes of their layers.
      encoding: how observations enter each of them; see `recurrent.make_encoder`.
    """

    def memory(name: str) -> Any:
        return recurrent.make_encoder(specs.observation, units.lstm, units.actor[:1], **encoding, name=name)

    actor = recurrent.RecurrentActor(specs.observation, specs.action, memory('actor'), units.actor[1:])
    critics = [recurrent.RecurrentCritic(specs.action, memory('critic'), units.critic) for _ in range(4)]
    return Networks(actor, (critics[0], critics[1]), (critics[2], critics[3]))


class RecurrentSacAgent(tf_agent.TFAgent):
    """See the module. The extra metrics are the three losses, as those of `sac.py`."""

    def __init__(
        self,
        specs: EnvironmentSpecs,
        train_step: tf.Variable,
        experience: Experience,
        networks: Networks,
        made: Sequence[optimizers.Optimizer],
        options: LossOptions,
        target_update: TargetUpdate,
    ):
        """Makes the agent, within the strategy's scope; see `sac.make_agent`.

        Args:
          specs: the environment's specs.
          train_step: see `sac.make_agent`.
          experience: see `sac.make_agent`.
          networks: the agent's networks.
          made: the optimizers of critics, actor and temperature.
          options: the losses' settings.
          target_update: how the targets follow.
        """
        policy = actor_policy.ActorPolicy(specs.time_step, specs.action, networks.actor, training=False)
        super().__init__(
            specs.time_step,
            specs.action,
            policy=greedy_policy.GreedyPolicy(policy),
            collect_policy=policy,
            train_sequence_length=experience.slicing.sequence_length,
            train_step_counter=train_step,
        )
        self._actor, self._critics, self._targets = networks
        self._made, self._options, self._target_update = tuple(made), options, target_update
        self._log_alpha = tf.Variable(options.initial_log_alpha, dtype=tf.float32, name='initial_log_alpha')
        self._stored_state = experience.slicing.store_policy_state
        self._draws = Draws(train_step)

    def _initialize(self) -> None:
        for target, trained in self._target_pairs():
            target.assign(trained)

    def _target_pairs(self) -> list[tuple[tf.Variable, tf.Variable]]:
        pairs = zip(self._targets, self._critics, strict=True)
        return [pair for target, critic in pairs for pair in zip(target.variables, critic.variables, strict=True)]

    def _train(self, experience: Any, weights: tf.Tensor | None) -> tf_agent.LossInfo:
        critics = [variable for critic in self._critics for variable in critic.trainable_variables]
        trained = (critics, self._actor.trainable_variables, [self._log_alpha])
        losses: list[tf.Tensor] = []
        for loss, variables, optimizer in zip(self._parts(experience, weights, True), trained, self._made, strict=True):
            with tf.GradientTape(watch_accessed_variables=False) as tape:
                tape.watch(variables)
                losses.append(loss())
            gradients = tape.gradient(losses[-1], variables)
            # The sum of the losses so far: if the critics' step is skipped, so is the actor's on the same batch.
            optimizer.apply_gradients(zip(gradients, variables, strict=True), tf.add_n(losses))
        self.train_step_counter.assign_add(1)
        due = tf.equal(self.train_step_counter % self._target_update.period, 0)

        # Only in cross-replica context may a branch assign variables; see `optimizers`.
        def update(strategy: tf.distribute.Strategy, due: tf.Tensor) -> None:
            tf.cond(strategy.experimental_local_results(due)[0], self._update_targets, lambda: None)

        tf.distribute.get_replica_context().merge_call(update, (due,))
        return _loss_info(losses)

    def _update_targets(self) -> None:
        tau = self._target_update.tau
        for target, trained in self._target_pairs():
            target.assign((1 - tau) * target + tau * trained)

    def _loss(self, experience: Any, weights: tf.Tensor | None = None, training: bool = False) -> tf_agent.LossInfo:
        return _loss_info([loss() for loss in self._parts(experience, weights, training)])

    def _parts(self, experience: Any, weights: tf.Tensor | None, training: bool) -> list[Callable[[], tf.Tensor]]:
        """Returns the losses of the critics, the actor and the temperature as functions of the variables."""
        self._draws.restart()
        burn_in = self._options.burn_in_steps
        steps = tf.nest.map_structure(lambda leaf: leaf[:, burn_in:-1], experience._replace(policy_info=()))
        # Rows between two episodes, and those in which an environment failed, have no action.
        counts = tf.cast(steps.next_step_type != ts.StepType.FIRST, tf.float32)
        total = tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, tf.reduce_sum(counts))

        def mean(losses: tf.Tensor) -> tf.Tensor:
            """Returns this replica's share of the mean of losses [B, M] over the global batch's valid steps."""
            weighted = losses if weights is None else weights[:, tf.newaxis] * losses
            return tf.math.divide_no_nan(tf.reduce_sum(tf.where(counts > 0, weighted, 0.0)), total)

        actors_log_probs: list[tf.Tensor] = []
        return [
            lambda: mean(self._critic_losses(experience, steps, counts, training)),
            lambda: mean(self._actor_losses(experience, training, actors_log_probs)),
            lambda: mean(self._alpha_losses(*actors_log_probs)),
        ]

    def _features(self, critic: recurrent.RecurrentCritic, experience: Any, training: bool = False) -> tf.Tensor:
        """Returns a critic's memory after each row from the burn-in on, [B, M + 1, n]."""
        burn_in = self._options.burn_in_steps
        return recurrent.after_burn_in(
            critic.memory, experience.observation, experience.step_type, (), burn_in, training
        )

    def _drawn(self, experience: Any, training: bool = False) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns actions [B, M + 1, ...] drawn after each row from the burn-in on, and their log-probabilities."""
        state = recurrent.stored_state(experience) if self._stored_state else ()
        distribution = recurrent.after_burn_in(
            self._actor,
            experience.observation,
            experience.step_type,
            state,
            self._options.burn_in_steps,
            training,
        )
        actions = heads.sample(distribution, self._draws)
        return actions, common.log_probability(distribution, actions, self.action_spec)

    def _critic_losses(self, experience: Any, steps: Any, counts: tf.Tensor, training: bool) -> tf.Tensor:
        options = self._options
        actions, log_probs = self._drawn(experience)
        values = [target.value(self._features(target, experience), actions) for target in self._targets]
        bootstraps = (tf.minimum(*values) - tf.exp(self._log_alpha) * log_probs)[:, 1:]
        targets = options.reward_scale * steps.reward + options.gamma * steps.discount * bootstraps
        targets = tf.stop_gradient(tf.where(counts > 0, targets, 0.0))
        errors = [
            targets - critic.value(self._features(critic, experience, training)[:, :-1], steps.action)
            for critic in self._critics
        ]
        return tf.add_n([tf.square(error) for error in errors])

    def _actor_losses(self, experience: Any, training: bool, drawn: list[tf.Tensor]) -> tf.Tensor:
        actions, log_probs = self._drawn(experience, training)
        drawn.append(tf.stop_gradient(log_probs))
        values = [critic.value(self._features(critic, experience), actions) for critic in self._critics]
        return (tf.exp(self._log_alpha) * log_probs - tf.minimum(*values))[:, :-1]

    def _alpha_losses(self, log_probs: tf.Tensor) -> tf.Tensor:
        return -self._log_alpha * (log_probs[:, :-1] + self._options.target_entropy)


def _loss_info(losses: list[tf.Tensor]) -> tf_agent.LossInfo:
    critic, actor, alpha = losses
    return tf_agent.LossInfo(critic + actor + alpha, sac_agent.SacLossInfo(critic, actor, alpha))
