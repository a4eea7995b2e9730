"""What is published: the policy's variables, the train step, the policy's version, and whether training is over.

Variables are identified by their index; names are only for messages (without the numbers that Keras appends within a
process).
"""

import itertools
import re
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf
from tf_agents.utils import common

from tflearn.coordinator import control, weights_messages
from tflearn.core.errors import UserValueError

PRETRAINING = -1  # as the policy version: the learner trains on data that are there already; nobody should act yet
_COUNTED = re.compile(r'_\d+(?=[/:])')

# What a publication says besides its variables. `published_at`: microseconds since 1970; distinguishes publications,
# even if a restored learner repeats version numbers.
COUNTERS = ('train_step', 'policy_version', 'env_steps', 'finished', 'published_at')


def published(policy: Any) -> list[tf.Variable]:
    """Returns the variables of a TF-Agents policy that actors need from the learner.

    These are all but the state of exploration noise, which is each actor's own: DDPG's policy makes it at its first
    action, which the learner and the server do not take.
    """
    noises = [module for module in policy.submodules if isinstance(module, common.OUProcess)]
    own = {variable.ref() for noise in noises for variable in noise.variables}
    return [variable for variable in policy.variables() if variable.ref() not in own]


def specs(variables: Sequence[tf.Variable]) -> list[tf.TensorSpec]:
    """Returns the specs of variables.

    Raises:
      ValueError: if one has an unknown dimension.
    """
    for variable in variables:
        if not variable.shape.is_fully_defined():
            raise UserValueError(f'got variable {variable.name} of shape {variable.shape}; need fixed dimensions')
    return [tf.TensorSpec(each.shape, each.dtype, _COUNTED.sub('', each.name)) for each in variables]


def text(spec: tf.TensorSpec) -> str:
    """Returns what of a variable must be equal."""
    return f'{spec.dtype.name}{list(spec.shape)}'


def check(what: str, theirs: Sequence[tf.TensorSpec], ours: Sequence[tf.TensorSpec]) -> None:
    """Checks that published variables are those of this job.

    Args:
      what: who published them, for the error.

    Raises:
      ValueError: if variables differ; it names the first ones.
    """
    pairs = list(itertools.zip_longest(theirs, ours))
    differing = [
        f'{(there or here).name} is {text(there) if there else "absent"} there, {text(here) if here else "absent"} here'
        for there, here in pairs
        if there is None or here is None or text(there) != text(here)
    ]
    if differing:
        raise UserValueError(
            f'got {what} for another network: {"; ".join(differing[:3])}; '
            'need equal networks; start all jobs with the same gin file'
        )


def contract(
    variables: Sequence[tf.Variable],
    signature: Mapping[str, str],
    settings: Mapping[str, str],
    num_shards: int | None = None,
) -> dict[str, Any]:
    """Returns the contract of a job, see `contract`.

    Args:
      variables: those that the learner publishes.
      signature: the text of each column of an item of the replay.
      settings: those that all jobs must agree on and that no signature shows.
      num_shards: the number of replay servers; None if the job does not know it.

    Raises:
      ValueError: if a variable has an unknown dimension.
    """
    columns = specs(variables)
    made: dict[str, Any] = {
        'formats': {'weights': weights_messages.PROTOCOL, 'messages': control.PROTOCOL},
        'signature': dict(signature),
        'variables': {f'{i:04d}': text(spec) for i, spec in enumerate(columns)},
        'settings': dict(settings),
        '_names': {f'{i:04d}': spec.name for i, spec in enumerate(columns)},  # for messages only
    }
    return made if num_shards is None else {**made, 'shards': {'number': num_shards}}
