"""The files of a SavedModel: its graph, which all versions share, and the weights of each version."""

import dataclasses
import functools
import hashlib
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tflearn.files import numbered

_WEIGHTS = pathlib.Path(tf.saved_model.VARIABLES_DIRECTORY, tf.saved_model.VARIABLES_FILENAME)
_VALUE = '.ATTRIBUTES/VARIABLE_VALUE'


@dataclasses.dataclass(frozen=True)
class ModelFiles:
    """The parts of a SavedModel that do not depend on the weights, and the weights' keys.

    Attributes:
      graph: the content of the files, by their paths within the SavedModel.
      keys: the weights' keys in the SavedModel's checkpoint, in the order of the module's `model_variables`.
      dtypes: the weights' dtypes.
      constants: the other values in that checkpoint, by key.
    """

    graph: Mapping[pathlib.Path, bytes]
    keys: Sequence[str]
    dtypes: Sequence[tf.DType]
    constants: Mapping[str, np.ndarray]

    @classmethod
    def of(
        cls,
        module: tf.Module,
        signatures: Mapping[str, Any],
        directory: pathlib.Path,
        others: Mapping[pathlib.Path, bytes],
    ) -> 'ModelFiles':
        """Saves a module of `signatures.traced` once, within `directory`, and reads everything except the weights.

        `others` are further files that do not depend on the weights.
        """
        with numbered.writing(directory / 'template') as path:
            tf.saved_model.save(module, str(path), signatures=signatures)
            files = {file.relative_to(path): file for file in path.rglob('*') if file.is_file()}
            # The fingerprint depends on the weights, and is optional.
            graph = {
                name: file.read_bytes()
                for name, file in files.items()
                if name.parts[0] not in (tf.saved_model.VARIABLES_DIRECTORY, 'fingerprint.pb')
            }
            # A SavedModel's weights are a checkpoint of its root object.
            reader = tf.train.load_checkpoint(str(path / _WEIGHTS))
            keys = [f'model_variables/{i}/{_VALUE}' for i in range(len(module.model_variables))]
            constants = sorted(reader.get_variable_to_shape_map().keys() - set(keys))
            dtypes = [variable.dtype for variable in module.model_variables]
            return cls({**graph, **others}, keys, dtypes, {key: reader.get_tensor(key) for key in constants})

    @functools.cached_property
    def digest(self) -> str:
        """Identifies the graph."""
        digest = hashlib.sha256()
        for name in sorted(self.graph):
            digest.update(f'{name} {len(self.graph[name])}\n'.encode() + self.graph[name])
        return digest.hexdigest()[:16]

    def write_graph(self, path: pathlib.Path) -> None:
        """Writes the graph's files to `path`."""
        for name, content in self.graph.items():
            (path / name).parent.mkdir(parents=True, exist_ok=True)
            (path / name).write_bytes(content)

    def write_weights(self, path: pathlib.Path, weights: Sequence[tf.Tensor]) -> None:
        """Writes weights, in the order of `keys`, for the SavedModel at `path`."""
        (path / _WEIGHTS).parent.mkdir(exist_ok=True)
        with tf.device('CPU:0'):
            tf.raw_ops.SaveV2(
                prefix=str(path / _WEIGHTS),
                tensor_names=[*self.keys, *self.constants],
                shape_and_slices=[''] * (len(self.keys) + len(self.constants)),
                tensors=[*weights, *map(tf.constant, self.constants.values())],
            )

    def read_weights(self, path: pathlib.Path) -> list[tf.Tensor]:
        """Returns the weights of the SavedModel at `path`, in the order of `keys`."""
        if not self.keys:
            return []
        with tf.device('CPU:0'):
            read: list[tf.Tensor] = tf.raw_ops.RestoreV2(
                prefix=str(path / _WEIGHTS),
                tensor_names=[*self.keys],
                shape_and_slices=[''] * len(self.keys),
                dtypes=[*self.dtypes],
            )
        return read
