"""Histograms for summaries, written from inside a compiled train step."""

import tensorflow as tf


def is_recording() -> bool:
    """Returns whether this step, or the program being traced, may write summaries."""
    value = tf.get_static_value(tf.summary.should_record_summaries())
    return value is None or bool(value)


def write(name: str, values: tf.Tensor, step: tf.Tensor | tf.Variable) -> None:
    """Writes a histogram of the finite elements of `values`;
    writes nothing on TPUs, which do not support it.

    One operation computes the buckets and their counts. `tf.summary.histogram` uses dozens, half of
    them in
    conditionals: with twenty histograms a program took three times as long to compile.

    Args:
      name: the histogram's tag, within the current name scopes.
    """
    if not is_recording() or tf.config.list_logical_devices('TPU'):
        return

    def write_now() -> tf.Tensor:
        numbers = tf.cast(tf.reshape(values, [-1]), tf.float64)
        # A boolean mask would be two dozen operations.
        _, finite = tf.dynamic_partition(numbers, tf.cast(tf.math.is_finite(numbers), tf.int32), 2)
        histogram = tf.raw_ops.HistogramSummary(tag=tag, values=finite)
        return tf.summary.experimental.write_raw_pb(histogram, step=step)

    with tf.summary.experimental.summary_scope(name, values=[values, step]) as (tag, _):
        condition = tf.summary.should_record_summaries()
        value = _constant(condition)
        if value is None:
            tf.cond(condition, write_now, lambda: False)
        elif value:
            write_now()


def _constant(condition: tf.Tensor) -> bool | None:
    """Returns the value of a condition if it is known while it is traced, else None.

    TensorFlow's condition is that the writer records, and that this replica does.
    """
    value = tf.get_static_value(condition)
    if value is None and condition.op.type == 'LogicalAnd':
        values = [tf.get_static_value(part) for part in condition.op.inputs]
        value = None if any(part is None for part in values) else all(values)
    return None if value is None else bool(value)
