"""What the functions of an exported policy take and return: plain nests in Python,
named tensors in TensorFlow Serving.

Plain nests are made of dicts, lists and tuples, and their leaves have flat names. A policy takes
and returns only these, so a program that loads it needs no class of tflearn or TF-Agents.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf
from tf_agents.trajectories import time_step as ts

from tflearn.core.errors import UserValueError


def to_plain(nest: Any) -> Any:
    """Turns named tuples and mappings into dicts; lists, tuples and leaves stay."""
    if hasattr(nest, '_fields'):
        return {name: to_plain(getattr(nest, name)) for name in nest._fields}
    if isinstance(nest, Mapping):
        return {name: to_plain(value) for name, value in nest.items()}
    if isinstance(nest, list | tuple):
        plain = [to_plain(value) for value in nest]
        return plain if isinstance(nest, list) else tuple(plain)
    return nest


def from_plain(plain: Any, like: Any) -> Any:
    """Returns the leaves of the plain nest `plain` in the structure of `like`:
    the inverse of `to_plain`.
    """
    if hasattr(like, '_fields'):
        return like._make(from_plain(plain[name], getattr(like, name)) for name in like._fields)
    if isinstance(like, Mapping):
        return {name: from_plain(plain[name], value) for name, value in like.items()}
    if isinstance(like, list | tuple):
        values = [from_plain(value, like_value) for value, like_value in zip(plain, like, strict=True)]
        return values if isinstance(like, list) else tuple(values)
    return plain


def batched(spec: Any, name: str) -> Any:
    """Returns `spec` as a plain nest of `tf.TensorSpec` with a leading unknown batch size,
    each named by its path.
    """
    plain = to_plain(spec)
    specs = [tf.TensorSpec([None, *leaf.shape], leaf.dtype, path) for path, leaf in flat(plain, name)]
    return tf.nest.pack_sequence_as(plain, specs)


def flat(plain: Any, name: str = '') -> Iterator[tuple[str, Any]]:
    """Yields (name, leaf) in the order of `tf.nest.flatten`.

    Names are the keys of the path joined with '_': 'observation' for a single leaf,
    'observation_position' and 'observation_velocity' for those of a dict, 'policy_state_0' for the
    first of a list. All are valid keywords of ASCII, as TensorFlow's signatures need them.
    """
    if isinstance(plain, Mapping):
        children = [(str(key), plain[key]) for key in sorted(plain)]
    elif isinstance(plain, list | tuple):
        children = [(str(index), value) for index, value in enumerate(plain)]
    else:
        yield name, plain
        return
    for key, value in children:
        key = re.sub(r'\W', '_', key, flags=re.ASCII)
        yield from flat(value, f'{name}_{key}' if name else key)


def flat_dict(plain: Any) -> dict[str, Any]:
    """Returns the leaves by their names. Raises ValueError if two leaves have the same name."""
    leaves = list(flat(plain))
    names = [name for name, _ in leaves]
    if twice := {name for name in names if names.count(name) > 1}:
        raise UserValueError(
            f'got several tensors named {", ".join(sorted(twice))}, after joining the keys of their nests with "_"; '
            'need names of their own; rename a key of the spec'
        )
    return dict(leaves)


def describe(spec: Any) -> Any:
    """Returns a spec as JSON: the plain nest, with shape,
    dtype and (if bounded) minimum and maximum at each leaf.
    """
    return tf.nest.map_structure(_describe_leaf, to_plain(spec))


def names_in_order(nest: Any, name: str) -> list[str]:
    """Returns the names of the leaves of a nest in the order in which `tf.nest.flatten` returns the leaves.

    It differs from the order in the plain nest for a named tuple whose fields are not in
    alphabetical order.
    """
    numbered = tf.nest.pack_sequence_as(nest, range(len(tf.nest.flatten(nest))))
    leaves = sorted((index, path) for path, index in flat(to_plain(numbered), name))
    return [path for _, path in leaves]


def _describe_leaf(spec: Any) -> dict[str, Any]:
    described: dict[str, Any] = {'shape': list(spec.shape), 'dtype': spec.dtype.name}
    for bound in ('minimum', 'maximum'):
        if hasattr(spec, bound):
            described[bound] = _bound(np.asarray(getattr(spec, bound)))
    return described


def _bound(bound: np.ndarray) -> Any:
    """Returns one number where all are the same; None for infinity, which JSON does not have."""
    if bound.size and np.all(bound == bound.flat[0]):
        bound = np.asarray(bound.flat[0])
    numbers = bound.astype(object)
    numbers[~np.isfinite(bound)] = None
    return numbers.tolist()


def completed(given: Mapping[str, np.ndarray], specs: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Returns all inputs of a signature, in its order:
    those given [B, ...], else those of a step in an episode.
    """
    rows, fill = len(next(iter(given.values()))), {'step_type': ts.StepType.MID, 'discount': 1}
    missing = {name: spec for name, spec in specs.items() if name not in given}
    made = {
        name: np.full((rows, *spec.shape[1:]), fill.get(name, 0), spec.dtype.as_numpy_dtype)
        for name, spec in missing.items()
    }
    return {name: given[name] if name in given else made[name] for name in specs}


DEFAULT = 'serving_default'
INITIAL_STATE = 'get_initial_state'
# The parameter of a distribution of the user's own (`NetworkOptions.make_head`), which only the policy can evaluate.
NUMBERS = 'numbers'
# Why an input is refused.
NONFINITE = 'with NaN or infinity, for which an action may look right and is not; need finite numbers'
