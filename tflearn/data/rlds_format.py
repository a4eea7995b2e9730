"""Episodes in the RLDS layout of TensorFlow Datasets,
written and read by the `tensorflow_datasets` package.

An episode has `steps`, each with is_first, is_last, is_terminal, observation, action, reward and
discount; the last one has only an observation. A nest is a nest of dicts, with the keys '0', '1',
... for a tuple. Our columns for which RLDS has no place, such as policy_info, are further fields of
a step.
"""

import collections
import json
import pathlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tf_agents.specs import tensor_spec
from tf_agents.trajectories import time_step as ts

from tflearn.core import extras, record_files
from tflearn.core.errors import UserValueError
from tflearn.core.types import EnvironmentSpecs, named_leaves
from tflearn.data import columns
from tflearn.data.columns import Column

_OWN = 'tflearn'  # what is stored in the metadata, as text
_SPLIT, _VERSION = 'train', '1.0.0'
_SHARD_EPISODES = 1000
_BATCH = 4096


def directory_of(path: pathlib.Path) -> pathlib.Path | None:
    """Returns the directory of the dataset's files: `path`, or the newest version in it;
    None if it is none.
    """
    found = [each for each in (path, *sorted(path.glob('*.*.*'), reverse=True)) if (each / 'features.json').exists()]
    return found[0] if found else None


def write(
    path: pathlib.Path,
    specs: EnvironmentSpecs,
    stored: Sequence[Column],
    episodes: Iterable[Mapping[str, np.ndarray]],
    metadata: Mapping[str, Any],
) -> None:
    """Writes episodes to the directory `path`, which is new and has the dataset's name.

    Args:
      specs: the environment's specs.
      stored: the columns of a step.
      episodes: arrays [T, ...] by column.
      metadata: what is known of the data. JSON.

    Raises:
      ImportError: if `tensorflow_datasets` is not installed.
      ValueError: if two columns have one name in nests.
    """
    for column in stored:
        if column.dtype == 'float64':
            raise UserValueError(
                f'got the column {column}, which TFDS stores as float32; need float32, or another format'
            )
    with extras.needed_by('the format rlds'):
        import tensorflow_datasets as tfds
    flags = dict.fromkeys(('is_first', 'is_last', 'is_terminal'), tf.bool)
    tensors = {c.name: tfds.features.Tensor(shape=c.shape, dtype=tf.as_dtype(c.dtype)) for c in stored}
    features = tfds.features.FeaturesDict({'steps': tfds.features.Dataset({**flags, **_nested(tensors)})})
    path.mkdir(parents=True)
    version = tfds.core.Version(_VERSION)
    identity = tfds.core.dataset_info.DatasetIdentity(
        name=_name(path), version=version, data_dir=str(path), module_name=__name__
    )
    own = json.dumps({'metadata': dict(metadata), **columns.to_json(specs, stored)})
    info = tfds.core.DatasetInfo(builder=identity, features=features, metadata=tfds.core.MetadataDict({_OWN: own}))
    writer = tfds.core.SequentialWriter(info, max_examples_per_shard=_SHARD_EPISODES)
    writer.initialize_splits([_SPLIT])
    for episode in episodes:
        step_type, discount = episode['step_type'], episode['discount']
        num_rows = len(step_type)
        last = np.arange(num_rows) == num_rows - 1
        # Of the step before the boundary row; an episode may end without one.
        ended = discount[-2] if num_rows > 1 and episode['next_step_type'][-1] == ts.StepType.FIRST else discount[-1]
        steps = {'is_first': step_type == ts.StepType.FIRST, 'is_last': last, 'is_terminal': last & bool(ended == 0)}
        writer.add_examples({_SPLIT: [{'steps': {**steps, **_nested(episode)}}]})
    writer.close_all()


def read(path: pathlib.Path) -> tuple[EnvironmentSpecs, tuple[Column, ...], dict[str, Any], Iterator[list[np.ndarray]]]:
    """Returns the environment's specs, the columns, the metadata,
    and an iterator over the leaves of the episodes.

    A dataset of another program says nothing of the bounds of actions: they are the least and the
    greatest numbers of its actions, and integers are counted from 0.

    Args:
      path: see `directory_of`.

    Raises:
      ImportError: if `tensorflow_datasets` is not installed.
      ValueError: if it is damaged, or is no RLDS, or has text.
    """
    with extras.needed_by('the format rlds'):
        import tensorflow_datasets as tfds
    try:
        builder = tfds.builder_from_directory(str(directory_of(path)))
    except Exception as error:  # whatever its parsers raise
        raise UserValueError(f'got {path}, which TFDS cannot read ({" ".join(str(error).split())})') from error
    features: Any = dict(builder.info.features.items()).get('steps')
    needed = {'observation', 'action', 'is_first', 'is_last'}
    if not hasattr(features, 'feature') or not needed <= set(features.feature):
        raise UserValueError(f'got {path}, whose examples are no episodes of RLDS; need steps with observations')
    known = builder.info.metadata
    # `items` loads them, `get` does not.
    own = None if known is None else dict(known.items()).get(_OWN)
    if own is not None:
        described = json.loads(own)
        specs, stored = columns.from_json(described)
        episodes = _raw_episodes(tfds, builder)
        return specs, stored, described['metadata'], ([each[c.name] for c in stored] for each in episodes)
    specs = _specs(tfds, builder, features.feature)
    stored = columns.columns_of(columns.data_spec(specs))
    facts = {'name': builder.info.full_name}
    return specs, stored, facts, (_row_leaves(each, stored) for each in _raw_episodes(tfds, builder))


