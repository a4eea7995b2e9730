"""Loads SavedModels: those of the same graph share its functions, and each of them has its own weights.

TensorFlow keeps what it compiled for a function until the process ends, so every model that brings functions of its own
leaves memory behind when it is unloaded. Here a graph is loaded once. Its functions are then called with the weights of
each version in the place of their own captured inputs.
"""

import dataclasses
import functools
import pathlib
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf
from absl import logging
from google.protobuf.message import DecodeError
from tensorflow.core.protobuf import saved_model_pb2

from tflearn.errors import UserValueError
from tflearn.policies.graph_digest import graph_digest

_VARIABLES = pathlib.Path(tf.saved_model.VARIABLES_DIRECTORY, tf.saved_model.VARIABLES_FILENAME)


@dataclasses.dataclass(frozen=True, eq=False)
class ModelFunction:
    """A function of a SavedModel with the weights of one version.

    Attributes:
      definition: the concrete function, which versions of the same graph share.
      weights: its captured inputs for this version, which also keep the version's variables alive.
      owner: of what else the function uses, which TensorFlow would free without it.
    """

    definition: Any
    weights: Sequence[tf.Tensor]
    owner: Any

    @property
    def inputs(self) -> Sequence[tf.Tensor]:
        """The placeholders of what a caller gives: all inputs but the weights."""
        placeholders: Sequence[tf.Tensor] = self.definition.inputs
        return placeholders[: len(placeholders) - len(self.weights)]

    def outputs(self, inputs: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Computes the outputs, in the order of `definition.outputs`, of tensors in the order of `inputs`."""
        # The operation behind a function's call; the call itself binds and checks its arguments in Python first, for
        # several times what a small network takes.
        computed: list[tf.Tensor] = tf.raw_ops.StatefulPartitionedCall(
            args=[*inputs, *self.weights], Tout=self._output_dtypes, f=self.definition
        )
        return computed

    def __call__(self, inputs: Sequence[tf.Tensor]) -> Any:
        """Computes the outputs, in their structure."""
        return tf.nest.pack_sequence_as(self.definition.structured_outputs, self.outputs(inputs))

    @functools.cached_property
    def _output_dtypes(self) -> list[tf.DType]:
        return [output.dtype for output in self.definition.outputs]


class LoadedModel:
    """One version of a SavedModel.

    Attributes:
      signatures: its signatures, by name.
      signature_defs: TensorFlow's messages about the signatures, by name.
    """

    def __init__(self, graph: '_Graph', weights: Mapping[int, tf.Tensor]):
        self._graph, self._weights = graph, weights
        self.signature_defs: Mapping[str, Any] = graph.signature_defs
        self.signatures = {name: self._bound(definition) for name, definition in graph.signatures.items()}

    def function(self, *names: str) -> ModelFunction:
        """Returns the function, traced once, that the SavedModel has as an attribute of the first of these names.

        Raises:
          ValueError: if it has none of them.
        """
        for name in names:
            if name in self._graph.functions:
                return self._bound(self._graph.functions[name])
        raise UserValueError(f'got a SavedModel with the functions {sorted(self._graph.functions)}; need {names[-1]}')

    def _bound(self, definition: Any) -> ModelFunction:
        weights = [self._weights.get(id(each), each) for each in definition.captured_inputs]
        return ModelFunction(definition, weights, self._graph)


class _Graph:
    """A SavedModel as TensorFlow loads it: its functions, and variables that the weights of a version are read into."""

    def __init__(self, path: pathlib.Path, signature_defs: Mapping[str, Any]):
        self._model = tf.saved_model.load(str(path))
        self._checkpoint = tf.train.Checkpoint(root=self._model)
        self.signature_defs = signature_defs
        self.signatures: Mapping[str, Any] = dict(self._model.signatures)
        # Those with several traced versions have none that could be meant.
        self.functions = {
            name: value.concrete_functions[0]
            for name, value in vars(self._model).items()
            if len(getattr(value, 'concrete_functions', ())) == 1
        }
        functions = [*self.signatures.values(), *self.functions.values()]
        self._variables = {id(each.handle): each for function in functions for each in function.variables}
        captured = {id(each): each for function in functions for each in function.captured_inputs}
        others = [each for key, each in captured.items() if key not in self._variables]
        # A table, say, belongs to the version that filled it.
        self.shared = not any(each.dtype in (tf.resource, tf.variant) for each in others)

    def own(self) -> LoadedModel:
        """Returns the model that was loaded with the graph."""
        return LoadedModel(self, {})

    def version(self, path: pathlib.Path) -> LoadedModel:
        """Returns the model at `path`, which has this graph, with variables of its own."""
        self._checkpoint.read(str(path / _VARIABLES)).assert_existing_objects_matched()
        return LoadedModel(self, {key: _copy(variable).handle for key, variable in self._variables.items()})


# TensorFlow keeps what it compiled for them in any case.
_graphs: dict[str, _Graph] = {}
_loading = threading.Lock()


def load(path: pathlib.Path) -> LoadedModel:
    """Loads a SavedModel. May be called by many threads at a time.

    A model with assets, or with resources other than variables, shares nothing: TensorFlow keeps a part of its memory
    when it is unloaded.

    Args:
      path: of the SavedModel. Its files are not needed any more after the return, unless it has assets.

    Raises:
      OSError, ValueError, tf.errors.OpError: if it is missing or damaged.
    """
    try:
        return _load(path)
    except (AssertionError, IndexError, DecodeError) as error:  # of TensorFlow, for files that lack something
        raise UserValueError(f'{type(error).__name__}: {error}') from error


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
                logging.warning('the SavedModel %s has resources other than variables; reloads will take memory', path)
                return graph.own()
            _graphs[digest] = graph
        return _graphs[digest].version(path)


def _copy(variable: Any) -> Any:
    """Returns a new variable with the same value. No memory is copied until one of the two is changed."""
    with tf.device(variable.device):
        return tf.Variable(variable.read_value(), trainable=False, shape=variable.shape, dtype=variable.dtype)
