"""The export job: a full model, an ONNX or TFLite model,
or a product's model of one of a run's exported policies.
"""

import contextlib
import pathlib
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
import tensorflow as tf
from absl import logging
from tf_agents.trajectories import time_step as ts

from tflearn.core.errors import UserValueError
from tflearn.core.settings import PositiveInt, checked
from tflearn.data.reader import Dataset, EpisodeReader
from tflearn.files import digests, messages
from tflearn.files.run_dir import RunDir, read_json, write_atomically
from tflearn.policies import converted, products, signatures, updates, versions
from tflearn.policies.converted import Converted
from tflearn.policies.exporter import OBSERVATION_NAMES
from tflearn.policies.products import ProductOptions
from tflearn.replay import stored_episodes

# Columns of a stored row before the observation: the sequence flag, the policy's version, the step
# type.
_BEFORE_OBSERVATION = 3
_FEW_OBSERVATIONS = 100


@checked
def export(
    *,
    run_dir: RunDir,
    policy: str = 'greedy_policy',
    train_step: int | None = None,
    output: str | None = None,
    batch_size: PositiveInt | None = None,
    format: Literal['onnx', 'tflite', 'tflite_int8'] | None = None,
    signature: str = signatures.DEFAULT,
    observations: str | None = None,
    num_observations: PositiveInt = 2000,
    product: ProductOptions | None = None,
) -> pathlib.Path:
    """Writes a model of one train step; for an update (see `policies.updates`) it makes the full model first.

    Args:
      run_dir: the run's directory.
      policy: the exported policy's name.
      train_step: the train step of the version or update; None takes the stable version, else the
        best one by evaluation, or the newest if none was evaluated.
      output: the path of the model: a directory that must not exist, or a file for a format. None
        leaves a full model among the exported versions, exempt from pruning, and one of a format in
        `RunDir.converted`.
      batch_size: writes 'serving_default' for this batch size only, to `output`; None for any size.
      format: converts to ONNX, to TFLite or to TFLite with integers of 8 bits; None writes a full
        model.
      signature: the function that is converted to the format.
      observations: what calibrates int8, and by which the model is compared with the SavedModel: an
        npz file with arrays [N, ...] by the names of the inputs, or a directory of recorded
        episodes (`tflearn data`), of which steps are drawn at random; None draws them from the
        replay's newest checkpoint for int8, and at random for floats.
      num_observations: the maximum number of observations to use; a warning says if there are fewer
        than 100.
      product: writes a model for products, see `policies.products`, to `output`; None as `output`
        puts it in `RunDir.product`.

    Returns:
      The model's path.

    Raises:
      ValueError: if there is no such step, no observations, no such signature, `output` exists, the
        format cannot compute the policy, or it does not have what `product` names.
      ImportError: if a package of the extra onnx is missing.
      RuntimeError: if the model does not act as the SavedModel does; nothing is written then.
    """
    _check_outputs(output, batch_size, format, signature, observations, product)
    directory = run_dir.policy(policy)
    step = _step(directory) if train_step is None else train_step
    version, path = directory / str(step), pathlib.Path(output) if output else None
    if format is batch_size is product is None:
        version = updates.materialise(directory, step, path)
        logging.info('the full model of step %d is %s', step, version)
        return version
    if not versions.is_complete(version):
        version = updates.materialise(directory, step)
    with digests.checked(version) as copy:
        if product is not None:
            return _product(run_dir, version, copy, path, product)
        if format is None:
            assert path is not None
            products.save_fixed_batch(copy, int(batch_size or 1), path)
            return path
        name = str(step) if signature == signatures.DEFAULT else f'{step}_{signature}'
        path = path or run_dir.converted(policy, f'{name}{converted.SUFFIXES[format]}')
        model = Converted(copy, format, signature)
        if format == converted.INT8 or observations is not None:
            observed = _observations(run_dir, copy, model.inputs, observations, num_observations)
        else:
            observed = model.random_observations(num_observations)
        _write(path, model, model.completed(observed))
        return path


def _check_outputs(
    output: str | None,
    batch_size: int | None,
    format: str | None,
    signature: str,
    observations: str | None,
    product: ProductOptions | None,
) -> None:
    """Raises ValueError for arguments of `export` that ask for different models."""
    if batch_size is not None and (output is None or format is not None):
        raise UserValueError(f'got batch_size={batch_size}, output={output}, format={format}; need a path, None')
    if signature != signatures.DEFAULT and format is None:
        raise UserValueError(f'got signature={signature!r} without a format; need one; a full model has all signatures')
    if product is not None and not (batch_size is format is observations is None):
        raise UserValueError(
            f'got product={product} with batch_size={batch_size}, format={format}, observations={observations}; need '
            'product alone; set ProductOptions.batch_size'
        )


def _step(directory: pathlib.Path) -> int:
    """Returns the train step of the version that serves by its state, else of the best one by evaluation,
    else of the newest one.
    """
    newest = versions.newest_version(directory)
    for find, which in ((versions.stable_version, 'stable one'), (versions.best_version, 'best one by evaluation')):
        if (found := find(directory)) is not None:
            if found != newest:
                text = 'takes the version %d, the %s; --train_step=%d takes the newest one'
                logging.warning(text, found, which, newest)
            return found
    if newest is not None:
        return newest
    raise UserValueError(f'got no policy in {directory}; need one that the train job has exported')


