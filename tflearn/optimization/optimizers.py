"""The optimizers of all agents: Keras optimizers that clip the gradients of the global batch.

TF-Agents clips the gradients of each replica and variable before they are summed, so the effect of
a bound depends on the number of replicas. Here they are summed first, and the agents do not clip.
"""

import concurrent.futures
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

import tensorflow as tf
from absl import logging

from tflearn.core import moments, summary_tensors
from tflearn.core.errors import UserTypeError, UserValueError
from tflearn.core.settings import PositiveFloat, checked_dataclass
from tflearn.core.types import check_keras
from tflearn.optimization import schedules

Rate = float | schedules.Schedule
Kind = Literal['adam', 'rmsprop']
ClipBy = Literal['global_norm', 'variable_norm', 'value']
_KINDS = {'adam': tf.keras.optimizers.Adam, 'rmsprop': tf.keras.optimizers.RMSprop}


class Optimizer(tf.Module):
    """Sums gradients over the replicas, clips them, and applies them.

    In a step that is summarized, it also returns statistics of the gradients.

    Attributes:
      keras: the Keras optimizer, whose slots and iterations (the steps, with skipped ones) are in the checkpoint.
      num_skipped: int64, the number of steps whose gradients were not finite and were skipped; None
        if such steps are applied.
    """

    def __init__(
        self,
        options: 'OptimizerOptions',
        schedule: schedules.Schedule,
        train_step: tf.Variable,
        gradient_clipping: float | None,
        name: str,
        per_replica_batch_size: int,
        loss_scale: 'LossScale | None' = None,
    ):
        """See `OptimizerOptions.make`."""
        super().__init__(name)
        make = options.kind if callable(options.kind) else _KINDS[options.kind]
        self.keras = make(schedules.LearningRate(schedule), name=name, **(options.arguments or {}))
        self._schedule, self._train_step = schedule, train_step
        self._gradient_clipping, self._clip_by = gradient_clipping, options.clip_by
        self._noise = GradientNoise(per_replica_batch_size)
        self._has_slots = False
        skips = options.skip_nonfinite or loss_scale is not None
        self._loss_scale = loss_scale
        self.num_skipped = tf.Variable(0, trainable=False, dtype=tf.int64) if skips else None

    @property
    def learning_rate(self) -> tf.Variable:
        """float32 scalar, the learning rate of the last step."""
        return self.keras.learning_rate

    def output_gradient(self, loss: tf.Tensor) -> tf.Tensor | None:
        """Returns `output_gradients` for `tape.gradient`:
        where layers compute in float16, the loss is scaled.
        """
        return None if self._loss_scale is None else tf.cast(self._loss_scale.value.read_value(), loss.dtype)

    def unscaled(self, gradients: Any) -> Any:
        """Returns the gradients of the loss from those that `tape.gradient` returned with `output_gradient`."""
        if self._loss_scale is None:
            return gradients
        scale = self._loss_scale.value.read_value()
        divide = lambda gradient: None if gradient is None else tf.convert_to_tensor(gradient) / scale  # noqa: E731
        return tf.nest.map_structure(divide, gradients)

    def apply_gradients(
        self,
        grads_and_vars: Iterable[tuple[tf.Tensor | None, tf.Variable]],
        loss: tf.Tensor | None = None,
        due: tf.Tensor | None = None,
        half: Sequence[tf.Tensor | None] | None = None,
    ) -> tf.Tensor | None:
        """Takes one step, in replica context.

        Args:
          grads_and_vars: this replica's gradients, of its share of the global batch's mean loss,
            and their variables.
          loss: that share, a scalar. With `skip_nonfinite` a step is also skipped if the loss is
            not finite while its gradients are (as for a Huber loss).
          due: bool scalar, the same on all replicas: whether to take this step at all. One that is
            not due changes nothing, and is not counted. None takes it.
          half: the part of the gradients that is of the first half of this replica's items, for the
            gradient noise scale of one replica; None has no such estimate.

        Returns:
          Whether the step was taken, the same on all replicas; None if steps are always taken.

        Raises:
          ValueError: if there is no gradient at all.
        """
        pairs = list(grads_and_vars)
        if left_out := [variable.name for gradient, variable in pairs if gradient is None]:
            logging.warning('%s: no gradients for %s', self.name, ', '.join(left_out))
        own = [(tf.convert_to_tensor(gradient), variable) for gradient, variable in pairs if gradient is not None]
        if not own:
            raise UserValueError(f'got no gradient for {left_out}; need a loss that depends on them')
        variables = [variable for _, variable in own]
        self._make_slots(variables)
        summed = [gradient for gradient, _ in self.keras.aggregate_gradients(own)]
        norm = tf.linalg.global_norm(summed)
        clipped = self.clip(summed, norm)
        if summary_tensors.is_collecting():
            summary_tensors.scalar(f'gradients/{self.name}/learning_rate', self._schedule(self._train_step))
            summarize(self.name, variables, summed, norm, tf.linalg.global_norm(clipped))
            self._summarize_noise([gradient for gradient, _ in own], norm, half)
        if self.num_skipped is None and due is None:
            self._apply(clipped, variables)
            return None
        due = tf.constant(True) if due is None else due
        finite = tf.constant(True) if self.num_skipped is None else self._is_finite(norm, loss)
        taken = finite & due
        if self._loss_scale is not None:
            self._loss_scale.update(finite)
        self._apply_if(taken, due, clipped, variables)
        return taken

    def _is_finite(self, norm: tf.Tensor, loss: tf.Tensor | None) -> tf.Tensor:
        """Returns whether a step's gradients are finite, and its loss, if it is given."""
        if loss is None:
            return tf.math.is_finite(norm)
        total = tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, loss)
        return tf.math.is_finite(norm) & tf.math.is_finite(total)

    def clip(self, gradients: Sequence[tf.Tensor], norm: tf.Tensor) -> list[tf.Tensor]:
        """Returns the clipped gradients of the global batch. `norm` is their global norm."""
        bound = self._gradient_clipping
        if bound is None:
            return list(gradients)
        if self._clip_by == 'global_norm':
            return tf.clip_by_global_norm(gradients, bound, use_norm=norm)[0]
        if self._clip_by == 'variable_norm':
            return [tf.clip_by_norm(gradient, bound) for gradient in gradients]
        return [tf.clip_by_value(gradient, -bound, bound) for gradient in gradients]

    def _make_slots(self, variables: Sequence[tf.Variable]) -> None:
        """Makes the Keras optimizer's slots of the variables that have gradients,
        unless it has them.

        TensorFlow traces a function a second time if it has made variables, and a branch must not
        make any. Which function is being traced is known to its own thread only, so the slots are
        made on another one.
        """
        if self._has_slots:
            return
        strategy = tf.distribute.get_strategy()

        def build() -> None:
            with strategy.scope():
                self.keras.build(variables)

        with concurrent.futures.ThreadPoolExecutor(1) as thread:
            thread.submit(build).result()
        self._has_slots = True

    def _apply(self, gradients: Sequence[tf.Tensor], variables: Sequence[tf.Variable]) -> None:
        self.keras.apply_gradients(zip(gradients, variables, strict=True), skip_gradients_aggregation=True)

    def _apply_if(
        self, taken: tf.Tensor, due: tf.Tensor, gradients: Sequence[tf.Tensor], variables: Sequence[tf.Variable]
    ) -> None:
        """Takes the step if `taken`; else it counts as skipped if it is `due`."""

        def skip(due: tf.Tensor) -> None:
            if self.num_skipped is not None:
                self.num_skipped.assign_add(tf.cast(due, tf.int64))
            # The learning rate's schedule depends on train steps.
            self.keras.iterations.assign_add(tf.cast(due, tf.int64))

        # A branch in replica context cannot update variables, but one in cross-replica context can.
        # The variables are not passed as arguments, which would be each replica's own.
        def update(
            strategy: tf.distribute.Strategy, taken: tf.Tensor, due: tf.Tensor, gradients: Sequence[tf.Tensor]
        ) -> None:
            first_due = strategy.experimental_local_results(due)[0]
            tf.cond(
                strategy.experimental_local_results(taken)[0],
                lambda: strategy.run(lambda *parts: self._apply(parts, variables), gradients),
                lambda: skip(first_due),
            )

        tf.distribute.get_replica_context().merge_call(update, (taken, due, tuple(gradients)))

    def _summarize_noise(
        self, replica_gradients: Sequence[tf.Tensor], norm: tf.Tensor, half: Sequence[tf.Tensor | None] | None
    ) -> None:
        replicas = tf.distribute.get_strategy().num_replicas_in_sync
        if replicas == 1 and half is not None:
            replica_gradients = [gradient for gradient in half if gradient is not None]
        if replicas > 1 or half is not None:
            scale = self._noise.update(replica_gradients, norm, max(replicas, 2))
            summary_tensors.scalar(f'gradients/{self.name}/noise_scale', scale)


