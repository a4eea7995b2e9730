"""Warm start: loads some values of another run's checkpoint, by the prefixes of their names,
or an exported policy's.

(`Checkpoints.restore_newest` resumes the same run.)
"""

import os
import pathlib
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf
from absl import logging

from tflearn.core.errors import UserOSError, UserValueError, first_few
from tflearn.files import digests
from tflearn.files.numbered import newest_checkpoint
from tflearn.learner.snapshots import CheckpointLayout, describe, name_of

_COUNTED = re.compile(r'_\d+(?=[/:])')  # Keras numbers the layers of a process


def load(
    source: str | os.PathLike[str],
    objects: Mapping[str, Any],
    prefixes: Collection[str] | Mapping[str, str],
    *,
    optimizers: bool = False,
) -> list[str]:
    """Loads the values below some prefixes from a checkpoint; changes nothing else.

    Args:
      source: path prefix of a checkpoint, or a directory of checkpoints, whose newest is loaded.
      objects: trackable objects by their names in the checkpoint, with all their variables. A
        value's name is its shortest path, so these should be all objects that the checkpoint was
        made of.
      prefixes: prefixes of the names to load ('agent/_q_network'); or a mapping from prefixes here
        to those in the checkpoint ({'agent/_target_q_network': 'agent/_q_network'}). If they
        overlap, the longer one counts.
      optimizers: load the values of optimizers, and of nothing else; otherwise those of everything
        else. Keras makes the slots with the first train step or its trace.

    Returns:
      The names of the loaded values.

    Raises:
      ValueError: if there is no readable checkpoint, or a value below the prefixes exists only on
        one side, or differs in dtype or shape; names what differs. Then nothing is loaded.
    """
    path = newest_checkpoint(source) if os.path.isdir(source) else os.fspath(source)
    pairs = prefixes if isinstance(prefixes, Mapping) else dict(zip(prefixes, prefixes, strict=True))
    layout = CheckpointLayout(tf.train.Checkpoint(**objects))
    try:
        reader = tf.train.load_checkpoint(path)
        origins = _origins(path, layout, describe(reader), pairs, optimizers)
        saved_keys = {name_of(key): key for key in reader.get_variable_to_shape_map()}
        # All are read before the first is assigned, so that a damaged checkpoint changes nothing.
        values = {name: reader.get_tensor(saved_keys[origin]) for name, origin in origins.items()}
    except (tf.errors.OpError, IndexError) as error:
        raise UserValueError(f'got checkpoint {path}, which cannot be read ({error}); need a complete one') from error
    for key, target in layout.objects.items():
        if name_of(key) not in values:
            continue
        if isinstance(target, tf.Variable):
            target.assign(values[name_of(key)])
        else:
            target.deserialize(values[name_of(key)])
    logging.info('loaded %d values from %s: %s', len(values), path, ', '.join(sorted(pairs)))
    return sorted(values)


def _origins(
    path: str,
    layout: CheckpointLayout,
    saved: Mapping[str, str],
    prefixes: Mapping[str, str],
    optimizers: bool,
) -> dict[str, str]:
    """Returns the name in the checkpoint of every value to load, by its name here."""

    origins: dict[str, str] = {}
    problems: list[str] = []
    for here, there in sorted(prefixes.items(), key=lambda pair: len(pair[0])):
        wanted = dict(_renamed(layout.described, here, there))
        stored = {name: origin for origin, name in _renamed(saved, there, here)}
        found = {
            name: origin for name, origin in {**stored, **wanted}.items() if layout.is_optimizers(name) == optimizers
        }
        if not found:
            missing = 'no optimizer' if optimizers else 'nothing'
            problems.append(
                f'{missing} is called {here} here' + (' except for optimizers' if wanted and not optimizers else '')
            )
        origins.update(found)
    problems += _differences(layout, saved, origins)
    if problems:
        raise UserValueError(
            f'got checkpoint {path} to load {", ".join(sorted(prefixes))} from, but {first_few(problems)}; '
            'need the same values on both sides; choose other prefixes, or undo the change'
        )
    return origins


