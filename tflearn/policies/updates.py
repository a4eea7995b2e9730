"""Updates of an exported policy: only its weights, small enough to be kept for many steps,
beside one full model.

    <directory>/updates/<train step>/       the weights and the metadata of a step
    <directory>/updates/model-<digest>/     the graph that they belong to, once

`materialise` combines the two into a complete version.
"""

import dataclasses
import functools
import hashlib
import pathlib
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tflearn.core.errors import UserValueError
from tflearn.files import digests, messages, numbered
from tflearn.files.run_dir import read_json
from tflearn.policies import loaded_model, versions

_WEIGHTS = pathlib.Path(tf.saved_model.VARIABLES_DIRECTORY, tf.saved_model.VARIABLES_FILENAME)
_VALUE = '.ATTRIBUTES/VARIABLE_VALUE'


@dataclasses.dataclass(frozen=True)
class ModelFiles:
    """The parts of a SavedModel that do not depend on the weights, and the weights' keys.

    Attributes:
      graph: the content of the files, by their paths within the SavedModel.
      keys: the weights' keys in the SavedModel's checkpoint, in the order of the module's
        `model_variables`.
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
        """Saves a module of `traced_functions.traced` once, within `directory`,
        and reads everything except the weights.

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


GRAPH = 'graph'
NEEDED = (versions.METADATA,)

_FOLDER = 'updates'
_MODEL = 'model-'


def folder(directory: pathlib.Path) -> pathlib.Path:
    """Returns the directory of the updates of the policy in `directory`."""
    return directory / _FOLDER


def steps(directory: pathlib.Path) -> list[int]:
    """Returns the train steps of the complete updates in ascending order."""
    return versions.versions(folder(directory), NEEDED)


def write_model(directory: pathlib.Path, files: ModelFiles) -> None:
    """Writes the graph that updates belong to, unless it exists."""
    model = folder(directory) / f'{_MODEL}{files.digest}'
    if model.exists():
        return
    with numbered.writing(model) as written:
        files.write_graph(written)
        versions.publish(written, model)


def prune(directory: pathlib.Path, keep_last: int) -> None:
    """Removes all updates except the `keep_last` newest, and graphs to which no update belongs,
    moved aside or not.
    """
    versions.prune(folder(directory), keep_last, needs=NEEDED)
    models = list(folder(directory).glob(f'{_MODEL}*'))
    if len(models) > 1:
        found = [
            read_json(metadata, messages.Metadata) or {}
            for metadata in folder(directory).glob(f'*/{versions.METADATA}')
        ]
        named = {f'{_MODEL}{metadata.get(GRAPH)}' for metadata in found}
        for model in models:
            if model.name not in named:
                versions.remove(model)


def materialise(directory: pathlib.Path, train_step: int, output: pathlib.Path | None = None) -> pathlib.Path:
    """Makes a full model of an update, loads it as a check, and only then renames it to its path.

    Args:
      output: the model's path; None puts it among the other versions, exempt from pruning.

    Returns:
      The model's path. An existing version is not overwritten.

    Raises:
      ValueError: if there is no such update, a file of it is another one than was exported, or
        `output` exists.
    """
    version = output or directory / str(train_step)
    if output is None and versions.is_complete(version):
        versions.keep(version)
        return version
    if version.exists():
        raise UserValueError(f'got output={version}, which exists; need a new path; choose another')
    update = folder(directory) / str(train_step)
    if not is_complete(update):
        raise UserValueError(
            f'got no update of step {train_step} of the policy {directory}; need one of: {_list(directory)}'
        )
    graph = str((read_json(update / versions.METADATA, messages.Metadata) or {}).get(GRAPH))
    if not graph.isalnum():  # such as a path that leads elsewhere
        raise UserValueError(f'got the update {update} of the graph {graph[:80]!r}; need its digest; remove it')
    model = update.with_name(_MODEL + graph)
    if not model.is_dir():
        raise UserValueError(f'got the update {update} without its graph; need {model}; copy both')
    with numbered.writing(version) as written:
        with tempfile.TemporaryDirectory(prefix='tflearn-model-') as private:
            for part in (model, update):
                with digests.checked(part) as copy:
                    shutil.copytree(copy, private, dirs_exist_ok=True)
            with loaded_model.naming_damage(update):
                tf.saved_model.load(private)
            versions.record(pathlib.Path(private))
            shutil.copytree(private, written, dirs_exist_ok=True)
        if output is None:
            versions.keep(written)
        versions.publish(written, version, recorded=True)
    return version


def _list(directory: pathlib.Path) -> str:
    return ', '.join(map(str, steps(directory))) or 'none; set update_interval_steps, so that the train job writes them'


def is_complete(update: pathlib.Path) -> bool:
    """Returns whether an update was written completely."""
    return (update / versions.METADATA).is_file()
