"""Episodes as a Minari dataset (Farama), written and read by the `minari` package,
in its HDF5 layout.

A step of Minari has observation, action, reward, termination and truncation. A column that does not
follow from these, such as the log-probability of an action, is in the infos under its own name,
with all rows of the episode.
"""

import pathlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tf_agents.trajectories import time_step as ts
from tf_agents.trajectories import trajectory

from tflearn.core import extras
from tflearn.core.errors import UserValueError
from tflearn.core.types import EnvironmentSpecs, named_leaves
from tflearn.data import columns
from tflearn.data.columns import Column

_OWN = 'tflearn'  # what is stored in the metadata besides Minari's own


def directory_of(path: pathlib.Path) -> pathlib.Path | None:
    """Returns the directory of a Minari dataset's files: `path`, or its folder `data`;
    None if it is none.
    """
    return next((each for each in (path, path / 'data') if (each / 'main_data.hdf5').exists()), None)


def check(stored: Sequence[Column]) -> None:
    """Raises ValueError for a column that Minari cannot hold."""
    for column in stored:
        if column.dtype == 'uint8' and (
            len(column.shape) in (1, 2) or (len(column.shape) == 3 and column.shape[-1] in (1, 3))
        ):
            raise UserValueError(
                f'got the column {column}, which Minari stores as JPEG, so that its numbers change; need other '
                'columns; use --format=rlds'
            )


def write(
    path: pathlib.Path,
    specs: EnvironmentSpecs,
    stored: Sequence[Column],
    episodes: Iterable[Mapping[str, np.ndarray]],
    spaces: Any,
    metadata: Mapping[str, Any],
) -> None:
    """Writes episodes to the directory `path`, which is new and has the dataset's name.

    Args:
      specs: the environment's specs.
      stored: the columns of a step.
      episodes: arrays [T, ...] by column, of one step or more, with the boundary row.
      spaces: the module `environments.spaces`, which alone knows gymnasium's spaces.
      metadata: what is known of the data. JSON.

    Raises:
      ImportError: if `minari` is not installed.
      ValueError: if Minari cannot hold a column, or an episode has no boundary row.
    """
    check(stored)
    with extras.needed_by('the format minari'):
        import minari
        from minari.data_collector import EpisodeBuffer
        from minari.dataset.minari_storage import MinariStorage
    observation, action = spaces.to_space(specs.observation), spaces.to_space(specs.action)
    path.mkdir(parents=True)
    storage = MinariStorage.new(path / 'data', observation_space=observation, action_space=action)
    own = {'metadata': dict(metadata), **columns.to_json(specs, stored)}
    storage.update_metadata({'dataset_id': path.name.lstrip('.'), 'minari_version': minari.__version__, _OWN: own})
    storage.update_episodes(EpisodeBuffer(**_parts(episode, specs)) for episode in episodes)


def read(
    path: pathlib.Path, spaces: Any
) -> tuple[EnvironmentSpecs, tuple[Column, ...], dict[str, Any], Iterator[list[np.ndarray]]]:
    """Returns the environment's specs, the columns, the metadata,
    and an iterator over the leaves of the episodes.

    Args:
      path: see `directory_of`.
      spaces: as for `write`.

    Raises:
      ImportError: if `minari` is not installed.
      ValueError: if it is damaged, or has a space that is not supported.
    """
    with extras.needed_by('the format minari'):
        import minari
    try:
        found = minari.MinariDataset(directory_of(path))
        metadata = dict(found.storage.metadata)
    except (OSError, ValueError, KeyError) as error:
        raise UserValueError(f'got {path}, which Minari cannot read ({" ".join(str(error).split())})') from error
    if own := metadata.get(_OWN):
        specs, stored = columns.from_json(own)
        identity: Callable[[Any], Any] = lambda value: value  # noqa: E731
        return specs, stored, own['metadata'], _episodes(found, specs, stored, (identity, identity))
    specs = EnvironmentSpecs(
        spaces.to_spec(found.observation_space, 'observation'), spaces.to_spec(found.action_space, 'action')
    )
    stored = columns.columns_of(columns.data_spec(specs))
    read_spaces = spaces.reader(found.observation_space), spaces.reader(found.action_space)
    known = {name: value for name, value in metadata.items() if isinstance(value, str | int | float)}
    return specs, stored, known, _episodes(found, specs, stored, read_spaces)