def _write(path: pathlib.Path, made: Converted, given: Mapping[str, np.ndarray]) -> None:
    model = made.convert(given)
    metrics = made.compare(model, given)
    write_atomically(path, model)
    comparison = ', '.join(f'{name} {metric:.4g}' for name, metric in metrics.items())
    logging.info(
        '%s: %d bytes; compared with the SavedModel on %d observations: %s', path, len(model), _len(given), comparison
    )


def product_options(batch_size: int | None, names: Sequence[str], time_step: bool, parameters: bool) -> ProductOptions:
    """Returns the options of flags; `names` are 'default=name'.
    Raises ValueError if they do not fit.
    """
    if wrong := [name for name in names if name.count('=') != 1]:
        raise UserValueError(f'got --product_names={",".join(wrong)}; need default=name,...')
    given = dict(name.split('=') for name in names)
    return ProductOptions(batch_size or 1, time_step=time_step, parameters=parameters, names=given)


def _product(
    run_dir: RunDir, version: pathlib.Path, copy: pathlib.Path, output: pathlib.Path | None, options: ProductOptions
) -> pathlib.Path:
    """Writes a product's model of `copy`, a checked copy of `version`."""
    path = output or run_dir.product(version.parent.name) / version.name
    raw = run_dir.policy('raw_policy')
    if options.parameters and version.parent != raw and updates.is_complete(updates.folder(raw) / version.name):
        updates.materialise(raw, int(version.name))
    with contextlib.ExitStack() as checked:
        if versions.is_complete(raw / version.name):
            raw = checked.enter_context(digests.checked(raw / version.name)).parent
        options.save(copy, path, raw / version.name)
    if output is None:
        versions.point_latest(path.parent)
    return path


def _observations(
    run_dir: RunDir, version: pathlib.Path, inputs: Mapping[str, tf.TensorSpec], file: str | None, limit: int
) -> dict[str, np.ndarray]:
    wanted = {name: spec for name, spec in inputs.items() if name.partition('_')[0] == 'observation'}
    if file is None:
        columns = stored_episodes.read_rows(run_dir.replay_checkpoints, limit)
        observed = columns[_BEFORE_OBSERVATION : _BEFORE_OBSERVATION + len(wanted)]
        found = {name: array for name, (_, array) in zip(_names(version), observed, strict=False)}
    elif pathlib.Path(file).is_dir():
        found = dict(zip(_names(version), _recorded(file, limit), strict=False))
    else:
        found = _load(pathlib.Path(file), limit)
    got = {name: f'{array.dtype.name}{list(array.shape[1:])}' for name, array in found.items()}
    need = {name: f'{spec.dtype.name}{list(spec.shape[1:])}' for name, spec in wanted.items()}
    if got != need or not _len(found):
        raise UserValueError(f'got observations of {got} in {file or run_dir.replay_checkpoints}; need {need}')
    if _len(found) < _FEW_OBSERVATIONS:
        logging.warning(
            'got %d observations in %s; int8 needs %d or more to fit its ranges to what the policy sees; pass more by '
            '--observations',
            _len(found),
            file or run_dir.replay_checkpoints,
            _FEW_OBSERVATIONS,
        )
    return found


def _recorded(directory: str, limit: int) -> list[np.ndarray]:
    """Returns the observations [N, ...] of steps of recorded episodes,
    drawn from all of them alike.
    """
    reader = EpisodeReader(Dataset([directory]))
    chosen = np.random.default_rng(0).permutation(reader.num_steps) < limit
    found: list[list[np.ndarray]] = []
    for episodes in reader.joined():
        # No policy acts in the last one.
        steps = np.flatnonzero(episodes['step_type'] != ts.StepType.LAST)
        rows, chosen = steps[chosen[: len(steps)]], chosen[len(steps) :]
        found.append([array[rows] for name, array in episodes.items() if name.partition('.')[0] == 'observation'])
    return [np.concatenate(parts) for parts in zip(*found, strict=True)]


def _load(file: pathlib.Path, limit: int) -> dict[str, np.ndarray]:
    if not file.is_file():  # numpy would wait for what writes to a pipe
        raise UserValueError(f'got observations={str(file)!r}, which is no file; need an npz file of arrays [N, ...]')
    try:
        # Numpy leaves a damaged file open.
        with file.open('rb') as opened, np.load(opened) as arrays:
            return {name: arrays[name][:limit] for name in arrays.files}
    except Exception as error:  # by zipfile, zlib, numpy and what they call, for damaged files
        raise UserValueError(
            f'got observations={str(file)!r}, which cannot be read ({type(error).__name__}: {error}); need an npz file '
            'of arrays [N, ...]'
        ) from error


def _names(version: pathlib.Path) -> list[str]:
    """Returns the names of the observation's leaves in the order of stored columns,
    which is not that of the names.
    """
    names: list[str] | None = (read_json(version / versions.METADATA, messages.Metadata) or {}).get(OBSERVATION_NAMES)
    if names is None:
        raise UserValueError(
            f'got the policy {version} without {OBSERVATION_NAMES} in its metadata; need them for observations from '
            'the replay; pass your own observations'
        )
    return names


def _len(arrays: Mapping[str, np.ndarray]) -> int:
    return len(next(iter(arrays.values()), ()))
