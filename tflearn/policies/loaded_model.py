"""Loads SavedModels. Those of the same graph share its functions; each of them has its own weights.

TensorFlow keeps what it compiled for a function until the process ends, so each model with
functions of its own leaks memory when it is unloaded. Here a graph is loaded once, and its
functions are called with the weights of each version instead of their captured inputs.
"""

import contextlib
import dataclasses
import functools
import hashlib
import pathlib
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf
from absl import logging
from tensorflow.core.framework import function_pb2
from tensorflow.core.protobuf import meta_graph_pb2, saved_model_pb2

from tflearn.core.errors import UserError, UserValueError

# Attributes of nodes and arguments that differ from tracing to tracing: a gradient's name, a
# captured tensor's id.
_GRADIENT = '_gradient_op_type'
_ARGUMENT = '_user_specified_name'
_RANDOM_OPS = ('Random', 'Multinomial', 'Normal', 'StatefulUniform', 'Rng')

_VARIABLES = pathlib.Path(tf.saved_model.VARIABLES_DIRECTORY, tf.saved_model.VARIABLES_FILENAME)


def graph_digest(meta_graph: Any) -> str:
    """Returns a digest of a SavedModel's MetaGraphDef that does not depend on the numbers in its functions' names.

    TensorFlow numbers functions as they are traced, and saves them in the order of their names.
    Here a function's name is replaced by the digest of its body, so saving the same policy twice
    gives the same digest.

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


@dataclasses.dataclass(frozen=True, eq=False)
class ModelFunction:
    """A function of a SavedModel with the weights of one version.

    Attributes:
      definition: the concrete function, which versions of the same graph share.
      weights: the captured inputs for this version, which also keep the version's variables alive.
      owner: the object that keeps the function's other resources alive.
    """

    definition: Any
    weights: Sequence[tf.Tensor]
    owner: Any

    @property
    def inputs(self) -> Sequence[tf.Tensor]:
        """The placeholders of the arguments: all inputs except the weights."""
        placeholders: Sequence[tf.Tensor] = self.definition.inputs
        return placeholders[: len(placeholders) - len(self.weights)]

    def outputs(self, inputs: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Computes the outputs, in the order of `definition.outputs`,
        from tensors in the order of `inputs`.
        """
        # The operation behind a function call. The call itself first binds and checks its arguments
        # in Python, which takes several times as long as a small network.
        computed: list[tf.Tensor] = tf.raw_ops.StatefulPartitionedCall(
            args=[*inputs, *self.weights], Tout=self._output_dtypes, f=self.definition
        )
        return computed

    def __call__(self, inputs: Sequence[tf.Tensor]) -> Any:
        """Computes the outputs and returns them in their structure."""
        return tf.nest.pack_sequence_as(self.definition.structured_outputs, self.outputs(inputs))

    @functools.cached_property
    def _output_dtypes(self) -> list[tf.DType]:
        return [output.dtype for output in self.definition.outputs]


class LoadedModel:
    """One version of a SavedModel.

    Attributes:
      signatures: the signatures, by name.
      signature_defs: TensorFlow's `SignatureDef` messages, by name.
    """

    def __init__(self, graph: '_Graph', weights: Mapping[int, tf.Tensor]):
        self._graph, self._weights = graph, weights
        self.signature_defs: Mapping[str, Any] = graph.signature_defs
        self.signatures = {name: self._bound(definition) for name, definition in graph.signatures.items()}

    @property
    def functions(self) -> Collection[str]:
        """The names of the functions that were traced once."""
        return self._graph.functions.keys()

    def with_weights(self, path: pathlib.Path) -> 'LoadedModel':
        """Returns the model with the weights at `path`:
        of a version, or of an update of the same graph.
        """
        with _loading:
            return self._graph.version(path)

    def function(self, name: str) -> ModelFunction:
        """Returns a function that was traced once.

        Raises:
          ValueError: if the SavedModel has none of that name.
        """
        if name not in self._graph.functions:
            raise UserValueError(f'got a SavedModel with the functions {sorted(self._graph.functions)}; need {name}')
        return self._bound(self._graph.functions[name])

    def _bound(self, definition: Any) -> ModelFunction:
        weights = [self._weights.get(id(each), each) for each in definition.captured_inputs]
        return ModelFunction(definition, weights, self._graph)


