"""Behavioural cloning: a policy that is likely to take the recorded actions, learned from data without an environment.

Pomerleau 1991, "Efficient Training of Artificial Neural Networks for Autonomous Navigation" (Neural
Computation 3). With a weight w of each recorded step (1 by default), over the steps of a batch:

  loss = sum_t w_t (-log pi(a_t | s_t)) / sum_t w_t - entropy_coefficient * entropy        kind 'log_likelihood'
  loss = sum_t w_t |a_t - mode of pi(. | s_t)|^2 / sum_t w_t - ...                         kind 'mse'

Weights exp(R / temperature) of an episode's return R are those of reward-weighted regression
(Peters and Schaal 2007, "Reinforcement Learning by Reward-Weighted Regression for Operational Space
Control", ICML).

The networks are those of PPO (`actor_value.py`), with equal names: a PPO run can begin with what a
run of this agent has learned (`train.Initial`). Only the policy's part is trained; the value's
stays as it was made.
"""

from typing import Any, Literal

import tensorflow as tf
from tf_agents.agents import tf_agent
from tf_agents.utils import common

from tflearn.agents import parts
from tflearn.agents.actor_value import ActorValueAgent, ActorValueNetwork, complete
from tflearn.agents.algorithm import ANY_ACTION, Example, factory
from tflearn.agents.normalizer import make_normalizers
from tflearn.agents.parts import Problem
from tflearn.core.errors import UserValueError
from tflearn.core.experience import BatchItems, Experience, Uniform
from tflearn.core.settings import NonNegativeFloat, PositiveFloat, checked_dataclass
from tflearn.core.types import Agent, EnvironmentSpecs, leaf_paths
from tflearn.networks import heads
from tflearn.optimization import offline_loss

EXPERIENCE = Experience(replay=Uniform(), batch=BatchItems(256))

# Weights that are no column of the files; the reader computes them from an episode's rewards
# (`data/derived.py`).
EPISODE_WEIGHTS = ('episode_return', 'return_to_go')

Kind = Literal['log_likelihood', 'mse']


@checked_dataclass(frozen=True)
class BCLoss:
    """The loss; see the module.

    Attributes:
      kind: 'log_likelihood', or 'mse', the squared error of the distribution's mode, for actions of
        floats; the deviation of the normal distribution then stays as it was made. On actions
        without noise, the likelihood makes it smaller and smaller, so that a later PPO run would
        hardly explore.
      entropy_coefficient: the coefficient of the policy's entropy.
      weight: what a recorded step counts: 'episode_return', the sum of its episode's rewards;
        'return_to_go', the sum of the rewards from this step on; or the path of a column with one
        number for each step, such as 'reward' or 'observation.quality'. None counts all alike.
      weight_temperature: the weight is exp(number / temperature), in the unit of the number; None
        takes the number itself, and 0 in place of negative ones.
    """

    kind: Kind = 'log_likelihood'
    entropy_coefficient: NonNegativeFloat = 0.0
    weight: str | None = None
    weight_temperature: PositiveFloat | None = None

    def __post_init__(self) -> None:
        if self.weight is None and self.weight_temperature is not None:
            raise UserValueError(
                f'got weight_temperature={self.weight_temperature!r} without a weight; need one; set weight, such as '
                "'episode_return'"
            )


EXAMPLE = Example(ANY_ACTION, data=('uniform', 'recorded'))


@factory
def make_agent(
    problem: Problem,
    *,
    loss: BCLoss = BCLoss(),
    normalize_observations: bool = True,
    normalizer_steps: int = 1_000,
    action_mask: str | None = None,
) -> Agent:
    """Makes an agent that imitates recorded actions: discrete, several discrete, continuous, or a nest of them.

    Args:
      experience: the experience, of uniform order. Of a sequence, all rows but the last are
        imitated. With memory, sequences are longer than 2, and each starts with a state of zeros.
      network: the layers of the policy, and of a value that a later PPO run may train; equal ones
        let it begin with these weights. They are PPO's: (64, 64) units, with tanh.
      optimizer: the optimizer, of the part `bc`; 1e-3, not clipped.
      loss: the loss's kind and weights.
      normalize_observations: whether to normalize observations by their mean and variance, as PPO
        does.
      normalizer_steps: train steps whose batches count for these; after them mean and variance are
        constant.
      action_mask: the path of the observation's part that marks legal actions, such as
        'action_mask'; see `ActionMask`. Recorded actions that it forbids are not imitated. None has
        none.

    Raises:
      ValueError: if the experience has another order or stores the policy's state, the action is
        not supported, the weight is no column of numbers, or sequences are too short for a memory.
    """
    network = complete(problem, 'behavioural cloning')
    _check(problem.specs, problem.experience, loss)
    normalizers = make_normalizers(problem.specs, network, action_mask, normalize_observations, False)
    optimizers = problem.optimizers({'bc': 1e-3})
    actor_value = ActorValueNetwork(problem.specs, network, action_mask)
    length = problem.experience.slicing.sequence_length
    if actor_value.state_spec and length < 3:
        raise UserValueError(
            f'got Slicing.sequence_length={length} for a network with memory; need at least 3, and as many as the '
            'memory is to span: from single steps, each with a new state, it would learn to forget; set '
            'sequence_length=33 and stride=32, for example'
        )
    return BCAgent(problem, actor_value, optimizers, loss, normalizers, normalizer_steps)


