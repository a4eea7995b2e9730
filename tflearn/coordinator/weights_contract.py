"""What is published: the policy's variables, the train step, the policy's version, and whether training is over.

Each variable is its own column, so the table's signature is the contract: two jobs with different networks find out
which variable differs before any weights are sent. Columns are identified by their index; names are only for messages
(without the numbers that Keras appends within a process).
"""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tf_agents.utils import common

from tflearn.core.errors import UserTimeoutError, UserValueError
from tflearn.replay import connection
from tflearn.replay.tables import TableSpec

VARIABLES = 'variables'
_CHECK_SECS = 60
PRETRAINING = -1  # as the policy version: the learner trains on data that are there already; nobody should act yet
_COUNTED = re.compile(r'_\d+(?=[/:])')

COUNTERS = {
    'train_step': tf.TensorSpec((), tf.int64, 'train_step'),
    'policy_version': tf.TensorSpec((), tf.int64, 'policy_version'),
    'env_steps': tf.TensorSpec((), tf.int64, 'env_steps'),
    'finished': tf.TensorSpec((), tf.bool, 'finished'),
    # Microseconds since 1970: distinguishes publications even if a restored learner repeats version numbers.
    'published_at': tf.TensorSpec((), tf.int64, 'published_at'),
}


def published(policy: Any) -> list[tf.Variable]:
    """Returns the variables of a TF-Agents policy that actors need from the learner.

    These are all but the state of exploration noise, which is each actor's own: DDPG's policy makes it at its first
    action, which the learner and the server do not take.
    """
    noises = [module for module in policy.submodules if isinstance(module, common.OUProcess)]
    own = {variable.ref() for noise in noises for variable in noise.variables}
    return [variable for variable in policy.variables() if variable.ref() not in own]


def signature(variables: Sequence[tf.Variable]) -> dict[str, tf.TensorSpec]:
    """Returns the signature of a publication of `variables`.

    Raises:
      ValueError: if a variable has an unknown dimension.
    """
    columns = {}
    for i, variable in enumerate(variables):
        if not variable.shape.is_fully_defined():
            raise UserValueError(f'got variable {variable.name} of shape {variable.shape}; need fixed dimensions')
        columns[column(i)] = tf.TensorSpec(variable.shape, variable.dtype, _COUNTED.sub('', variable.name))
    return {**COUNTERS, **columns}


def table(variables: Sequence[tf.Variable]) -> TableSpec:
    """Returns the table that holds the newest publication."""
    return TableSpec(VARIABLES, 1, signature(variables), 'fifo')


def column(index: int) -> str:
    """Returns the name of the column of the variable at `index`."""
    return f'{index:04d}'


def check_server(address: str, ours: dict[str, tf.TensorSpec]) -> None:
    """Checks that the server's table holds the variables that this job publishes or pulls.

    Raises:
      ValueError: if variables differ; it names the first ones.
    """
    tables = connection.counts(address, _CHECK_SECS)
    if tables is None:
        raise UserTimeoutError(f'timed out after {_CHECK_SECS} s waiting for the replay server at {address}')
    if VARIABLES not in tables:
        raise UserValueError(f'got a replay server at {address} with tables {sorted(tables)}; need {VARIABLES!r}')
    check(f'a replay server at {address}', tables[VARIABLES].signature, ours)


def check(what: str, theirs: Mapping[str, tf.TensorSpec], ours: Mapping[str, tf.TensorSpec]) -> None:
    """Checks that a server's columns are those of this job.

    Args:
      what: the server, for the error.

    Raises:
      ValueError: if variables differ; it names the first ones.
    """
    differing = [
        f'{_name(theirs.get(key) or ours[key])} is {_text(theirs.get(key))} there, {_text(ours.get(key))} here'
        for key in sorted(theirs.keys() | ours.keys())
        if _text(theirs.get(key)) != _text(ours.get(key))
    ]
    if differing:
        raise UserValueError(
            f'got {what} for another network: {"; ".join(differing[:3])}; '
            'need equal networks; start all jobs with the same gin file'
        )


def _name(spec: tf.TensorSpec) -> str:
    return spec.name or 'a variable'


def _text(spec: tf.TensorSpec | None) -> str:
    return f'{spec.dtype.name}{list(spec.shape)}' if spec is not None else 'absent'


def counts(address: str) -> tuple[int, int] | None:
    """Returns how many publications the server holds (0 or 1) and ever had; None if it does not answer."""
    tables = connection.counts(address)
    if tables is None or VARIABLES not in tables:
        return None
    return tables[VARIABLES].size, tables[VARIABLES].inserts


def num_bytes(columns: Mapping[str, tf.TensorSpec]) -> int:
    """Returns the size of a publication."""
    return sum(spec.dtype.size * math.prod(spec.shape) for spec in columns.values())


def fetch(address: str, columns: Mapping[str, tf.TensorSpec]) -> dict[str, np.ndarray] | None:
    """Returns the newest publication of a server that holds one; None if the server does not answer."""
    found = connection.sample(address, VARIABLES, 1, num_bytes(columns))
    return dict(zip(sorted(columns), found[0], strict=True)) if found else None
