"""Deep Q-networks: plain, double, n-step, dueling, noisy, of distributions (C51, QR-DQN); all of them are Rainbow.

Mnih et al. 2015, "Human-level control through deep reinforcement learning" (Nature 518); van
Hasselt et al. 2016, "Deep Reinforcement Learning with Double Q-learning" (arXiv 1509.06461); n-step
returns as in Hessel et al. 2018, "Rainbow" (arXiv 1710.02298). The agent is TF-Agents', except for
its train step; here it gets network, optimizer and schedules.
"""

import contextlib
import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf
import tensorflow_probability as tfp
from tf_agents.agents import tf_agent
from tf_agents.agents.dqn import dqn_agent
from tf_agents.trajectories import time_step as ts
from tf_agents.trajectories import trajectory
from tf_agents.utils import common

from tflearn.agents import actor_critic, own_loss, value_exploration
from tflearn.agents.algorithm import Example, factory
from tflearn.agents.parts import Problem, check_experience
from tflearn.core import agent_data, strategies
from tflearn.core.action_mask import make_mask
from tflearn.core.errors import UserValueError
from tflearn.core.experience import Experience, Uniform
from tflearn.core.layout import ColumnLayout
from tflearn.core.settings import Finite, Fraction, PositiveFraction, PositiveInt, checked
from tflearn.core.train_step import Draws
from tflearn.core.types import Agent
from tflearn.networks import noisy, spec_checks
from tflearn.networks.action_embeddings import ActionEmbeddings, EmbeddedQNetwork
from tflearn.networks.networks import DistributionalQNetwork, NetworkOptions, QNetwork
from tflearn.optimization import conservative, distributional, schedules
from tflearn.optimization.optimizers import summarizes_halves

EXPERIENCE = Experience(replay=Uniform(samples_per_insert=32.0))

EXAMPLE = Example(
    ('discrete',),
    variants={
        'qr_dqn': {'settings': {'distribution': distributional.Quantiles(5)}},
        'c51': {'settings': {'distribution': distributional.Categorical(11)}},
        'discrete_cql': {'settings': {'conservative_weight': 1.0}},
        'rainbow': {
            'settings': {
                'dueling': True,
                'distribution': distributional.Categorical(11),
                'noisy_sigma': 0.5,
                'epsilon': 0.0,
            },
            'sequence_length': 4,
        },
    },
)