def _check(specs: EnvironmentSpecs, experience: Experience, loss: BCLoss) -> None:
    replay = experience.replay
    if not replay.draws_uniformly:
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
    if loss.weight is not None and loss.weight not in EPISODE_WEIGHTS:
        _check_column(specs, loss.weight)


def _check_column(specs: EnvironmentSpecs, weight: str) -> None:
    """Raises ValueError unless a weight is the name of a column of numbers."""
    parts = {'observation': specs.observation, 'action': specs.action, 'reward': specs.reward}
    columns = {
        path: leaf
        for name, spec in parts.items()
        for path, leaf in zip(leaf_paths(spec, name), tf.nest.flatten(spec), strict=True)
    }
    possible = [path for path, leaf in columns.items() if leaf.shape.rank == 0]
    if weight not in possible:
        raise UserValueError(
            f'got weight={weight!r}; need one of {", ".join([*EPISODE_WEIGHTS, *possible])}: a column with one '
            'number for each step'
        )


class BCAgent(ActorValueAgent):
    """See the module.

    The extra metrics of the loss are means over the valid steps of the global batch, without
    weights: `log_likelihood`, `entropy` [nats]; `accuracy`, the share of steps at which the
    policy's most likely choice is the recorded one, for discrete actions; `squared_error` of the
    mode, a sum over the action's numbers, for continuous ones; `illegal_share`, the share of
    recorded actions that the mask forbids.
    """

    def __init__(self, *args: Any):
        """Takes the arguments of `ActorValueAgent`, and the train steps whose batches count for the normalizer."""
        super().__init__(*args[:-1])
        self._normalizer_steps = args[-1]
        self._discrete = tuple(not leaf.dtype.is_floating for leaf in tf.nest.flatten(self.action_spec))

    def _trained(self, part: str) -> list[tf.Variable]:
        return self._network.policy_variables

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
            counts = parts.counts(experience) * tf.cast(self.train_step_counter < self._normalizer_steps, tf.float32)
            self._observation_normalizer.update(parts.now(experience.observation), counts)
        return super()._train(experience, weights)

    def _reduces(self, part: str) -> bool:
        return True  # the mean of rows with legal actions, or of their weights

    def _losses(self, experience: Any, weights: tf.Tensor | None, training: bool) -> parts.Losses:
        counts, masked = parts.counts(experience), self._network.action_mask is not None

        def loss(_: parts.Metrics) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
            now = parts.now(experience)
            observation, _ = self._normalized(now.observation, now.reward)
            step_type = experience.step_type[:, :-1] if self._network.state_spec else None
            (distribution, _), _ = self._network(observation, step_type=step_type, training=training)
            log_probs = common.log_probability(distribution, now.action, self.action_spec)
            legal = offline_loss.legal_counts(log_probs, masked)
            entropy = heads.entropy(distribution, 2, self._draws)
            metrics = {'log_likelihood': log_probs, 'entropy': entropy, **self._errors(distribution, now.action)}
            losses = metrics['squared_error'] if self._options.kind == 'mse' else -log_probs
            factors = self._weights(experience, counts * legal)
            if weights is not None:
                factors *= weights[:, tf.newaxis]
            losses -= self._options.entropy_coefficient * entropy
            if masked:
                share = offline_loss.with_mean_one(counts * legal, counts)
                metrics = {name: share * tf.where(legal > 0, value, 0.0) for name, value in metrics.items()}
                metrics['illegal_share'] = 1.0 - legal
            return tf.where(factors > 0, losses, 0.0) * offline_loss.with_mean_one(factors, counts), metrics

        return counts, {'bc': loss}

    def _weights(self, experience: Any, counts: tf.Tensor) -> tf.Tensor:
        """Returns the weight of each row but the last, [B, T]; 0 where `counts` is."""
        weight, temperature = self._options.weight, self._options.weight_temperature
        if weight is None:
            return counts
        column = f'policy_info.{weight}' if weight in EPISODE_WEIGHTS else weight
        numbers = tf.cast(parts.now(self._columns(experience)[column]), tf.float32)
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