class LossScale(tf.Module):
    """The factor of the losses of all parts of an agent whose layers compute in float16,
    where small gradients are 0.

    Micikevicius et al. 2017, "Mixed Precision Training" (arXiv 1710.03740), section 3.2. Halved by
    each step whose gradients are not finite, which is skipped; doubled after 2,000 others of all
    parts, as Keras' `LossScaleOptimizer` does.
    """

    def __init__(self) -> None:
        """Makes the variables, within the strategy's scope."""
        super().__init__()
        self.value = moments.variable(2.0**15, 'loss_scale')
        # int64: XLA on a GPU finds no int32 variable, which TensorFlow keeps on the CPU.
        self._num_finite = moments.variable(0, 'num_finite', tf.int64)

    def update(self, finite: tf.Tensor) -> None:
        """Adds a step, which had finite gradients or not, on all replicas alike;
        in replica context.
        """
        num_finite = tf.where(finite, self._num_finite + 1, tf.constant(0, tf.int64))
        grows = num_finite >= 2_000
        self._num_finite.assign(tf.where(grows, tf.constant(0, tf.int64), num_finite))
        self.value.assign(tf.maximum(1.0, tf.where(finite, tf.where(grows, 2.0, 1.0), 0.5) * self.value))


@checked_dataclass(frozen=True)
class OptimizerOptions:
    """The optimizers of an agent, one for each of its parts.

    Attributes:
      learning_rate: a number, or a schedule of the train step, for all parts; or those of some
        parts by name, such as {'actor': 1e-4}, while the others have the algorithm's. None has the
        algorithm's.
      gradient_clipping: the bound of the global batch's gradients of each part, see `clip_by`; None
        does not clip, 'default' is the algorithm's bound.
      kind: 'adam' (Kingma and Ba 2014, arXiv 1412.6980), 'rmsprop', or a class of Keras'
        optimizers.
      clip_by: the quantity with the bound: 'global_norm', the norm of all gradients;
        'variable_norm', the norm of each variable's gradient; 'value', each element.
      skip_nonfinite: whether a step whose gradients or their norm are not finite is skipped and
        counted: it changes neither variables nor slots. Otherwise it is applied, unless layers
        compute in float16. Not for TPUs.
      arguments: further arguments of the Keras optimizer (`epsilon`, `beta_1`; `rho`, `momentum`).
    """

    learning_rate: Rate | Mapping[str, Rate] | None = None
    gradient_clipping: PositiveFloat | Literal['default'] | None = 'default'
    kind: Kind | Callable[..., tf.keras.optimizers.Optimizer] = 'adam'
    clip_by: ClipBy = 'global_norm'
    skip_nonfinite: bool = False
    arguments: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        check_keras('OptimizerOptions.kind', self.kind)
        owned = {'learning_rate', 'clipnorm', 'clipvalue', 'global_clipnorm'}.intersection(self.arguments or {})
        if owned:
            raise UserValueError(
                f'got {", ".join(sorted(owned))} in arguments; use learning_rate, gradient_clipping and clip_by'
            )

    def make(
        self,
        train_step: tf.Variable,
        per_replica_batch_size: int,
        rates: Mapping[str, Rate | None],
        gradient_clipping: float | None = None,
        unclipped: Sequence[str] = (),
    ) -> dict[str, Optimizer]:
        """Makes the optimizers of an agent by the names of its parts, within the strategy's scope.

        Args:
          train_step: int64 scalar, the step of schedules.
          per_replica_batch_size: items in a replica's batch, the unit of the gradient noise scale.
          rates: the algorithm's learning rate of each part; a part with None has no optimizer
            unless `learning_rate` names it. The names are in the summaries' tags,
            `gradients/<name>/...`.
          gradient_clipping: the algorithm's bound.
          unclipped: the parts that are never clipped.

        Raises:
          ValueError: if `learning_rate` names another part, or there is nothing to clip by.
          TypeError: if a learning rate is neither a number nor a function that returns one.
        """
        bound = gradient_clipping if self.gradient_clipping == 'default' else self.gradient_clipping
        if bound is None and self.clip_by != 'global_norm':
            raise UserValueError(f'got clip_by={self.clip_by!r} without a bound; need gradient_clipping, a number')
        given = self.learning_rate
        if isinstance(given, Mapping):
            if not given.keys() <= rates.keys():
                raise UserValueError(f'got learning_rate={dict(given)!r}; need parts of {", ".join(rates)}')
            chosen = {**rates, **given}
        else:
            chosen = {name: rate if given is None or rate is None else given for name, rate in rates.items()}
        bounds = {name: None if name in unclipped else bound for name in chosen}
        in_float16 = tf.keras.mixed_precision.global_policy().compute_dtype == 'float16'
        last = per_replica_batch_size, LossScale() if in_float16 else None
        return {
            name: Optimizer(self, _schedule(train_step, rate), train_step, bounds[name], name, *last)
            for name, rate in chosen.items()
            if rate is not None
        }


