"""RND: adds a reward for observations that a network has not learned to predict yet,
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
"""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

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
        self.statistics.target = _network(size, self._units, self._num_outputs, 'target')
        self.statistics.predictor = _network(size, (*self._units, self._units[-1]), self._num_outputs, 'predictor')
        self.statistics.optimizer = tf.keras.optimizers.Adam(self._learning_rate)
        self.statistics.optimizer.build(self.statistics.predictor.trainable_variables)
        self.statistics.observations = Running().make([tf.TensorSpec((size,))], 'observations')
        self.statistics.returns = Running().make([tf.TensorSpec(())], 'returns')
        self.changed_paths = ()  # no part is changed, so one may be the mask of legal actions
        return transformed

    def transform_time_step(self, time_step: Any, state: Any) -> tuple[Any, Any]:
        """See `Transform`."""
        return time_step, state

    def transform_experience(self, experience: Any) -> Any:
        """See `Transform`. Nothing is added to the last row's reward:
        its next observation is not there.
        """
        deviation = tf.sqrt(self.statistics.returns.variances[0] + _EPSILON)
        added = self._coefficient * self.errors(experience.observation)[:, 1:] / deviation
        added = or_zero(tf.stop_gradient(added), experience.next_step_type[:, :-1] != 0)
        return experience._replace(reward=experience.reward + tf.pad(added, [[0, 0], [0, 1]]))

    def errors(self, observation: Any) -> tf.Tensor:
        """Returns the intrinsic rewards of observations, float32 [...],
        before their normalization.
        """
        return self._errors(self._normalized(self._vector(observation)))

    def update(self, experience: Any, counts: tf.Tensor) -> None:
        """Trains the predictor, then updates the statistics; see `Transform`."""
        context = tf.distribute.get_replica_context()
        vectors = self._vector(experience.observation)
        inputs = self._normalized(vectors)
        # The statistics of the same errors as in the rewards.
        errors = or_zero(self._errors(inputs)[:, 1:], counts[:, :-1] > 0)
        sums = _backward_sums(errors, self._gamma * experience.discount[:, :-1] * counts[:, :-1])
        size = context.all_reduce(tf.distribute.ReduceOp.SUM, tf.reduce_sum(counts))
        variables = self.statistics.predictor.trainable_variables
        for _ in range(self._num_steps):
            with tf.GradientTape() as tape:
                # The rows that are the next ones of those that count.
                losses = self._errors(inputs)[:, 1:] * counts[:, :-1]
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

    def _errors(self, inputs: tf.Tensor) -> tf.Tensor:
        target = tf.stop_gradient(self.statistics.target(inputs))
        return tf.reduce_mean(tf.math.squared_difference(self.statistics.predictor(inputs), target), axis=-1)


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
