"""Snapshots: the values of trackable objects at one moment,
under the names that TensorFlow gives them.

TensorFlow writes one template; its object graph maps each name to an object. From then on a
snapshot is one compiled read of all variables, and can be written on any thread while training
continues.
"""

import dataclasses
import os
import tempfile
from collections.abc import Collection, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.core.protobuf import trackable_object_graph_pb2

_GRAPH = '_CHECKPOINTABLE_OBJECT_GRAPH'
_ATTRIBUTE = '/.ATTRIBUTES/'
_SAVED = (tf.Variable, tf.train.experimental.PythonState)
_OPTIMIZERS = (tf.keras.optimizers.Optimizer, tf.keras.optimizers.legacy.Optimizer, tf.compat.v1.train.Optimizer)


@dataclasses.dataclass(frozen=True)
class Snapshot:
    """Values by the keys that they have in a checkpoint; they do not change later."""

    keys: Sequence[str]
    values: Sequence[tf.Tensor]

    def of(self, objects: Collection[str]) -> dict[str, tf.Tensor]:
        """Returns the values of the objects with these names in the checkpoint,
        by their own names.
        """
        return {
            name_of(key): value
            for key, value in zip(self.keys, self.values, strict=True)
            if key.split('/')[0] in objects
        }

    def write(self, prefix: str) -> None:
        """Writes a checkpoint that `tf.train.Checkpoint` restores."""
        with tf.device('/cpu:0'):
            tf.raw_ops.SaveV2(
                prefix=prefix, tensor_names=self.keys, shape_and_slices=[''] * len(self.keys), tensors=self.values
            )


class CheckpointLayout:
    """The variable or Python state behind each key of the checkpoints of a `tf.train.Checkpoint`.

    Attributes:
      described: dtype and shape of every value, by name.
      objects: the variable or Python state of every key that has one.
      unmapped: names of the values of other objects (tables, iterators), which have no snapshots.
    """

    def __init__(self, checkpoint: tf.train.Checkpoint):
        """Writes the template into a temporary directory and reads it;
        the objects must have all their variables.
        """
        with tempfile.TemporaryDirectory() as directory:
            reader = tf.train.load_checkpoint(checkpoint.write(os.path.join(directory, 'template')))
            self._graph_string = reader.get_tensor(_GRAPH)
            self.described = describe(reader)
        self._checkpoint, self._saved = checkpoint, _saved_objects(checkpoint)
        graph = trackable_object_graph_pb2.TrackableObjectGraph.FromString(self._graph_string)
        live, paths = _live_objects(checkpoint, graph)
        by_key: dict[str, Any] = {
            attribute.checkpoint_key: live.get(i) for i, node in enumerate(graph.nodes) for attribute in node.attributes
        }
        self.objects = {key: value for key, value in by_key.items() if self._is_plain(key, value)}
        self.unmapped = sorted(map(name_of, by_key.keys() - self.objects.keys()))
        self._optimizers = tuple(f'{paths[i]}/' for i in paths if isinstance(live[i], _OPTIMIZERS))
        self._variables = {key: value for key, value in self.objects.items() if isinstance(value, tf.Variable)}
        self._states = {key: value for key, value in self.objects.items() if key not in self._variables}
        self._read_all = tf.function(
            lambda: [_read(variable) for variable in self._variables.values()], autograph=False
        )
        self.snapshot()  # compiles now, so that later calls are fast

    def stale(self) -> bool:
        """Returns whether the objects' variables are no longer the same."""
        now = _saved_objects(self._checkpoint)
        return len(now) != len(self._saved) or any(a is not b for a, b in zip(now, self._saved, strict=True))

    def snapshot(self) -> Snapshot:
        """Returns the present values."""
        states = [tf.constant(state.serialize(), tf.string) for state in self._states.values()]
        values = self._read_all() if self._variables else []
        return Snapshot(
            [*self._variables, *self._states, _GRAPH], [*values, *states, tf.constant(self._graph_string, tf.string)]
        )

    def is_optimizers(self, name: str) -> bool:
        """Returns whether the value of this name belongs to an optimizer."""
        return '/.OPTIMIZER_SLOT/' in name or name.startswith(self._optimizers)

    def _is_plain(self, key: str, value: Any) -> bool:
        """Returns whether the key holds a complete variable, or a Python state."""
        if isinstance(value, tf.Variable):
            return self.described[name_of(key)] == f'{value.dtype.base_dtype.name}{value.shape.as_list()}'
        return isinstance(value, tf.train.experimental.PythonState)


def name_of(key: str) -> str:
    """Returns a key's readable name: the path of the object."""
    return key.rpartition(_ATTRIBUTE)[0] or key


def describe(reader: Any) -> dict[str, str]:
    """Returns the dtype and shape of every value in a checkpoint, by name."""
    dtypes, shapes = reader.get_variable_to_dtype_map(), reader.get_variable_to_shape_map()
    return {name_of(key): f'{dtypes[key].name}{shape}' for key, shape in shapes.items() if key != _GRAPH}


def _read(variable: tf.Variable) -> tf.Tensor:
    """Returns the value on the host; of a variable with a value per replica,
    what TensorFlow would save.
    """
    strategy = getattr(variable, 'distribute_strategy', None)
    value = strategy.extended.read_var(variable) if strategy else variable.read_value()
    # No copy on CPU: tensors are immutable, and an update of the variable copies first while one
    # refers to its value.
    with tf.device('/cpu:0'):
        return tf.identity(value)


def _saved_objects(checkpoint: tf.train.Checkpoint) -> list[Any]:
    """Returns every variable and Python state that TensorFlow would save."""
    found = tf.train.TrackableView(checkpoint).descendants()
    # Slot variables are not children of any object.
    slots = [variable for owner in found if isinstance(owner, _OPTIMIZERS) for variable in owner.variables()]
    return [value for value in [*found, *slots] if isinstance(value, _SAVED)]


def _live_objects(
    checkpoint: tf.train.Checkpoint, graph: trackable_object_graph_pb2.TrackableObjectGraph
) -> tuple[dict[int, Any], dict[int, str]]:
    """Returns the object of every node of the graph,
    and the names of those that are not slot variables.
    """
    live: dict[int, Any] = {0: checkpoint}
    paths, waiting = {0: ''}, [0]
    while waiting:
        node = waiting.pop(0)  # breadth first, since names are shortest paths
        children = tf.train.TrackableView.children(live[node])
        for child in graph.nodes[node].children:
            if child.node_id not in live and child.local_name in children:
                live[child.node_id] = children[child.local_name]
                name = child.local_name.replace('.', '..').replace('/', '.S')
                paths[child.node_id] = f'{paths[node]}/{name}'.lstrip('/')
                waiting.append(child.node_id)
    for node, owner in enumerate(graph.nodes):
        for slot in owner.slot_variables:
            original = live.get(slot.original_variable_node_id)
            if node in live and original is not None:
                live[slot.slot_variable_node_id] = live[node].get_slot(original, slot.slot_name)
    return live, paths