def _raw_episodes(tfds: Any, builder: Any) -> Iterator[dict[str, np.ndarray]]:
    """Yields episodes in their order in the files: arrays [T, ...] by column.
    Raises ValueError for a damaged file.
    """
    config = tfds.ReadConfig(interleave_cycle_length=1)
    for split, info in builder.info.splits.items():
        try:
            for path in map(pathlib.Path, info.filepaths):
                if '.tfrecord' in path.name:
                    collections.deque(record_files.lengths(path), maxlen=0)
            for episode in builder.as_dataset(split=split, shuffle_files=False, read_config=config):
                parts = [named_leaves(batch) for batch in episode['steps'].batch(_BATCH).as_numpy_iterator()]
                if parts:
                    yield {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        except tf.errors.DataLossError as error:
            raise UserValueError(
                f'got a damaged file of the split {split} in {builder.data_path} ({" ".join(str(error).split())}); '
                'need what its program wrote; restore it'
            ) from error


def _row_leaves(episode: Mapping[str, np.ndarray], stored: Sequence[Column]) -> list[np.ndarray]:
    """Returns the leaves of a Trajectory of an episode that another program has written."""
    num_rows, is_last = len(episode['is_first']), episode['is_last']
    if not is_last[-1]:
        raise UserValueError('got an episode whose last step is not is_last, so it has no end; need complete episodes')
    # Of the last step only the observation counts.
    reward = np.append(np.asarray(episode.get('reward', np.zeros(num_rows)), np.float32)[:-1], np.float32(0))
    terminated = bool(episode.get('is_terminal', np.zeros(1, bool))[-1])
    made = {'reward': reward, **columns.boundaries(num_rows, terminated)}
    return [np.asarray(made.get(c.name, episode.get(c.name)), c.dtype) for c in stored]


def _specs(tfds: Any, builder: Any, features: Mapping[str, Any]) -> EnvironmentSpecs:
    """Returns the specs of a dataset that another program has written;
    reads all of it, for the bounds of actions.
    """
    nests: dict[str, Any] = {}
    for name in ('observation', 'action'):
        spec = features[name].get_tensor_spec()
        for path, leaf in named_leaves(spec, name).items():
            if leaf.dtype == tf.string or not leaf.shape.is_fully_defined():
                raise UserValueError(f'got {path} of {leaf.dtype.name}{leaf.shape}; need numbers of fixed dimensions')
        nests[name] = spec
    actions = named_leaves(nests['action'], 'action')
    bounds: dict[str, tuple[Any, Any]] = {}
    for episode in _raw_episodes(tfds, builder):
        for path in actions:
            taken = episode[path][:-1] if len(episode[path]) > 1 else episode[path]
            least, greatest = bounds.get(path, (taken.min(), taken.max()))
            bounds[path] = min(least, taken.min()), max(greatest, taken.max())
    if not bounds:
        raise UserValueError('got no episodes; need at least one')
    bounded = []
    for path, leaf in actions.items():
        least, greatest = bounds[path]
        least = min(0, int(least)) if leaf.dtype.is_integer else least
        bounded.append(tensor_spec.BoundedTensorSpec(leaf.shape, leaf.dtype, least, greatest, path))
    return EnvironmentSpecs(nests['observation'], tf.nest.pack_sequence_as(nests['action'], bounded))


def _nested(by_name: Mapping[str, Any]) -> dict[str, Any]:
    """Returns nests of dicts: {'a.b': 1} -> {'a': {'b': 1}}."""
    nest: dict[str, Any] = {}
    for name, value in by_name.items():
        *parents, last = name.split('.')
        inner = nest
        for key in parents:
            inner = inner.setdefault(key, {})
        if last in inner:
            raise UserValueError(f'got two columns that are both called {name} in RLDS; need keys without dots')
        inner[last] = value
    return nest


def _name(path: pathlib.Path) -> str:
    """Returns a dataset's name as TFDS allows it: letters, digits and _."""
    name = ''.join(c if c.isalnum() else '_' for c in path.name.lstrip('.'))
    return name if name[:1].isalpha() else f'data_{name}'