def _schedule(train_step: tf.Variable, rate: Rate) -> schedules.Schedule:
    """Returns the schedule of a learning rate, which is known to work for a train step."""
    # Of the train step, not of the optimizer's own count, which leaves out steps that are not
    # due. A schedule even for a number: Keras would save a number in the checkpoint, and its
    # restore would undo a change.
    schedule = (lambda _: rate(train_step)) if callable(rate) else schedules.constant(rate)
    try:
        tf.cast(schedule(train_step), tf.float32)
    except Exception as error:  # whatever a user's function raises
        what = 'a learning_rate function that' if callable(rate) else f'learning_rate={rate!r}, which'
        raise UserTypeError(
            f'got {what} fails for a train step ({type(error).__name__}: {error}); need a number, or a function of '
            'the train step (an int64 tensor) that returns a float32 tensor, such as '
            'schedules.linear(3e-4, 0.0, 10_000)'
        ) from error
    return schedule


_DECAY = 0.9


def summarizes_halves() -> bool:
    """Returns whether agents compute the gradient of half a batch,
    for the gradient noise scale of one replica.
    """
    return summary_tensors.is_collecting() and tf.distribute.get_strategy().num_replicas_in_sync == 1


def summarize(
    name: str,
    variables: Sequence[tf.Variable],
    gradients: Sequence[tf.Tensor],
    norm: tf.Tensor,
    clipped_norm: tf.Tensor,
) -> None:
    """Adds norms and histograms to the summary, under `gradients/<name>/`.

    Of each vector also the share of elements whose gradient is 0: for the bias of a layer with
    ReLU, these are the units that no example of the batch makes active.

    Args:
      name: the optimizer's name.
      variables: the trained variables.
      gradients: the global batch's gradient of each variable, before clipping.
      norm: float32 scalar, global norm of `gradients`.
      clipped_norm: float32 scalar, global norm after clipping.
    """
    scope = f'gradients/{name}'
    summary_tensors.scalar(f'{scope}/norm', norm)
    summary_tensors.scalar(f'{scope}/clipped_norm', clipped_norm)
    names = [variable.name.replace(':', '_') for variable in variables]
    for i, (variable, gradient) in enumerate(zip(variables, gradients, strict=True)):
        tag = names[i] if names.count(names[i]) == 1 else f'{names[i]}_{names[:i].count(names[i])}'
        summary_tensors.scalar(f'{scope}/{tag}/gradient_norm', tf.norm(gradient))
        summary_tensors.scalar(f'{scope}/{tag}/variable_norm', tf.norm(variable))
        if variable.shape.rank == 1:
            share = tf.reduce_mean(tf.cast(tf.equal(gradient, 0), tf.float32))
            summary_tensors.scalar(f'{scope}/{tag}/zero_gradient_share', share)
        summary_tensors.histogram(f'{scope}/{tag}/gradient', gradient)
        summary_tensors.histogram(f'{scope}/{tag}/variable', variable)


