"""Recognizes SavedModels that differ only in their weights, although each was traced and saved separately."""

import functools
import hashlib
from typing import Any

from tensorflow.core.framework import function_pb2
from tensorflow.core.protobuf import meta_graph_pb2

# Attributes of nodes and arguments that differ from tracing to tracing: a gradient's name, a captured tensor's id.
_GRADIENT = '_gradient_op_type'
_ARGUMENT = '_user_specified_name'


def graph_digest(meta_graph: Any) -> str:
    """Returns a digest of a SavedModel's MetaGraphDef that does not depend on the numbers in its functions' names.

    TensorFlow numbers functions as they are traced, and saves them in the order of their names. Here a function's name
    is replaced by the digest of its body, so saving the same policy twice gives the same digest.

    Args:
      meta_graph: `SavedModel.meta_graphs[0]`; it is not changed.
    """
    graph = meta_graph_pb2.MetaGraphDef()
    graph.CopyFrom(meta_graph)
    functions = {function.signature.name: function for function in graph.graph_def.library.function}

    @functools.cache
    def name_of(function_name: str) -> str:
        if function_name not in functions:
            return function_name
        function = function_pb2.FunctionDef()
        function.CopyFrom(functions[function_name])
        function.signature.name = ''
        for argument in function.arg_attr.values():
            if argument.attr[_ARGUMENT].s.isdigit():
                del argument.attr[_ARGUMENT]
        _rename_calls(function.node_def, name_of)
        return _digest(function.SerializeToString(deterministic=True))

    library = sorted(map(name_of, functions))
    _rename_calls(graph.graph_def.node, name_of)
    objects = graph.object_graph_def
    # Two functions may have the same body and different variables.
    concrete = {
        name: _digest(name_of(name).encode() + function.SerializeToString(deterministic=True))
        for name, function in objects.concrete_functions.items()
    }
    for node in objects.nodes:
        if node.WhichOneof('kind') == 'function':
            node.function.concrete_functions[:] = [concrete[name] for name in node.function.concrete_functions]
        elif node.WhichOneof('kind') == 'bare_concrete_function':
            bare = node.bare_concrete_function
            bare.concrete_function_name = concrete[bare.concrete_function_name]
    graph.graph_def.library.Clear()
    graph.meta_info_def.function_aliases.clear()
    objects.concrete_functions.clear()
    parts = [graph.SerializeToString(deterministic=True), *map(str.encode, library)]
    return _digest(b''.join(parts + sorted(map(str.encode, concrete.values()))))


def _rename_calls(nodes: Any, name_of: Any) -> None:
    """Replaces the names of functions in the nodes."""
    for node in nodes:
        node.op = name_of(node.op)
        node.attr.pop(_GRADIENT, None)
        for value in node.attr.values():
            called = [value.func] if value.HasField('func') else value.list.func if value.HasField('list') else []
            for function in called:
                function.name = name_of(function.name)


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