class _Graph:
    """A SavedModel loaded by TensorFlow: its functions,
    and variables to read the weights of a version into.
    """

    def __init__(self, path: pathlib.Path, signature_defs: Mapping[str, Any]):
        self._model = tf.saved_model.load(str(path))
        self._checkpoint = tf.train.Checkpoint(root=self._model)
        self.signature_defs = signature_defs
        self.signatures: Mapping[str, Any] = dict(self._model.signatures)
        # A function that was traced several times is ambiguous.
        self.functions = {
            name: value.concrete_functions[0]
            for name, value in vars(self._model).items()
            if len(getattr(value, 'concrete_functions', ())) == 1
        }
        functions = [*self.signatures.values(), *self.functions.values()]
        self._variables = {id(each.handle): each for function in functions for each in function.variables}
        captured = {id(each): each for function in functions for each in function.captured_inputs}
        others = [each for key, each in captured.items() if key not in self._variables]
        # Other resources, such as lookup tables, belong to one version.
        self.shared = not any(each.dtype in (tf.resource, tf.variant) for each in others)

    def own(self) -> LoadedModel:
        """Returns the model from which the graph was loaded."""
        return LoadedModel(self, {})

    def version(self, path: pathlib.Path) -> LoadedModel:
        """Returns the model at `path`, which has this graph, with its own variables."""
        self._checkpoint.read(str(path / _VARIABLES)).assert_existing_objects_matched()
        return LoadedModel(self, {key: _copy(variable).handle for key, variable in self._variables.items()})


# Never removed, since TensorFlow keeps what it compiled for them in any case.
_graphs: dict[str, _Graph] = {}
_loading = threading.Lock()


def load(path: pathlib.Path) -> LoadedModel:
    """Loads a SavedModel. Thread-safe.

    A model with assets, or with resources other than variables, shares no functions: it leaks
    memory when it is unloaded.

    Args:
      path: the SavedModel's path. Its files are not needed after the return.

    Raises:
      OSError, ValueError, tf.errors.OpError: if it is missing or damaged.
    """
    try:
        return _load(path)
    except (OSError, ValueError, tf.errors.OpError):
        raise
    except Exception as error:  # TensorFlow's loader raises whatever a damaged file leads to
        raise UserValueError(f'{type(error).__name__}: {error}') from error


@contextlib.contextmanager
def naming_damage(path: pathlib.Path) -> Iterator[None]:
    """Turns all that reading a damaged SavedModel at `path` raises during the block into a UserValueError."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:  # see above
        reason = ' '.join(str(error).split())
        raise UserValueError(
            f'got a damaged policy at {path} ({type(error).__name__}: {reason:.300}); need a complete one; remove it'
        ) from error


def _load(path: pathlib.Path) -> LoadedModel:
    saved = saved_model_pb2.SavedModel.FromString((path / tf.saved_model.SAVED_MODEL_FILENAME_PB).read_bytes())
    definition = saved.meta_graphs[0]
    signature_defs = dict(definition.signature_def)
    if definition.asset_file_def or not definition.HasField('object_graph_def'):
        return _Graph(path, signature_defs).own()
    digest = graph_digest(definition)
    with _loading:
        if digest not in _graphs:
            graph = _Graph(path, signature_defs)
            if not graph.shared:
                logging.warning('the SavedModel %s has resources other than variables; reloads will leak memory', path)
                return graph.own()
            _graphs[digest] = graph
        return _graphs[digest].version(path)


def _copy(variable: Any) -> Any:
    """Returns a new variable with the same value.
    Memory is copied only when one of the two changes.
    """
    with tf.device(variable.device):
        return tf.Variable(variable.read_value(), trainable=False, shape=variable.shape, dtype=variable.dtype)


def is_stochastic(function: Any) -> bool:
    """Returns whether a concrete function draws random numbers."""
    graph = function.graph.as_graph_def()
    nodes = [*graph.node, *(node for definition in graph.library.function for node in definition.node_def)]
    stateful = {node.op for node in nodes if not node.op.startswith('Stateless')}
    return any(word in op for op in stateful for word in _RANDOM_OPS)
