"""RND and ICM: add a reward for observations that a network has not learned to predict yet,
since they are new.

Burda et al. 2018, "Exploration by Random Network Distillation" (arXiv 1810.12894). A predictor is
trained to output what a fixed network of random weights outputs; its error is large for
observations unlike those that it was trained on:

  intrinsic_t = mean over outputs of (predictor(x_t+1) - target(x_t+1))^2
  reward_t + coefficient * intrinsic_t / deviation of the discounted sums of intrinsic rewards

Differs from the paper: one value is learned for the sum of both rewards, so intrinsic returns end
with episodes; discounted sums begin with the sequences of a batch, so with a replay's short ones
the deviation is that of few steps; observations are normalized by those that were trained on,
without random steps at first; the networks are fully connected and the predictor is trained on all
steps of a batch.

Pathak et al. 2017, "Curiosity-driven Exploration by Self-supervised Prediction" (arXiv 1705.05363),
the intrinsic curiosity module. Features phi are those by which an inverse model finds out the
action, so that what no action changes does not count; a forward model predicts the next ones:

  intrinsic_t = 1/2 |forward(phi(x_t), a_t) - phi(x_t+1)|^2
  loss = (1 - beta) inverse(phi(x_t), phi(x_t+1); a_t) + beta intrinsic_t

The inverse model's loss is the cross-entropy of integers, and half the squared error of floats in
[-1, 1]. Rewards are normalized as those of RND, not by a fixed scale, and the rest differs as there.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tf_agents.typing import types

from tflearn.core.errors import UserValueError
from tflearn.core.settings import Fraction, NonNegativeFloat, PositiveFloat, PositiveInt, checked
from tflearn.core.types import EnvironmentSpecs
from tflearn.transforms.statistics import Running
from tflearn.transforms.transform import ObservationTransform, or_zero

_CLIPPING = 5.0  # of normalized observations, as in the paper
_EPSILON = 1e-8


class Rnd(ObservationTransform):
    """Adds the intrinsic reward to the environment's; observations stay as they are.

    The learner trains the predictor after each of the agent's train steps on the same batch, or
    with iterations (PPO) once for each. Policies do not use it: while acting rewards stay as they
    are. Metrics of episodes are the environment's.
    """

    need = 'floats'

    @checked
    def __init__(
        self,
        coefficient: NonNegativeFloat = 1.0,
        gamma: Fraction = 0.99,
        learning_rate: PositiveFloat = 1e-4,
        fc_layer_params: Sequence[int] = (64, 64),
        num_outputs: PositiveInt = 64,
        num_steps: PositiveInt = 1,
        paths: Sequence[str] | None = None,
    ):
        """
        Args:
          coefficient: the normalized intrinsic reward's coefficient; 0 adds nothing.
          gamma: the discount of intrinsic rewards [per environment step] in the sums that normalize
            them.
          learning_rate: the predictor's learning rate; Adam.
          fc_layer_params: units of both networks' layers, with ReLU; the predictor has one more of
            them.
          num_outputs: the number of outputs.
          num_steps: the predictor's gradient steps on each batch.
          paths: the paths of the parts of the observation that are predicted; None predicts all
            floats.
        """
        super().__init__(paths)
        if not fc_layer_params:
            raise UserValueError(f'got Rnd.fc_layer_params={fc_layer_params}; need at least one layer')
        self._coefficient, self._gamma, self._learning_rate = coefficient, gamma, learning_rate
        self._units, self._num_outputs, self._num_steps = tuple(fc_layer_params), num_outputs, num_steps

    def fits(self, spec: tf.TensorSpec) -> bool:
        """See `ObservationTransform`."""
        return bool(spec.dtype.is_floating)

    def transform_specs(self, specs: EnvironmentSpecs) -> EnvironmentSpecs:
        """See `Transform`.

        Raises:
          ValueError: if the observation has no floats, or there are several rewards.
        """
        transformed = super().transform_specs(specs)
        if specs.reward.shape.rank:
            raise UserValueError(f'got the reward {specs.reward} for Rnd; need one number; add rewards.Weighted before')
        size = sum(spec.shape.num_elements() for spec in self.specs.values())
        self.statistics: Any = tf.Module('rnd')
        self._make_networks(size, specs.action)
        self.statistics.optimizer = tf.keras.optimizers.Adam(self._learning_rate)
        self.statistics.optimizer.build(self._trained())
        self.statistics.observations = Running().make([tf.TensorSpec((size,))], 'observations')
        self.statistics.returns = Running().make([tf.TensorSpec(())], 'returns')
        self.changed_paths = ()  # no part is changed, so one may be the mask of legal actions
        return transformed

    def _make_networks(self, size: int, action_spec: types.NestedTensorSpec) -> None:
        """Makes the networks for observations as vectors of this size."""
        self.statistics.target = _network(size, self._units, self._num_outputs, 'target')
        self.statistics.predictor = _network(size, (*self._units, self._units[-1]), self._num_outputs, 'predictor')

    def _trained(self) -> list[tf.Variable]:
        return list(self.statistics.predictor.trainable_variables)

    def transform_time_step(self, time_step: Any, state: Any) -> tuple[Any, Any]:
        """See `Transform`."""
        return time_step, state

    def transform_experience(self, experience: Any) -> Any:
        """See `Transform`. Nothing is added to the last row's reward:
        its next observation is not there.
        """
        deviation = tf.sqrt(self.statistics.returns.variances[0] + _EPSILON)
        added = self._coefficient * self.errors(experience) / deviation
        added = or_zero(tf.stop_gradient(added), experience.next_step_type[:, :-1] != 0)
        return experience._replace(reward=experience.reward + tf.pad(added, [[0, 0], [0, 1]]))

    def errors(self, experience: Any) -> tf.Tensor:
        """Returns the intrinsic rewards of all steps but the last, float32 [B, T - 1],
        before their normalization.
        """
        return self._errors_and_losses(self._normalized(self._vector(experience.observation)), experience.action)[0]

    def update(self, experience: Any, counts: tf.Tensor) -> None:
        """Trains the predictor, then updates the statistics; see `Transform`."""
        context = tf.distribute.get_replica_context()
        vectors = self._vector(experience.observation)
        inputs = self._normalized(vectors)
        # The statistics of the same errors as in the rewards.
        found, _ = self._errors_and_losses(inputs, experience.action)
        errors = or_zero(found, counts[:, :-1] > 0)
        sums = _backward_sums(errors, self._gamma * experience.discount[:, :-1] * counts[:, :-1])
        size = context.all_reduce(tf.distribute.ReduceOp.SUM, tf.reduce_sum(counts))
        variables = self._trained()
        for _ in range(self._num_steps):
            with tf.GradientTape() as tape:
                # The rows that are the next ones of those that count.
                losses = self._errors_and_losses(inputs, experience.action)[1] * counts[:, :-1]
                loss = tf.math.divide_no_nan(tf.reduce_sum(losses), size)
            gradients = tape.gradient(loss, variables)
            # Sums over the replicas.
            self.statistics.optimizer.apply_gradients(zip(gradients, variables, strict=True))
        self.statistics.observations.update([vectors], counts)
        self.statistics.returns.update([tf.pad(sums, [[0, 0], [0, 1]])], counts)

    def _vector(self, observation: Any) -> tf.Tensor:
        """Returns the observation's parts as one vector, [..., n]."""
        leaves = tf.nest.flatten(observation)
        parts = []
        for i, spec in self.specs.items():
            leaf = tf.cast(leaves[i], tf.float32)
            outer = tf.shape(leaf)[: leaf.shape.rank - spec.shape.rank]
            parts.append(tf.reshape(leaf, tf.concat([outer, [spec.shape.num_elements()]], axis=0)))
        return tf.concat(parts, axis=-1)

    def _normalized(self, vectors: tf.Tensor) -> tf.Tensor:
        (mean,), (variance,) = self.statistics.observations.means, self.statistics.observations.variances
        normal = (vectors - mean) * tf.math.rsqrt(variance + _EPSILON)
        # One that is not a number would stay in the predictor forever.
        normal = tf.where(tf.math.is_nan(normal), 0.0, normal)
        return tf.clip_by_value(normal, -_CLIPPING, _CLIPPING)

    def _errors_and_losses(self, inputs: tf.Tensor, action: Any) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the intrinsic rewards and what is minimized, of all rows [B, T, n] but the last."""
        following = inputs[:, 1:]
        target = tf.stop_gradient(self.statistics.target(following))
        errors = tf.reduce_mean(tf.math.squared_difference(self.statistics.predictor(following), target), axis=-1)
        return errors, errors


class Icm(Rnd):
    """The same with a reward for next observations that an intrinsic curiosity module does not predict."""

    @checked
    def __init__(self, *args: Any, beta: Fraction = 0.2, **more: Any):
        """
        Args:
          *args: as those of `Rnd`; the outputs are the features.
          beta: the share of the forward model's loss in that of all three networks.
          **more: as those of `Rnd`.
        """
        super().__init__(*args, **more)
        self._beta = beta

    def _make_networks(self, size: int, action_spec: types.NestedTensorSpec) -> None:
        # The action's numbers, for the forward model, are as many as what the inverse one computes.
        self._actions = [(spec, _num_choices(spec)) for spec in tf.nest.flatten(action_spec)]
        number = sum(spec.shape.num_elements() * (choices or 1) for spec, choices in self._actions)
        self.statistics.features = _network(size, self._units, self._num_outputs, 'features')
        self.statistics.inverse = _network(2 * self._num_outputs, self._units[-1:], number, 'inverse')
        self.statistics.forward = _network(self._num_outputs + number, self._units[-1:], self._num_outputs, 'forward')

    def _trained(self) -> list[tf.Variable]:
        parts = self.statistics.features, self.statistics.inverse, self.statistics.forward
        return [variable for part in parts for variable in part.trainable_variables]

    def _errors_and_losses(self, inputs: tf.Tensor, action: Any) -> tuple[tf.Tensor, tf.Tensor]:
        features, taken = self.statistics.features(inputs), self._encoded(action)
        now, following = features[:, :-1], features[:, 1:]
        predicted = self.statistics.forward(tf.concat([now, tf.concat(taken, axis=-1)], axis=-1))
        errors = tf.reduce_sum(tf.math.squared_difference(predicted, following), axis=-1) / 2
        found = self.statistics.inverse(tf.concat([now, following], axis=-1))
        inverse = tf.zeros_like(errors)
        for encoded, numbers, (_, choices) in zip(
            taken, tf.split(found, [each.shape[-1] for each in taken], axis=-1), self._actions, strict=True
        ):
            if choices is None:
                inverse += tf.reduce_sum(tf.math.squared_difference(numbers, encoded), axis=-1) / 2
            else:
                shape = tf.concat([tf.shape(numbers)[:-1], [-1, choices]], axis=0)
                likelihoods = tf.nn.log_softmax(tf.reshape(numbers, shape)) * tf.reshape(encoded, shape)
                inverse -= tf.reduce_sum(likelihoods, axis=[-2, -1])
        return errors, (1 - self._beta) * inverse + self._beta * errors

    def _encoded(self, action: Any) -> list[tf.Tensor]:
        """Returns the actions of all rows but the last, float32 [B, T - 1, n]: one-hot integers, floats in [-1, 1]."""
        encoded = []
        for (spec, choices), leaf in zip(self._actions, tf.nest.flatten(action), strict=True):
            taken = leaf[:, :-1]
            if choices is None:
                half = np.maximum((spec.maximum - spec.minimum) / 2, 1e-6)
                numbers = tf.cast((taken - (spec.maximum + spec.minimum) / 2) / half, tf.float32)
            else:
                numbers = tf.one_hot(taken - spec.minimum, choices)
            outer = tf.shape(taken)[:2]
            encoded.append(
                tf.reshape(numbers, tf.concat([outer, [spec.shape.num_elements() * (choices or 1)]], axis=0))
            )
        return encoded


def _num_choices(spec: types.BoundedTensorSpec) -> int | None:
    """Returns the largest number of choices of an action's integers; None of floats.

    Raises:
      ValueError: if the action has no finite bounds.
    """
    if not np.isfinite(getattr(spec, 'maximum', np.inf) - getattr(spec, 'minimum', -np.inf)).all():
        raise UserValueError(f'got the action {spec} for Icm; need finite bounds')
    return None if spec.dtype.is_floating else int(np.max(spec.maximum - spec.minimum)) + 1


def _network(size: int, units: Sequence[int], num_outputs: int, name: str) -> tf.keras.Model:
    make = lambda number, activation: tf.keras.layers.Dense(  # noqa: E731
        number, activation, kernel_initializer=tf.keras.initializers.Orthogonal(2**0.5), dtype='float32'
    )
    made = tf.keras.Sequential([*(make(number, 'relu') for number in units), make(num_outputs, None)], name=name)
    made.build((None, size))
    return made


def _backward_sums(terms: tf.Tensor, factors: tf.Tensor) -> tf.Tensor:
    """Returns s with s_t = terms_t + factors_t s_t+1, [B, T]."""
    for round_ in range((terms.shape[1] - 1).bit_length()):  # each doubles the number of terms
        later = [tf.pad(part[:, 2**round_ :], [[0, 0], [0, 2**round_]]) for part in (terms, factors)]
        terms, factors = terms + factors * later[0], factors * later[1]
    return terms
