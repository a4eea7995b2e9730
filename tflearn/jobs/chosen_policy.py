"""The policy that a user names for a program: exported by a run, saved anywhere, a function,
or random actions.
"""

import os
import pathlib
import re
from typing import Any

import numpy as np
import tensorflow as tf
from tf_agents.policies import tf_policy

from tflearn.actors.actor import CompiledPolicy
from tflearn.actors.exploration import EpsilonPolicy
from tflearn.core.action_mask import ActionMask
from tflearn.core.errors import UserValueError
from tflearn.core.types import EnvironmentSpecs, EvaluationPolicy
from tflearn.files import messages
from tflearn.files.run_dir import RunDir, local_path, read_json
from tflearn.policies import external, loader, versions
from tflearn.policies.exporter import ACTION_MASK

RANDOM = 'random'
_GREEDY, _RAW = 'greedy_policy', 'raw_policy'


def find(run_dir: RunDir, policy: str | external.ActFunction, train_step: int | None) -> Any:
    """Returns a policy: a loaded one, or a function; None for random actions.

    Args:
      run_dir: the run's directory.
      policy: the name of a policy that the run has exported, or of a version of it
        ('greedy_policy/7000', 'greedy_policy/best'); or 'best' or 'latest', versions of the greedy
        policy; or the path, with a '/', of a SavedModel, of a directory of versions or of a run,
        see `external.load`; or a function of a batch of observations, or its name,
        'module:function'; or 'random' for actions drawn uniformly within their bounds.
      train_step: the train step of the policy's version; None takes the one that `tflearn promote`
        has made stable, else the one that a finished run ended with, else the newest.

    Raises:
      ValueError, FileNotFoundError, ImportError: if there is none, or a damaged one.
    """
    if not isinstance(policy, str):
        return external.check_function(policy)
    if policy == RANDOM:
        return None
    if policy in (versions.BEST, versions.LATEST):
        policy = f'{_GREEDY}/{policy}'
    if '/' in policy:
        of_run = run_dir.policies / policy
        return external.load(of_run if of_run.is_dir() else local_path(policy, 'policy'), train_step)
    return external.find_function(policy) if ':' in policy else load(run_dir, policy, train_step)


def load(run_dir: RunDir, name: str, train_step: int | None) -> loader.LoadedPolicy:
    """Returns a version of an exported policy; None as train step takes what serves,
    else the run's result, else the newest.
    """
    directory = run_dir.policy(name)
    step = versions.stable_version(directory) if train_step is None else train_step
    if step is None:  # the policy that the run ended with, which is the best one that was evaluated
        result = re.fullmatch(
            rf'policies/{re.escape(name)}/(\d+)', str((read_json(run_dir.done, messages.Done) or {}).get('policy'))
        )
        step = int(result[1]) if result else versions.newest_version(directory)
    if step is None:
        raise UserValueError(
            f'got no policy in {directory}; need one that the train job has exported, the path of a SavedModel, '
            f"'module:function', or policy='{RANDOM}'"
        )
    return loader.load(directory / str(step))


def sampled(policy: Any) -> loader.LoadedPolicy:
    """Returns the exported policy that draws its actions,
    of the same train step as a loaded greedy one.

    Raises:
      ValueError: if there is none.
    """
    path = getattr(policy, 'path', None)
    if not isinstance(policy, loader.LoadedPolicy) or path is None:
        raise UserValueError(
            f'got sampled actions of {path or policy or RANDOM}; need a policy that a run has exported; others act in '
            'one way only'
        )
    path = pathlib.Path(os.path.realpath(path))
    raw = path.parent.with_name(_RAW) / path.name
    if path.parent.name != _GREEDY:
        return policy
    if not versions.is_complete(raw):
        steps = ', '.join(map(str, versions.versions(raw.parent))) or 'none'
        raise UserValueError(
            f'got sampled actions of {path}, but no version {path.name} in {raw.parent} (there is {steps}); need one: '
            f'choose another train step; a run exports {_RAW!r} if it is in ExportOptions.policies'
        )
    return loader.load(raw)


def acting(
    policy: Any, specs: EnvironmentSpecs, epsilon: float, seed: int | None
) -> tuple[EvaluationPolicy, ActionMask | None]:
    """Returns what `find` has found as a policy for an environment, and its mask of legal actions.

    Args:
      epsilon: the share of random actions; those of a random policy all are.
      seed: the seed of the random actions.

    Raises:
      ValueError: if the policy is of another environment.
    """
    mask, epsilon = mask_of(policy, specs), 1.0 if policy is None else epsilon
    if isinstance(policy, loader.LoadedPolicy | external.SavedPolicy):
        policy.check(specs)
    elif not isinstance(policy, CompiledPolicy):
        policy = external.FunctionPolicy(policy or _zeros(specs), specs)
    return (EpsilonPolicy(policy, epsilon, specs.action, seed, mask) if epsilon or mask else policy), mask


def compiled(policy: tf_policy.TFPolicy, specs: EnvironmentSpecs, batch_size: int) -> CompiledPolicy:
    """Returns a policy of TF-Agents for so many environments.
    Raises ValueError if it is of another environment.
    """
    for own, other in ((policy.time_step_spec.observation, specs.observation), (policy.action_spec, specs.action)):
        if [(each.shape, each.dtype) for each in tf.nest.flatten(own)] != [
            (each.shape, each.dtype) for each in tf.nest.flatten(other)
        ]:
            raise UserValueError(f'got a policy of {own}; the environment has {other}; use that of its training')
    return CompiledPolicy(policy, batch_size)


def mask_of(policy: Any, specs: EnvironmentSpecs) -> ActionMask | None:
    """Returns the mask of legal actions of what `find` has found; None if it has none.

    Raises:
      ValueError: if the environment's observation does not have it.
    """
    path = policy.metadata.get(ACTION_MASK) if isinstance(policy, loader.LoadedPolicy) else None
    return None if path is None else ActionMask(specs, path)


def _zeros(specs: EnvironmentSpecs) -> external.ActFunction:
    """Returns a function whose actions are zeros, of which `EpsilonPolicy` with 1 takes none."""

    def act(observation: Any) -> Any:
        batch_size = len(tf.nest.flatten(observation)[0])
        zeros = lambda spec: np.zeros((batch_size, *spec.shape), spec.dtype.as_numpy_dtype)  # noqa: E731
        return tf.nest.map_structure(zeros, specs.action)

    return act