@checked
@factory
def make_agent(
    problem: Problem,
    *,
    action_mask: str | None = None,
    action_embeddings: ActionEmbeddings | None = None,
    gamma: Fraction = 0.99,
    reward_scale: Finite = 1.0,
    double: bool = True,
    dueling: bool = False,
    distribution: distributional.Quantiles | distributional.Categorical | None = None,
    noisy_sigma: float | None = None,
    conservative_weight: float = 0.0,
    demonstration_margin: float = 0.0,
    epsilon: float | schedules.Schedule = 0.1,
    exploration: value_exploration.ByValues | None = None,
    target_update_period: PositiveInt = 100,
    target_update_tau: PositiveFraction = 1.0,
    huber: bool = True,
    debug_summaries: bool = False,
    extra_loss: own_loss.ExtraLoss | None = None,
) -> Agent:
    """Makes a DQN agent for one discrete action, with n-step returns, n = `experience.slicing.sequence_length` - 1.

    Args:
      experience: the experience, of uniform or prioritized order. With the latter, `train` takes
        the items' weights [B], and the extra `td_error` [B] becomes their priorities.
      network: the layers before the last one; fully connected ones of (100, 50) units. Mnih et al.
        used the convolutions ((32, 8, 4), (64, 4, 2), (64, 3, 1)).
      optimizer: the optimizer, of the part `dqn`; 1e-3, without clipping.
      action_embeddings: values as a function of the observation and of each action's vector, for
        thousands of actions; not together with `dueling`, `distribution` or `noisy_sigma`. None has
        an output for each action.
      reward_scale: the factor of the rewards: with returns in the hundreds a network learns sooner
        what is near 1.
      double: whether the online network chooses the next action (van Hasselt et al. 2016, equation
        4).
      distribution: `distributional.Quantiles` (QR-DQN) or `Categorical` (C51) learns the
        distributions of the actions' returns; None learns their means.
      noisy_sigma: the initial deviation of noisy layers (Fortunato et al. 2018, arXiv 1706.10295),
        which take the place of the fully connected ones and explore instead of `epsilon`, which is
        0 in the paper, or beside it; 0.5 in the paper. The collect policy and both networks of the
        loss draw noise, the greedy policy does not. None has no such layers.
      conservative_weight: the weight alpha of log(sum over actions of exp(value)) - value of the
        item's action in the loss (Kumar et al. 2020, "Conservative Q-Learning for Offline
        Reinforcement Learning", arXiv 2006.04779, equation 4): values of actions that the data do
        not have stay low. For training from files; 0 has none.
      demonstration_margin: by how much values of an item's action are to be above those of all
        others, if the item is one of `Initial.demonstrations`: a loss of such items besides the
        others' (Hester et al. 2018, "Deep Q-learning from Demonstrations", arXiv 1704.03732,
        equation 2; 0.8 in the paper). 0 has none.
      exploration: `SquareCB` or `Boltzmann` draw actions by their values, in place of `epsilon`; None
        is epsilon-greedy.
      huber: whether the loss is the Huber loss of the temporal-difference error, as in Mnih et al.;
        else its square. With a distribution it has no meaning.
      debug_summaries: whether the steps that are summarized include what TF-Agents' agent writes
        for debugging.

    Raises:
      ValueError: if the action is not one discrete number, the experience is a queue, there are
        convolutions and the observation has no image, or the embeddings do not fit the actions.
    """
    specs = problem.specs
    network = problem.network.completed(
        specs, 'DQN', ('lstm_size', 'shared', 'critic_fc_layer_params', 'make_head'), fc_layer_params=(100, 50)
    )
    spec_checks.check_one_discrete_action(specs.action, 'DQN')
    check_experience(problem.experience, 'DQN')
    mask, observation_spec = make_mask(specs, action_mask)
    noise = None if noisy_sigma is None else noisy.Noise(noisy_sigma)
    parts = (observation_spec, specs.action, network)
    made, q_network = _kind(parts, double, distribution, action_embeddings, {'dueling': dueling, 'noise': noise})
    agent = made(
        *(specs.time_step, specs.action),
        q_network=q_network,
        optimizer=problem.optimizers({'dqn': 1e-3})['dqn'],
        conservative_weight=conservative_weight,
        demonstration_margin=demonstration_margin,
        extra_loss=extra_loss,
        noise=noise,
        exploration=exploration,
        observation_and_action_constraint_splitter=mask,
        epsilon_greedy=problem.scheduled(epsilon),
        n_step_update=problem.experience.slicing.sequence_length - 1,
        target_update_period=target_update_period,
        target_update_tau=target_update_tau,
        td_errors_loss_fn=common.element_wise_huber_loss if huber else common.element_wise_squared_loss,
        gamma=gamma,
        reward_scale_factor=reward_scale,
        debug_summaries=debug_summaries,
        train_step_counter=problem.train_step,
    )
    return own_loss.checked(agent, extra_loss, problem.experience)


def _kind(
    parts: tuple[Any, Any, NetworkOptions],
    double: bool,
    distribution: distributional.Distribution | None,
    action_embeddings: ActionEmbeddings | None,
    last_layers: dict[str, Any],
) -> tuple[Callable[..., '_DqnAgent'], QNetwork]:
    """Returns the agent's class, or what makes it, and the network, of the specs and layers."""
    plain = _DdqnAgent if double else _DqnAgent
    if action_embeddings is not None:
        if distribution is not None or any(last_layers.values()):
            raise UserValueError(
                'got action_embeddings with dueling, distribution or noisy_sigma; need none of them: the values of '
                'embedded actions have last layers of their own'
            )
        return plain, EmbeddedQNetwork(*parts, action_embeddings)
    if distribution is None:
        return plain, QNetwork(*parts, **last_layers)
    network = DistributionalQNetwork(*parts, num_outputs=distribution.num, means=distribution.means, **last_layers)
    return functools.partial(_DistributionalAgent, distribution, double), network


