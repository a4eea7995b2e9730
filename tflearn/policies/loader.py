"""Loads and runs exported policies."""

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tf_agents.specs import tensor_spec
from tf_agents.trajectories import time_step as ts

from tflearn.core.errors import UserFileNotFoundError, UserOSError, UserValueError
from tflearn.core.types import EnvironmentSpecs, differ_in_start
from tflearn.files import digests, messages
from tflearn.files.run_dir import read_json
from tflearn.policies import loaded_model, signatures, versions
from tflearn.policies.loaded_model import LoadedModel


class VersionGone(LookupError):
    """A server does not serve the requested version any more."""


class LoadedPolicy:
    """An exported policy that acts on numpy time steps.

    Attributes:
      info: the numbers of the newest actions' info by name, numpy [B].
      takes_reward: whether the memory takes the reward of the step before, which time steps have.
    """

    def __init__(self, path: pathlib.Path, model: LoadedModel, metadata: dict[str, Any]):
        self.path = path
        self.metadata = metadata
        self.info: dict[str, np.ndarray] = {}
        inputs = model.signature_defs[signatures.DEFAULT].inputs
        self.takes_reward = any(name.partition('_')[0] == 'reward' for name in inputs)
        self._action = model.function('action_of_fields')
        self._initial_state = model.function('get_initial_state')
        self._distribution = model.function('distribution') if 'distribution' in model.functions else None
        self._log_probability = model.function('log_probability') if 'log_probability' in model.functions else None
        self._input_dtypes = [argument.dtype for argument in self._action.inputs]
        arguments, _ = self._action.definition.structured_input_signature
        self.time_step_spec = ts.TimeStep(*arguments[:4])  # plain nests [B, ...]

    @property
    def train_step(self) -> int:
        """The train step of the weights."""
        return int(self.metadata['train_step'])

    @property
    def is_stochastic(self) -> bool:
        """Whether the policy draws its actions."""
        return loaded_model.is_stochastic(self._action.definition)

    def check(self, specs: EnvironmentSpecs) -> None:
        """Checks that the policy fits an environment.
        An unknown dimension of the policy's specs fits any size.

        Raises:
          ValueError: if observations or actions differ in structure, shape or dtype.
        """
        for name, own, other in (
            ('observation', self.time_step_spec.observation, specs.observation),
            ('action', self._action.definition.structured_outputs['action'], specs.action),
        ):
            got, need = (dict(signatures.flat(nest, name)) for nest in (own, signatures.batched(other, name)))
            if got.keys() != need.keys() or not all(_fits(got[leaf], need[leaf]) for leaf in need):
                raise UserValueError(
                    f'got the policy {self.path} of {_texts(got)}; the environment has {_texts(need)}; use the '
                    'configuration that it was trained with'
                )
            self._check_start(name, self.metadata.get('specs', {}).get(name), signatures.to_plain(other))

    def _check_start(self, name: str, described: Any, spec: Any) -> None:
        """Checks that choices are counted from the same number."""
        if described is None:
            return
        if isinstance(spec, Mapping | list | tuple):
            for key in spec if isinstance(spec, Mapping) else range(len(spec)):
                self._check_start(f'{name}_{key}', described[str(key) if isinstance(spec, Mapping) else key], spec[key])
            return
        bounds = [described.get(bound) for bound in ('minimum', 'maximum')]
        if not spec.dtype.is_integer or None in bounds:
            return
        own = tensor_spec.BoundedTensorSpec(spec.shape, spec.dtype, *bounds)
        if differ_in_start(own, spec):
            raise UserValueError(
                f'got the policy {self.path}, which counts {name} from {bounds[0]}; the environment counts from '
                f"{np.asarray(spec.minimum).tolist()}, its space's start; train and export the policy again"
            )

    def initial_state(self, batch_size: int) -> Any:
        """Returns the policy state with which `batch_size` episodes start;
        () for a policy without one.
        """
        return self._initial_state([tf.constant(batch_size, tf.int32)])

    def action(self, time_step: Any, policy_state: Any = ()) -> tuple[Any, Any]:
        """Chooses the actions of one step.

        Args:
          time_step: has step_type int32 [B], reward and discount float32 [B], and observation (a
            nest [B, ...]).
          policy_state: the state that `initial_state` or the last call returned.

        Returns:
          The actions (numpy, [B, ...]; a nest for a nested action spec) and the next policy state.
        """
        step = self._action(self._inputs(time_step, policy_state))
        if isinstance(step['info'], Mapping):
            self.info = {name: each.numpy() for name, each in step['info'].items() if isinstance(each, tf.Tensor)}
        return tf.nest.map_structure(lambda tensor: tensor.numpy(), step['action']), step['policy_state']

    def distribution(self, time_step: Any, policy_state: Any = ()) -> tuple[Any, Any] | None:
        """Returns the parameters of the distributions of one step's actions;
        arguments as for `action`.

        Returns:
          The parameters by their names (numpy, [B, ...]), in the nest of the action, and the next
          policy state. None if the policy was exported without its distribution.
        """
        if self._distribution is None:
            return None
        step = self._distribution(self._inputs(time_step, policy_state))
        return tf.nest.map_structure(lambda tensor: tensor.numpy(), step['distribution']), step['policy_state']

    @property
    def has_log_probability(self) -> bool:
        """Whether the policy computes the log-probabilities of actions: of distributions of the user's own."""
        return self._log_probability is not None

    def log_probability(self, time_step: Any, policy_state: Any, action: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Returns the log-probability [B] of each tensor of an action, given in the order of `tf.nest.flatten`;
        other arguments as for `action`.
        """
        assert self._log_probability is not None
        actions = [tf.convert_to_tensor(leaf) for leaf in action]
        return [each.numpy() for each in self._log_probability([*self._inputs(time_step, policy_state), *actions])]

    def _inputs(self, time_step: Any, policy_state: Any) -> list[tf.Tensor]:
        inputs = (
            time_step.step_type,
            signatures.to_plain(time_step.reward),
            time_step.discount,
            signatures.to_plain(time_step.observation),
            policy_state,
        )
        leaves = zip(tf.nest.flatten(inputs), self._input_dtypes, strict=True)
        return [tf.convert_to_tensor(leaf, dtype) for leaf, dtype in leaves]


def _fits(own: Any, other: Any) -> bool:
    return own.dtype == other.dtype and own.shape[1:].is_compatible_with(other.shape[1:])


def _texts(leaves: dict[str, Any]) -> dict[str, str]:
    return {
        name: f'{leaf.dtype.name}{"[...]" if leaf.shape.rank is None else list(leaf.shape[1:])}'
        for name, leaf in leaves.items()
    }


def load(path: pathlib.Path) -> LoadedPolicy:
    """Loads one version; see `load_model`."""
    return LoadedPolicy(path, *load_model(path))


def load_model(path: pathlib.Path) -> tuple[LoadedModel, dict[str, Any]]:
    """Returns the SavedModel of one version, and its metadata.

    Args:
      path: `<directory>/<train step>`.

    Raises:
      FileNotFoundError: if the version does not exist (any more).
      ValueError: if it is damaged, or a file is another one than was exported.
      OSError: if there is no room for the private copy that is loaded.
    """
    try:
        metadata = read_json(path / versions.METADATA, messages.Metadata)
        with digests.checked(path) as copy:
            model = loaded_model.load(copy)
    except UserOSError:
        raise
    except (OSError, ValueError, tf.errors.OpError) as error:
        if not versions.is_complete(path):
            raise UserFileNotFoundError(f'got no policy at {path}; need a version that is still there') from error
        raise UserValueError(f'got a damaged policy at {path} ({error}); remove it') from error
    if metadata is None:
        raise UserFileNotFoundError(f'got no policy at {path}; need a version that is still there')
    return model, metadata
