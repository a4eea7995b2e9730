"""Behavioural cloning: a policy that is likely to take the recorded actions, learned from data without an environment.

Pomerleau 1991, "Efficient Training of Artificial Neural Networks for Autonomous Navigation" (Neural Computation 3).
With a weight w of each recorded step (1 by default), over the steps of a batch:

  loss = sum_t w_t (-log pi(a_t | s_t)) / sum_t w_t - entropy_coefficient * entropy        kind 'log_likelihood'
  loss = sum_t w_t |a_t - mode of pi(. | s_t)|^2 / sum_t w_t - ...                         kind 'mse'

Weights exp(R / temperature) of an episode's return R are those of reward-weighted regression (Peters and Schaal 2007,
"Reinforcement Learning by Reward-Weighted Regression for Operational Space Control", ICML).

The networks are those of PPO (`actor_value.py`), with equal names: a PPO run can begin with what a run of this agent
has learned (`train.Initial`). Only the policy's part is trained; the value's stays as it was made.
"""

import dataclasses
from typing import Any, Literal, NamedTuple, get_args

import tensorflow as tf
from tf_agents.agents import tf_agent
from tf_agents.policies import greedy_policy
from tf_agents.trajectories import time_step as ts
from tf_agents.utils import common

from tflearn.agents.actor_value import ActorValueNetwork, NetworkOptions
from tflearn.agents.normalizer import Normalizer, NormalizingPolicy, make_observation_normalizer
from tflearn.agents.rescaled_actions import ActionRescaling
from tflearn.core.action_mask import make_mask
from tflearn.core.errors import UserValueError
from tflearn.core.experience import BatchItems, Experience, Uniform
from tflearn.core.types import Agent, EnvironmentSpecs, leaf_paths
from tflearn.optimization import offline_loss, optimizers, schedules

EXPERIENCE = Experience(replay=Uniform(), batch=BatchItems(256))

# Weights that are no column of the files; the reader computes them from an episode's rewards (`data/derived.py`).
EPISODE_WEIGHTS = ('episode_return', 'return_to_go')

Kind = Literal['log_likelihood', 'mse']


@dataclasses.dataclass(frozen=True)
class LossOptions:
    """The loss; see the module.

    Attributes:
      kind: 'log_likelihood', or 'mse', the squared error of the distribution's mode, for actions of floats; the
        deviation of the normal distribution then stays as it was made. On actions without noise, the likelihood makes
        it smaller and smaller, so that a later PPO run would hardly explore.
      entropy_coefficient: the coefficient of the policy's entropy.
      weight: what a recorded step counts: 'episode_return', the sum of its episode's rewards; 'return_to_go', the sum
        of the rewards from this step on; or the path of a column with one number for each step, such as 'reward' or
        'observation.quality'. None counts all alike.
      weight_temperature: the weight is exp(number / temperature), in the unit of the number; None takes the number
        itself, and 0 in place of negative ones.
    """

    kind: Kind = 'log_likelihood'
    entropy_coefficient: float = 0.0
    weight: str | None = None
    weight_temperature: float | None = None

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise UserValueError(f'got kind={self.kind!r}; need one of {", ".join(get_args(Kind))}')
        if not self.entropy_coefficient >= 0:
            raise UserValueError(f'got entropy_coefficient={self.entropy_coefficient!r}; need a number of at least 0')
        if self.weight_temperature is not None and not self.weight_temperature > 0:
            raise UserValueError(
                f'got weight_temperature={self.weight_temperature!r}; need a number above 0, or None for the number '
                'itself as the weight'
            )
        if self.weight is None and self.weight_temperature is not None:
            raise UserValueError(
                f'got weight_temperature={self.weight_temperature!r} without a weight; need one; set weight, such as '
                "'episode_return'"
            )


