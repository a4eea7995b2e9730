"""What a TPU refuses: data without fixed shapes or of types that it does not have, and operations of the host."""

from collections.abc import Iterator
from typing import Any

import tensorflow as tf
from tf_agents.utils import nest_utils

from tflearn.core.errors import UserValueError

# Operations that run Python, write files or print: a program on a TPU cannot call back to its host for them.
_HOST_OPS = ('PyFunc', 'PyFuncStateless', 'EagerPyFunc', 'Print', 'PrintV2', 'WriteFile', 'ReadFile')
_HOST_PREFIXES = ('Write', 'Reverb')  # WriteSummary, WriteScalarSummary, ...; the replay's client
_MAX_NAMED = 3


def of_data(spec: Any, what: str = 'the data') -> list[str]:
    """Returns what a TPU refuses in tensors that a step is given, one line for each.

    Args:
      spec: nest of tensor specs.
      what: what they belong to, for the lines.
    """
    lines = []
    for name, leaf in nest_utils.flatten_with_joined_paths(spec, expand_composites=True):
        if leaf.dtype == tf.string:
            lines.append(f'got strings in {name} of {what}; need numbers on a TPU; leave them out, or encode them')
        if leaf.dtype == tf.float64:
            lines.append(f'got float64 in {name} of {what}; need float32 on a TPU; cast it where the data are made')
        if leaf.shape.rank is None or None in leaf.shape.as_list():
            lines.append(
                f'got the shape {leaf.shape} of {name} in {what}; need all dimensions known on a TPU; pad it, give '
                'every item the same sequence length, and batch with drop_remainder=True'
            )
    return lines


def check(spec: Any, what: str = 'the data') -> None:
    """Raises a ValueError if a TPU refuses tensors of this spec; it names the first reason. See `of_data`."""
    if refusals := of_data(spec, what):
        raise UserValueError(refusals[0])


def of_graph(graph: tf.Graph) -> list[str]:
    """Returns what a TPU refuses in a traced step, one line for each kind of operation."""
    found: dict[tuple[str, str], list[str]] = {}
    for kind, name, is_float64 in _operations(graph):
        if kind in _HOST_OPS or kind.startswith(_HOST_PREFIXES):
            found.setdefault(('host', kind), []).append(name)
        if is_float64:
            found.setdefault(('float64', ''), []).append(name)
    return [_line(reason, kind, names) for (reason, kind), names in found.items()]


def _operations(graph: tf.Graph) -> Iterator[tuple[str, str, bool]]:
    """Returns kind and name of the operations of a graph and of all its functions, and whether they make float64."""
    definition = graph.as_graph_def(add_shapes=False)
    for nodes in (definition.node, *(function.node_def for function in definition.library.function)):
        for node in nodes:
            types = {attribute.type for attribute in node.attr.values()}
            types |= {each for attribute in node.attr.values() for each in attribute.list.type}
            yield node.op, node.name, tf.float64.as_datatype_enum in types


def _line(reason: str, kind: str, names: list[str]) -> str:
    named = ', '.join(names[:_MAX_NAMED]) + (f' and {len(names) - _MAX_NAMED} more' if len(names) > _MAX_NAMED else '')
    if reason == 'float64':
        return f'got float64 in the train step ({named}); need float32 on a TPU; cast what it is computed from'
    return (
        f'got the host operation {kind} in the train step ({named}); need operations that run on a TPU; move it to '
        'the data, or to LearnerOptions.after_run'
    )