def _parts(episode: Mapping[str, np.ndarray], specs: EnvironmentSpecs) -> dict[str, Any]:
    """Returns the arguments of Minari's EpisodeBuffer."""
    num_steps = len(episode['step_type']) - 1
    if num_steps < 1 or episode['next_step_type'][-1] != ts.StepType.FIRST:
        raise UserValueError(
            f'got an episode of {num_steps + 1} rows without its last observation; Minari needs one after the last step'
        )
    nest = {
        name: tf.nest.pack_sequence_as(spec, [episode[key] for key in episode if key.partition('.')[0] == name])
        for name, spec in (('observation', specs.observation), ('action', specs.action))
    }
    rewards = [episode[key][:-1] for key in episode if key.partition('.')[0] == 'reward']
    reward = rewards[0] if len(rewards) == 1 and rewards[0].ndim == 1 else _sum(rewards)
    terminated = bool(episode['discount'][num_steps - 1] == 0)
    last = np.arange(num_steps) == num_steps - 1
    parts = {
        'observations': _with_tuples(nest['observation']),
        'actions': tf.nest.map_structure(lambda leaf: leaf[:-1], _with_tuples(nest['action'])),
        'rewards': reward,
        'terminations': last & terminated,
        'truncations': last & (not terminated),
    }
    plain = _columns_of_parts(nest['observation'], nest['action'], reward, terminated)
    infos = {
        name: array
        for name, array in episode.items()
        if name not in plain or plain[name].dtype != array.dtype or not np.array_equal(plain[name], array)
    }
    return {**parts, 'infos': infos}


def _columns_of_parts(observation: Any, action: Any, reward: np.ndarray, terminated: bool) -> dict[str, np.ndarray]:
    """Returns the columns that follow from Minari's steps;
    zeros for the action of the boundary row.
    """
    num_rows = len(reward) + 1
    actions = tf.nest.map_structure(
        lambda leaf: np.concatenate([leaf[: num_rows - 1], np.zeros_like(leaf[:1])]), action
    )
    parts = {'observation': observation, 'action': actions, 'reward': np.append(reward, np.zeros(1, reward.dtype))}
    return named_leaves(trajectory.Trajectory(policy_info=(), **parts, **columns.boundaries(num_rows, terminated)))


def _episodes(
    dataset: Any, specs: EnvironmentSpecs, stored: Sequence[Column], readers: tuple[Callable[[Any], Any], ...]
) -> Iterator[list[np.ndarray]]:
    for episode in _readable(dataset):
        like = [tf.nest.flatten(spec) for spec in (specs.observation, specs.action)]
        observation, action = (
            [
                np.asarray(leaf, spec.dtype.as_numpy_dtype)
                for leaf, spec in zip(tf.nest.flatten(read(value)), leaves, strict=True)
            ]
            for read, value, leaves in zip(readers, (episode.observations, episode.actions), like, strict=True)
        )
        plain = _columns_of_parts(
            tf.nest.pack_sequence_as(specs.observation, observation),
            tf.nest.pack_sequence_as(specs.action, action),
            np.asarray(episode.rewards, np.float32),
            bool(np.asarray(episode.terminations)[-1]),
        )
        infos = episode.infos or {}
        yield [np.asarray(infos.get(column.name, plain.get(column.name)), column.dtype) for column in stored]


def _readable(dataset: Any) -> Iterator[Any]:
    """Yields Minari's episodes that have steps; raises ValueError where its file is damaged."""
    try:
        yield from (episode for episode in dataset.iterate_episodes() if len(episode))
    except (OSError, KeyError) as error:
        path = dataset.storage.data_path
        raise UserValueError(f'got {path}, which Minari cannot read ({" ".join(str(error).split())})') from error


def _with_tuples(nest: Any) -> Any:
    """Returns the nest with tuples instead of lists, as gymnasium's spaces have it."""
    if isinstance(nest, Mapping):
        return {key: _with_tuples(value) for key, value in nest.items()}
    return tuple(map(_with_tuples, nest)) if isinstance(nest, list | tuple) else nest


def _sum(rewards: Sequence[np.ndarray]) -> np.ndarray:
    """Returns the sum of several rewards of each step; the single ones are in the infos."""
    total: np.ndarray = np.sum([reward.reshape(len(reward), -1).sum(1) for reward in rewards], axis=0)
    return total.astype(np.float32)
