"""Gradient statistics for summaries: norms, histograms, and the gradient noise scale.

McCandlish et al. 2018, "An Empirical Model of Large-Batch Training" (arXiv 1812.06162), appendix A.1. Everything here
is called only where summaries are recorded; a program without them holds none of it.
"""

from collections.abc import Sequence

import tensorflow as tf

from tflearn import histograms

_DECAY = 0.9


def summarize(
    name: str,
    step: tf.Tensor,
    variables: Sequence[tf.Variable],
    gradients: Sequence[tf.Tensor],
    norm: tf.Tensor,
    clipped_norm: tf.Tensor,
) -> None:
    """Writes norms and histograms under `gradients/<name>/`.

    Args:
      name: of the optimizer.
      step: int64 scalar, the train step.
      variables: that are trained.
      gradients: of the global batch, one for each variable, before clipping.
      norm: float32 scalar, global norm of `gradients`.
      clipped_norm: float32 scalar, global norm after clipping.
    """
    with tf.name_scope(f'gradients/{name}/'):  # the slash leaves the scopes of whoever called
        tf.summary.scalar('norm', norm, step=step)
        tf.summary.scalar('clipped_norm', clipped_norm, step=step)
        for variable, gradient in zip(variables, gradients, strict=True):
            tag = variable.name.replace(':', '_')
            tf.summary.scalar(f'{tag}/gradient_norm', tf.norm(gradient), step=step)
            tf.summary.scalar(f'{tag}/variable_norm', tf.norm(variable), step=step)
            histograms.write(f'{tag}/gradient', gradient, step)
            histograms.write(f'{tag}/variable', variable, step)


class GradientNoise(tf.Module):
    """Estimates the gradient noise scale, the batch size [items] beyond which a larger one helps ever less.

    A replica's gradient is that of a small batch, their sum that of a big one. With one replica there is no small
    batch, hence no estimate. The two moving averages run over the steps whose summaries are recorded.

    Attributes:
      averages: float32 [2], moving averages of |G|^2, the true gradient's squared norm, and of tr(Sigma), the sum of
        the variances of one item's gradient. Both start at 0, a bias that their ratio does not have.
    """

    def __init__(self, per_replica_batch_size: int):
        """Makes the averages; within the strategy's scope.

        Args:
          per_replica_batch_size: items in a replica's batch.
        """
        super().__init__()
        self._batch_size = per_replica_batch_size
        self.averages = tf.Variable(
            tf.zeros(2), trainable=False, aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA, name='gradient_noise'
        )

    def update(self, replica_gradients: Sequence[tf.Tensor], norm: tf.Tensor) -> tf.Tensor:
        """Takes one step into the averages, in replica context; a step that is not finite leaves them as they are.

        Args:
          replica_gradients: this replica's, of its share of the global batch's mean loss.
          norm: float32 scalar, global norm of their sum over the replicas.

        Returns:
          float32 scalar, tr(Sigma) / |G|^2 [items] (equation 2.9); 0 / 0 before there is anything.
        """
        context = tf.distribute.get_replica_context()
        replicas = context.num_replicas_in_sync
        # A replica divides by the global batch: its own batch's mean gradient is `replicas` times as large.
        own = tf.square(replicas * tf.linalg.global_norm(replica_gradients))
        small, big = context.all_reduce(tf.distribute.ReduceOp.MEAN, own), tf.square(norm)
        square = (replicas * big - small) / (replicas - 1)
        trace = (small - big) * self._batch_size * replicas / (replicas - 1)
        new = _DECAY * self.averages + (1 - _DECAY) * tf.stack([square, trace])
        self.averages.assign(tf.where(tf.reduce_all(tf.math.is_finite(new)), new, self.averages))
        square, trace = tf.unstack(self.averages.read_value())
        return trace / square
