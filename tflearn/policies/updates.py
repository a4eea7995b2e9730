"""Updates of an exported policy: only its weights, small enough to be kept for many steps, beside one full model.

    <directory>/updates/<train step>/       the weights and the metadata of a step
    <directory>/updates/model-<digest>/     the graph that they belong to, once

`materialise` combines the two into a complete version.
"""

import pathlib
import shutil
import tempfile

import tensorflow as tf

from tflearn.core.errors import UserValueError
from tflearn.files import digests, numbered
from tflearn.files.run_dir import read_json
from tflearn.policies import loaded_model, versions
from tflearn.policies.model_files import ModelFiles

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
    """Removes all updates except the `keep_last` newest, and graphs to which no update belongs, moved aside or not."""
    versions.prune(folder(directory), keep_last, needs=NEEDED)
    models = list(folder(directory).glob(f'{_MODEL}*'))
    if len(models) > 1:
        found = [read_json(metadata) or {} for metadata in folder(directory).glob(f'*/{versions.METADATA}')]
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
      ValueError: if there is no such update, a file of it is another one than was exported, or `output` exists.
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
    graph = str((read_json(update / versions.METADATA) or {}).get(GRAPH))
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
