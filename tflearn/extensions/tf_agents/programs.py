"""Programs of the drop-in for TF-Agents' Learner: many train steps on a dataset, as one call."""

import functools
import inspect
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tflearn.learner import xla_loop
from tflearn.learner.datasets import StackBatches
from tflearn.learner.metrics import LOSS
from tflearn.learner.train_loop import JitCompile
from tflearn.learner.xla_loop import Program, XlaLoop


def over_stacks(
    step: Callable[[Any], tf.Tensor], num_metrics: int, stacks: StackBatches, jit_compile: JitCompile
) -> Program:
    """Returns a program that takes train steps on a dataset's stacks.

    Args:
      step: takes a train step on an element; returns its metrics, float32 [num_metrics].
      jit_compile: whether XLA takes them; 'auto' does so after a number of train steps.

    Returns:
      (train steps to take) -> train steps taken, the sum of their losses, and the last one's
      metrics, float64 [2 + num_metrics].
    """

    def take(sums: tf.Tensor, element: Any) -> Any:
        last = step(element)
        return tf.concat([sums[:1] + last[LOSS], last], axis=0), tf.constant(True), ()

    def compiled(loop: Callable[..., Any]) -> Program:
        def program(num_steps: tf.Tensor) -> tf.Tensor:
            taken, _, sums, _ = loop(tf.zeros([1 + num_metrics]), num_steps)
            return tf.concat([[tf.cast(taken, tf.float64)], tf.cast(sums, tf.float64)], axis=0)

        return traced_once(program)

    plain = compiled(functools.partial(stacks.loop, take))
    if not jit_compile:
        return plain
    after_steps = xla_loop.AUTO_AFTER_STEPS if jit_compile == 'auto' else 0
    return XlaLoop(plain, stacks, take, 1 + num_metrics, compiled, after_steps)


def traced_once(program: Callable[[tf.Tensor], tf.Tensor]) -> Program:
    """Returns a program in a graph. Its trace is kept:
    looking it up again costs as much as a small train step.
    """
    in_graph = tf.function(program, autograph=False)
    trace = functools.cache(lambda: in_graph.get_concrete_function(tf.TensorSpec((), tf.int64)))
    return lambda count: trace()(tf.constant(count, tf.int64)).numpy()


def call_dataset_fn(dataset_fn: Callable[..., tf.data.Dataset], context: tf.distribute.InputContext) -> tf.data.Dataset:
    """Calls a dataset function, with the InputContext if it takes an argument."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = inspect.signature(dataset_fn).parameters.values()
    takes_context = any(p.kind in kinds and p.default is inspect.Parameter.empty for p in parameters)
    return dataset_fn(context) if takes_context else dataset_fn()