def _differences(layout: CheckpointLayout, saved: Mapping[str, str], origins: Mapping[str, str]) -> Iterator[str]:
    """Yields what is wrong with the values to load."""
    for name, origin in sorted(origins.items()):
        if name in layout.unmapped:
            yield f'{name} is neither a variable nor a Python state'
        elif saved.get(origin) != layout.described.get(name):
            kind, kind_here = saved.get(origin, 'absent'), layout.described.get(name, 'absent')
            yield f'{origin} is {kind} in the checkpoint, {name} is {kind_here} here'


def _renamed(names: Collection[str], prefix: str, other: str) -> Iterator[tuple[str, str]]:
    """Yields each name that is `prefix` or below it, and its name below `other`."""
    for name in names:
        if name == prefix or name.startswith(prefix + '/'):
            yield name, other + name[len(prefix) :]


def load_policy(path: str | os.PathLike[str], variables: Sequence[tf.Variable]) -> list[str]:
    """Loads the variables of a SavedModel policy, of this library's or of TF-Agents' `PolicySaver`.

    Variables are matched by name, without the numbers that Keras appends within a process; several
    of one name in the order of these numbers, with equal shapes and dtypes.

    Args:
      path: the SavedModel's directory.
      variables: the variables to load, of an agent's policies, each once.

    Returns:
      The names of those that the SavedModel does not have, which keep their values: a policy has no
      critic.

    Raises:
      ValueError: if it cannot be read, or has a variable without a counterpart here; names those.
        Then nothing is loaded.
    """
    try:
        with digests.checked(pathlib.Path(path)) as copy_of_it:
            stored = list(tf.saved_model.load(str(copy_of_it)).model_variables)
    except UserOSError:
        raise
    except (OSError, AttributeError, tf.errors.OpError) as error:
        reason = str(error).partition('\n')[0]
        raise UserValueError(
            f'got {path} as a policy, which cannot be read as one ({reason}); need the directory of a SavedModel policy'
        ) from error
    return copy(stored, variables, f'the policy {path}')


def copy(stored: Sequence[tf.Variable], variables: Sequence[tf.Variable], source: str) -> list[str]:
    """Assigns the values of variables to those of another object with equal names;
    see `load_policy`.

    Args:
      stored: the variables to read, each once.
      variables: the variables to assign to, each once.
      source: what `stored` is of, for messages: 'the policy runs/before'.

    Returns:
      The names of those that `stored` does not have, which keep their values.

    Raises:
      ValueError: if one of `stored` has no counterpart. Then nothing is assigned.
    """
    there, here = _by_name(stored), _by_name(variables)
    pairs, problems = [], []
    for name, values in there.items():
        targets = here.get(name, [])
        if len(targets) != len(values):
            problems.append(f'{name} is there {len(values)} times, here {len(targets)} times')
        for value, target in zip(values, targets, strict=False):
            if (value.dtype, value.shape) != (target.dtype, target.shape):
                problems.append(f'{name} is {_kind(value)} there, {_kind(target)} here')
            pairs.append((value, target))
    if problems or not pairs:
        raise UserValueError(
            f'got {source} for another agent: {first_few(problems) or "it has no variables"}; '
            'need equal networks; undo the change, or load a checkpoint by prefixes'
        )
    for value, target in pairs:
        target.assign(value.numpy())
    missing = sorted(name for name in here if name not in there)
    logging.info('loaded %d variables of %s; it has no %s', len(pairs), source, ', '.join(missing) or 'others')
    return missing


def _kind(variable: tf.Variable) -> str:
    return f'{variable.dtype.name}{variable.shape.as_list()}'


def _by_name(variables: Sequence[tf.Variable]) -> dict[str, list[tf.Variable]]:
    """Returns variables by their names without numbers, in the order of the numbers."""
    numbers = lambda variable: [int(number) for number in re.findall(r'_(\d+)(?=[/:])', variable.name)]  # noqa: E731
    groups: dict[str, list[tf.Variable]] = {}
    for variable in sorted(variables, key=lambda each: (len(numbers(each)), numbers(each))):
        groups.setdefault(_COUNTED.sub('', variable.name), []).append(variable)
    return groups
