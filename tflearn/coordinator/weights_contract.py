"""What is published: the policy's variables, the train step, the policy's version, and whether training is over.

Variables are identified by their index; names are only for messages (without the numbers that Keras appends within a
process).
"""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf
from tf_agents.utils import common

from tflearn.coordinator import control, weights_messages
from tflearn.core.errors import UserValueError

PRETRAINING = -1  # as the policy version: the learner trains on data that are there already; nobody should act yet
_COUNTED = re.compile(r'_\d+(?=[/:])')


@dataclasses.dataclass(frozen=True)
class Publication:
    """The counters of a publication; before the first one all are zero.

    Attributes:
      policy_version: counts the run's publications.
      published_at: its time [microseconds since 1970], which distinguishes it: a restored learner may repeat versions.
    """

    train_step: int = 0
    policy_version: int = 0
    env_steps: int = 0
    finished: bool = False
    published_at: int = 0


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


def of_variables(columns: Sequence[tf.TensorSpec]) -> dict[str, dict[str, str]]:
    """Returns the part of a contract that is about variables, and their names, which are for messages only."""
    return {
        'variables': {f'{i:04d}': f'{spec.dtype.name}{list(spec.shape)}' for i, spec in enumerate(columns)},
        '_names': {f'{i:04d}': spec.name for i, spec in enumerate(columns)},
    }


def contract(
    variables: Sequence[tf.Variable],
    signature: Mapping[str, str],
    settings: Mapping[str, str],
    num_shards: int | None = None,
) -> dict[str, Any]:
    """Returns the contract of a job: what must be equal in all jobs of a run, as JSON.

    Signatures compare shapes and types; with another discount or reward all would fit, so settings are in it too. The
    first replay server makes the run's, from its own environment and agent, or else the learner.

    Args:
      variables: those that the learner publishes.
      signature: the text of each column of an item of the replay.
      settings: those that all jobs must agree on and that no signature shows.
      num_shards: the number of replay servers; None if the job does not know it.

    Raises:
      ValueError: if a variable has an unknown dimension.
    """
    made: dict[str, Any] = {
        **of_variables(specs(variables)),
        'formats': {'weights': weights_messages.PROTOCOL, 'messages': control.PROTOCOL},
        'signature': dict(signature),
        'settings': dict(settings),
    }
    return made if num_shards is None else {**made, 'shards': {'number': num_shards}}