def make_agent(
    specs: EnvironmentSpecs,
    train_step: tf.Variable,
    experience: Experience,
    *,
    network: NetworkOptions = NetworkOptions(),  # noqa: B008 - it is frozen
    loss: LossOptions = LossOptions(),
    learning_rate: float | schedules.Schedule = 1e-3,
    normalize_observations: bool = True,
    normalizer_steps: int = 1_000,
    action_mask: str | None = None,
    gradient_clipping: float | None = None,
    make_optimizer: optimizers.OptimizerFactory = optimizers.make,
) -> Agent:
    """Makes an agent that imitates recorded actions: discrete, several discrete, continuous, or a nest of them.

    Args:
      specs: the environment's specs.
      train_step: int64 scalar, counts gradient steps.
      experience: the experience, of uniform order. Of a sequence, all rows but the last are imitated. With memory,
        sequences are longer than 2, and each starts with a state of zeros.
      network: the layers of the policy, and of a value that a later PPO run may train; equal ones let it begin with
        these weights.
      loss: the loss's kind and weights.
      learning_rate: a number, or a schedule of the train step.
      normalize_observations: whether to normalize observations by their mean and variance, as PPO does.
      normalizer_steps: train steps whose batches count for these; after them mean and variance are constant.
      action_mask: the path of the observation's part that marks legal actions, such as 'action_mask'; see `ActionMask`.
        Recorded actions that it forbids are not imitated. None has none.
      gradient_clipping: the bound of the global batch's gradient, by default of its norm (see `optimizers.make`); None
        does not clip.
      make_optimizer: makes the optimizer; Adam by default.

    Raises:
      ValueError: if the experience has another order or stores the policy's state, the action is not supported, or the
        weight is no column of numbers.
    """
    rescaling = ActionRescaling(specs)
    specs = rescaling.specs
    network.check(specs, 'behavioural cloning')
    _check(specs, experience, loss)
    mask, _ = make_mask(specs, action_mask)
    skipped = {*(network.preprocessing_layers or ()), action_mask}
    normalizer = make_observation_normalizer(specs.observation, skipped) if normalize_observations else None
    optimizer = make_optimizer(
        train_step,
        learning_rate,
        gradient_clipping=gradient_clipping,
        per_replica_batch_size=experience.per_replica_batch_size,
        name='bc',
    )
    actor_value = ActorValueNetwork(specs, network, mask)
    observations = Observations(normalizer, normalizer_steps)
    return rescaling.wrapped(BCAgent(specs, train_step, experience, actor_value, loss, optimizer, observations))


def _check(specs: EnvironmentSpecs, experience: Experience, loss: LossOptions) -> None:
    replay = experience.replay
    if not isinstance(replay, Uniform):
        raise UserValueError(
            f'got Experience.replay of the type {type(replay).__name__}; behavioural cloning needs Uniform: it '
            'imitates what was recorded, in any order'
        )
    if experience.slicing.store_policy_state:
        raise UserValueError(
            'got Slicing.store_policy_state=True; behavioural cloning needs False: the state of the policy that acted '
            'is not that of the policy that learns'
        )
    actions = tf.nest.flatten(specs.action)
    if loss.kind == 'mse' and not all(action.dtype.is_floating for action in actions):
        raise UserValueError(
            f"got kind='mse' for the action {specs.action}; need actions of floats; set kind='log_likelihood'"
        )
    if loss.weight is None or loss.weight in EPISODE_WEIGHTS:
        return
    parts = {'observation': specs.observation, 'action': specs.action, 'reward': specs.reward}
    columns = {
        path: leaf
        for name, spec in parts.items()
        for path, leaf in zip(leaf_paths(spec, name), tf.nest.flatten(spec), strict=True)
    }
    possible = [path for path, leaf in columns.items() if leaf.shape.rank == 0]
    if loss.weight not in possible:
        raise UserValueError(
            f'got weight={loss.weight!r}; need one of {", ".join([*EPISODE_WEIGHTS, *possible])}: a column with one '
            'number for each step'
        )


class Observations(NamedTuple):
    """How observations enter the networks.

    Attributes:
      normalizer: normalizes them; None takes them as they are.
      normalizer_steps: see `make_agent`.
    """

    normalizer: Normalizer | None
    normalizer_steps: int