class _DqnAgent(dqn_agent.DqnAgent):
    """TF-Agents' agent, whose train step does not raise if the loss is not finite, since the learner checks that."""

    def __init__(
        self,
        *args: Any,
        conservative_weight: float = 0.0,
        demonstration_margin: float = 0.0,
        extra_loss: own_loss.ExtraLoss | None = None,
        noise: noisy.Noise | None = None,
        exploration: value_exploration.ByValues | None = None,
        **kwargs: Any,
    ):
        """Takes DqnAgent's arguments, those of `make_agent`, and the noise of the networks' layers."""
        super().__init__(*args, **kwargs)
        if exploration is not None:
            values, step = self.policy.wrapped_policy, self.train_step_counter
            self._collect_policy = value_exploration.ValuePolicy(values, exploration, step)
        self._conservative_weight, self._margin, self._noise = conservative_weight, demonstration_margin, noise
        self._draws, self._extra_loss = Draws(self.train_step_counter), extra_loss
        if noise:
            self._collect_policy = noisy.NoisyPolicy(self.collect_policy, noise, self._q_network)
        joined = ColumnLayout(self.time_step_spec.observation)
        if joined.joins:
            convert: Any = vars(self)['_as_transition']
            self._as_transition = _ends_at_once(convert, joined)

    def _loss(self, experience: Any, weights: tf.Tensor | None = None, **settings: Any) -> tf_agent.LossInfo:
        # TF-Agents' own defaults are not the agent's, so that `loss` would not be what `train`
        # minimizes.
        own = {
            'td_errors_loss_fn': self._td_errors_loss_fn,
            'gamma': self._gamma,
            'reward_scale_factor': self._reward_scale_factor,
        }
        self._draws.restart()
        normal = lambda features: self._draws.normal(tf.shape(features))  # noqa: E731
        with self._noise.drawn(normal) if self._noise else contextlib.nullcontext():
            loss_info = super()._loss(experience, weights=weights, **(own | settings))
        shown = agent_data.demonstrated() if self._margin else None
        if not self._conservative_weight and shown is None and self._extra_loss is None:
            return loss_info
        penalty, own = self._penalty(experience, weights, shown)
        extra = {**loss_info.extra._asdict(), **own} if own else loss_info.extra
        return tf_agent.LossInfo(loss_info.loss + penalty, extra)

    def _penalty(
        self, experience: Any, weights: tf.Tensor | None, shown: tf.Tensor | None
    ) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        """Returns the other terms as a mean over the global batch, and metrics of `extra_loss`, of items or scalars."""
        steps, policy_step, _ = vars(self)['_as_transition'](experience)
        observation, legal = steps.observation, None
        if self._observation_and_action_constraint_splitter is not None:
            observation, legal = self._observation_and_action_constraint_splitter(observation)
        values, _ = self._q_network(observation, step_type=steps.step_type, training=True)
        possible = values if legal is None else tf.where(tf.cast(legal, tf.bool), values, values.dtype.min)
        own = tf.gather(values, policy_step.action, batch_dims=1)
        # What keeps values of other actions than the items' low.
        per_item = self._conservative_weight * conservative.gap(possible, own)
        if shown is not None:
            others = 1.0 - tf.one_hot(policy_step.action, values.shape[-1], dtype=values.dtype)
            gaps = tf.reduce_max(possible + self._margin * others, axis=-1) - own
            per_item += tf.where(shown, gaps, 0.0)
        metrics: dict[str, tf.Tensor] = {}
        if self._extra_loss:
            samples = actor_critic.of_n_steps(experience, self._gamma, self._reward_scale_factor)
            distribution = tfp.distributions.Categorical(logits=possible)
            term, metrics = own_loss.term_of(self._extra_loss, own, distribution, values, samples)
            per_item += term
        # 0 between two episodes, as TF-Agents' loss and error.
        valid = ~steps.is_last()
        counted = lambda each: tf.where(valid, each, 0.0) if each.shape.rank else each  # noqa: E731
        total = common.aggregate_losses(per_example_loss=counted(per_item), sample_weight=weights).total_loss
        return total, {name: counted(each) for name, each in metrics.items()}

    def _train(self, experience: Any, weights: tf.Tensor | None) -> tf_agent.LossInfo:
        variables = self._q_network.trainable_weights

        def gradients_of(
            experience: Any, weights: tf.Tensor | None, training: bool = True
        ) -> tuple[tf_agent.LossInfo, list[tf.Tensor]]:
            with tf.GradientTape() as tape:
                loss_info = self._loss(experience, weights, training=training)
            gradients = tape.gradient(loss_info.loss, variables, self._optimizer.output_gradient(loss_info.loss))
            return loss_info, self._optimizer.unscaled(gradients)

        loss_info, gradients = strategies.compiled(gradients_of)(experience, weights)
        half = None
        if summarizes_halves() and not self._margin:
            first = lambda leaf: leaf[: tf.shape(leaf)[0] // 2]  # noqa: E731
            given = tf.nest.map_structure(first, experience), None if weights is None else first(weights)
            with tf.summary.record_if(False):  # each summary once, and each change of a layer's statistics
                half = [None if each is None else each / 2 for each in gradients_of(*given, training=False)[1]]
        self._optimizer.apply_gradients(zip(gradients, variables, strict=True), loss_info.loss, half=half)
        self.train_step_counter.assign_add(1)
        self._update_target()
        return loss_info


def _ends_at_once(as_transition: Callable[[Any], Any], joined: ColumnLayout) -> Callable[[Any], Any]:
    """Returns TF-Agents' converter of sequences with few operations for all parts of an observation.

    Its own operations, two for each part, are in no program, since nothing uses their results.
    """

    def convert(experience: Any) -> Any:
        steps, action, next_steps = as_transition(experience)
        if isinstance(experience, trajectory.Trajectory):
            tensors = joined.join(experience.observation)
            steps = steps._replace(observation=joined.divide([tensor[:, 0] for tensor in tensors]))
            next_steps = next_steps._replace(observation=joined.divide([tensor[:, -1] for tensor in tensors]))
        return trajectory.Transition(steps, action, next_steps)

    return convert


class _DdqnAgent(_DqnAgent, dqn_agent.DdqnAgent):
    """The agent with the double DQN's target."""


class _DistributionalAgent(_DqnAgent):
    """The agent whose values are the means of learned distributions: TF-Agents' agent with another loss."""

    def __init__(self, distribution: distributional.Distribution, double: bool, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self._distribution, self._double = distribution, double

    def _compute_q_values(self, time_steps: ts.TimeStep, actions: tf.Tensor, training: bool = False) -> tf.Tensor:
        """Returns the distributions of the items' actions, float32 [B, N]."""
        return self._of_actions(self._q_network, time_steps, actions, training)

    def _compute_next_q_values(self, next_time_steps: ts.TimeStep, info: Any) -> tf.Tensor:
        """Returns the target network's distributions of the best actions, float32 [B, N]."""
        del info
        policy = self._policy if self._double else self._target_greedy_policy
        best = policy.action(next_time_steps, ()).action
        return self._of_actions(self._target_q_network, next_time_steps, best)

    def _of_actions(
        self, made: DistributionalQNetwork, steps: ts.TimeStep, actions: tf.Tensor, training: bool = False
    ) -> tf.Tensor:
        observation = steps.observation
        if self._observation_and_action_constraint_splitter is not None:
            observation, _ = self._observation_and_action_constraint_splitter(observation)
        outputs = made.outputs(observation, steps.step_type, training)
        first = tf.nest.flatten(self.action_spec)[0].minimum
        return tf.gather(outputs, tf.reshape(actions, [-1]) - first, batch_dims=1)

    def _td_loss(
        self, q_values: tf.Tensor, next_q_values: tf.Tensor, rewards: tf.Tensor, discounts: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the losses of distributions, and the errors of their means, float32 [B] each."""
        distribution = self._distribution
        losses = distribution.losses(q_values, next_q_values, rewards, discounts)
        targets = rewards + discounts * distribution.means(next_q_values)
        return losses, targets - distribution.means(q_values)