class GradientNoise(tf.Module):
    """Estimates the gradient noise scale, the batch size [items] above which larger batches have diminishing returns.

    A replica's gradient is that of a small batch, their sum that of a big one; with one replica
    half of its batch is the small one. The two moving averages are over the steps whose summaries
    are recorded.

    Attributes:
      averages: float32 [2], moving averages of |G|^2, the true gradient's squared norm, and of
        tr(Sigma), the sum of the variances of one item's gradient. Both start at 0, a bias that
        their ratio does not have.
    """

    def __init__(self, per_replica_batch_size: int):
        """Makes the averages, within the strategy's scope.

        Args:
          per_replica_batch_size: items in a replica's batch.
        """
        super().__init__()
        self._batch_size = per_replica_batch_size
        self.averages = moments.variable(tf.zeros(2), 'gradient_noise')

    def update(self, replica_gradients: Sequence[tf.Tensor], norm: tf.Tensor, parts: int) -> tf.Tensor:
        """Adds one step to the averages, in replica context;
        a step that is not finite does not change them.

        Args:
          replica_gradients: the gradients of a part's share of the global batch's mean loss.
          norm: float32 scalar, global norm of their sum over all parts.
          parts: the equal parts of the global batch: the replicas, or two halves.

        Returns:
          float32 scalar, tr(Sigma) / |G|^2 [items] (equation 2.9); 0 / 0 before the first finite
          step.
        """
        context = tf.distribute.get_replica_context()
        # A part divides by the global batch: the mean gradient of its own items is `parts` times as
        # large.
        own = tf.square(parts * tf.linalg.global_norm(replica_gradients))
        small, big = context.all_reduce(tf.distribute.ReduceOp.MEAN, own), tf.square(norm)
        square = (parts * big - small) / (parts - 1)
        trace = (small - big) * self._batch_size * context.num_replicas_in_sync / (parts - 1)
        new = _DECAY * self.averages + (1 - _DECAY) * tf.stack([square, trace])
        self.averages.assign(tf.where(tf.reduce_all(tf.math.is_finite(new)), new, self.averages))
        square, trace = tf.unstack(self.averages.read_value())
        return trace / square