class BCAgent(tf_agent.TFAgent):
    """See the module.

    The extra metrics of the loss are means over the valid steps of the global batch, without weights:
    `log_likelihood`, `entropy` [nats]; `accuracy`, the share of steps at which the policy's most likely choice is the
    recorded one, for discrete actions; `squared_error` of the mode, a sum over the action's numbers, for continuous
    ones; `illegal_share`, the share of recorded actions that the mask forbids.
    """

    def __init__(
        self,
        specs: EnvironmentSpecs,
        train_step: tf.Variable,
        experience: Experience,
        network: ActorValueNetwork,
        loss: LossOptions,
        optimizer: optimizers.Optimizer,
        observations: Observations,
    ):
        """Makes the agent, within the strategy's scope; see `make_agent`."""
        normalizer, self._normalizer_steps = observations
        super().__init__(
            specs.time_step,
            specs.action,
            policy=greedy_policy.GreedyPolicy(NormalizingPolicy(specs, network, normalizer, False, 'policy')),
            collect_policy=NormalizingPolicy(specs, network, normalizer, False, 'collect_policy'),
            train_sequence_length=experience.slicing.sequence_length,
            train_step_counter=train_step,
        )
        # The names of these two are PPO's, for a warm start.
        self._network, self._observation_normalizer = network, normalizer
        self._options, self._optimizer = loss, optimizer
        untrained = {variable.ref() for variable in network.value_variables}
        self._trained = lambda: [v for v in network.trainable_variables if v.ref() not in untrained]
        self._discrete = tuple(not leaf.dtype.is_floating for leaf in tf.nest.flatten(specs.action))

    @property
    def collect_data_spec(self) -> Any:
        """The spec of a step, with the weight that is computed for an episode, in the policy info."""
        spec: Any = super().collect_data_spec
        if self._options.weight not in EPISODE_WEIGHTS:
            return spec
        name = self._options.weight
        return spec.replace(policy_info={name: tf.TensorSpec((), tf.float32, name)})

    @property
    def training_data_spec(self) -> Any:
        """The same as `collect_data_spec`."""
        return self.collect_data_spec

    def _columns(self, experience: Any) -> dict[str, Any]:
        return dict(zip(leaf_paths(self.collect_data_spec), tf.nest.flatten(experience), strict=True))

    def _train(self, experience: Any, weights: tf.Tensor | None) -> tf_agent.LossInfo:
        if self._observation_normalizer:
            counts = _counts(experience) * tf.cast(self.train_step_counter < self._normalizer_steps, tf.float32)
            self._observation_normalizer.update(_now(experience.observation), counts)
        variables = self._trained()
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(variables)
            info = self._loss(experience, weights, training=True)
        gradients = tape.gradient(info.loss, variables)
        self._optimizer.apply_gradients(zip(gradients, variables, strict=True), info.loss)
        self.train_step_counter.assign_add(1)
        return info

    def _loss(self, experience: Any, weights: tf.Tensor | None = None, training: bool = False) -> tf_agent.LossInfo:
        """Returns this replica's share of the mean loss over the global batch."""
        observation, action = _now(experience.observation), _now(experience.action)
        if self._observation_normalizer:
            observation = self._observation_normalizer(observation)
        step_type = experience.step_type[:, :-1] if self._network.state_spec else None
        (distribution, _), _ = self._network(observation, step_type=step_type, training=training)
        log_probs = common.log_probability(distribution, action, self.action_spec)
        counts, masked = _counts(experience), self._network.action_mask is not None
        legal = offline_loss.legal_counts(log_probs, masked)
        trained = counts * legal
        entropy = common.entropy(distribution, self.action_spec, outer_rank=2)
        metrics = {'log_likelihood': log_probs, 'entropy': entropy, **self._errors(distribution, action)}
        losses = metrics['squared_error'] if self._options.kind == 'mse' else -log_probs
        item_weights = self._weights(experience, trained)
        if weights is not None:
            item_weights *= weights[:, tf.newaxis]
        loss = offline_loss.share_of_mean(losses - self._options.entropy_coefficient * entropy, item_weights)
        means = offline_loss.means(metrics, trained)
        if masked:
            means |= offline_loss.means({'illegal_share': 1.0 - legal}, counts)
        return tf_agent.LossInfo(loss, means)

    def _weights(self, experience: Any, counts: tf.Tensor) -> tf.Tensor:
        """Returns the weight of each row but the last, [B, T]; 0 where `counts` is."""
        weight, temperature = self._options.weight, self._options.weight_temperature
        if weight is None:
            return counts
        column = f'policy_info.{weight}' if weight in EPISODE_WEIGHTS else weight
        numbers = tf.cast(_now(self._columns(experience)[column]), tf.float32)
        if temperature is not None:
            return offline_loss.softmax_weights(numbers, temperature, counts)
        return counts * tf.maximum(numbers, 0.0)

    def _errors(self, distribution: Any, action: Any) -> dict[str, tf.Tensor]:
        """Returns how the distribution's modes differ from actions, [B, T] each."""
        modes = [leaf.mode() for leaf in tf.nest.flatten(distribution)]
        pairs = list(zip(self._discrete, modes, tf.nest.flatten(action), strict=True))
        inner = lambda values: list(range(2, values.shape.rank))  # noqa: E731
        squares = [tf.square(mode - taken) for discrete, mode, taken in pairs if not discrete]
        equal = [tf.cast(mode, taken.dtype) == taken for discrete, mode, taken in pairs if discrete]
        errors = {}
        if squares:
            errors['squared_error'] = tf.add_n([tf.reduce_sum(square, axis=inner(square)) for square in squares])
        if equal:
            alike = tf.stack([tf.reduce_all(each, axis=inner(each)) for each in equal])
            errors['accuracy'] = tf.cast(tf.reduce_all(alike, axis=0), tf.float32)
        return errors


def _now(nest: Any) -> Any:
    """Returns all rows but the last of each sequence, [B, T, ...]."""
    return tf.nest.map_structure(lambda leaf: leaf[:, :-1], nest)


def _counts(experience: Any) -> tf.Tensor:
    """Returns float32 [B, T]: 1, but 0 between two episodes, where an environment failed, and in padding."""
    return tf.cast(experience.next_step_type != ts.StepType.FIRST, tf.float32)[:, :-1]
