"""Histograms of layers' outputs, and the shares of their dead units, found in the graph of a train step.

A layer is found by the addition of its bias, a variable of the agent, whether it is a Keras layer or not. Its output is
that of the activation that follows, if there is one alone. Nothing is computed again: it is what the train step has
computed for its batch. Branches and loops are graphs of their own, whose layers are not found.
"""

import re
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from tflearn.core import histograms

_BETWEEN = ('Cast', 'Identity', 'ReadVariableOp', 'Unpack')  # the variable and the addition
_ACTIVATIONS = ('Elu', 'LeakyRelu', 'Relu', 'Relu6', 'Selu', 'Sigmoid', 'Softplus', 'Tanh')
_CAN_DIE = ('Relu', 'Relu6')
_BIAS = re.compile(r'/_?bias(es)?(/\d+)?$')


def write(agent: Any, step: tf.Tensor) -> None:
    """Writes `layers/<path>` of each layer that the present graph has computed, `<path>/dead_units` of ReLUs.

    Args:
      agent: the agent, whose variables' paths are the layers' names. Targets are left out.
      step: int64 scalar, the train step.
    """
    graph = tf.compat.v1.get_default_graph()
    names = {id(handle): _BIAS.sub('', path) for path, handle in _handles(agent) if 'target' not in path}
    captured = {inner.name: names[id(outer)] for outer, inner in graph.captures if id(outer) in names}
    written: set[str] = set()
    with tf.name_scope('layers/'):
        for operation in graph.get_operations():
            name = _layer(operation, captured) if operation.type in ('BiasAdd', 'AddV2') else None
            if name is None or name in written:  # another time on other inputs
                continue
            written.add(name)
            activations = [each for each in operation.outputs[0].consumers() if each.type in _ACTIVATIONS]
            if len(activations) == 1:
                (operation,) = activations
            (output,) = operation.outputs
            histograms.write(name, output, step)
            if operation.type in _CAN_DIE:
                units = tf.reshape(output, [-1, output.shape[-1]])
                dead = tf.reduce_mean(tf.cast(tf.reduce_all(units <= 0, axis=0), tf.float32))
                tf.summary.scalar(f'{name}/dead_units', dead, step=step)


def _layer(addition: tf.Operation, captured: dict[str, str]) -> str | None:
    """Returns the name of the layer that adds its bias; of several layers in one variable with the index."""
    bias, index = addition.inputs[1], 0
    while bias.op.type in _BETWEEN:
        index = max(index, bias.value_index)
        bias = bias.op.inputs[0]
    name = captured.get(bias.name)
    return f'{name}/{index}' if name and index else name


def _handles(agent: Any) -> Iterator[tuple[str, tf.Tensor]]:
    """Yields the biases of the agent's layers in this replica: the shortest path of the attributes, and the handle."""
    seen, waiting = {id(agent)}, [('', agent)]
    while waiting:
        path, part = waiting.pop(0)
        if isinstance(part, tf.Variable):
            if _BIAS.search(path):
                yield path, tf.distribute.get_strategy().experimental_local_results(part)[0].handle
            continue
        for name, child in tf.train.TrackableView.children(part).items():
            if id(child) not in seen:
                seen.add(id(child))
                waiting.append((f'{path}/{name.lstrip("_")}'.lstrip('/'), child))
