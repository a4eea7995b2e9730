"""Policies that are no export of a run: a SavedModel at any path,
and a Python function of observations.
"""

import contextlib
import importlib
import inspect
import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
from tf_agents.specs import tensor_spec
from tf_agents.trajectories import time_step as ts

from tflearn.core.errors import UserImportError, UserTypeError, UserValueError
from tflearn.core.types import EnvironmentSpecs, check_batch
from tflearn.files import digests
from tflearn.policies import loaded_model, loader, signatures, versions

# A batch of observations [B, ...] -> actions [B, ...]; both are nests of numpy arrays. One with an
# argument `is_first` is also given where episodes begin, bool [B], such as a controller with a state.
ActFunction = Callable[..., Any]

_FIRST = 'is_first'
_SAVER_SPECS = 'policy_specs.pbtxt'  # beside the SavedModel of TF-Agents' PolicySaver


class SavedPolicy:
    """A policy that TF-Agents' PolicySaver has saved, as an `EvaluationPolicy`."""

    def __init__(self, path: pathlib.Path):
        """Loads it.

        Raises:
          ValueError: if it is damaged, or another SavedModel.
        """
        self.path = path
        with loaded_model.naming_damage(path), digests.checked(path) as copy:
            self._model = tf.saved_model.load(str(copy))
            saved = tensor_spec.from_pbtxt_file(str(copy / _SAVER_SPECS))
            self._data_spec, self._state_spec = saved['collect_data_spec'], saved['policy_state_spec']

    @property
    def train_step(self) -> int | None:
        """The train step of the weights; None if it was not saved."""
        step = int(self._model.get_train_step())
        return None if step < 0 else step

    def check(self, specs: EnvironmentSpecs) -> None:
        """Raises ValueError if observations or actions have another structure,
        shape or dtype than in `specs`.
        """
        for name in ('observation', 'action'):
            got, need = (
                {path: (leaf.dtype.name, leaf.shape.as_list()) for path, leaf in signatures.flat(nest, name)}
                for nest in map(signatures.to_plain, (getattr(self._data_spec, name), getattr(specs, name)))
            )
            if got != need:
                raise UserValueError(
                    f'got the policy {self.path} of {got}; the environment has {need}; use the configuration that it '
                    'was trained with'
                )

    def initial_state(self, batch_size: int) -> Any:
        """See `EvaluationPolicy`."""
        return self._model.get_initial_state(batch_size=tf.constant(batch_size)) if self._state_spec else ()

    def action(self, time_step: ts.TimeStep, policy_state: Any) -> tuple[Any, Any]:
        """See `EvaluationPolicy`."""
        given = tf.nest.map_structure(tf.convert_to_tensor, time_step)
        step = self._model.action(given, policy_state) if self._state_spec else self._model.action(given)
        return tf.nest.map_structure(lambda tensor: tensor.numpy(), step.action), step.state


class FunctionPolicy:
    """A Python function of a batch of observations, as an `EvaluationPolicy` without a state."""

    def __init__(self, function: ActFunction, specs: EnvironmentSpecs):
        """
        Args:
          function: observations -> actions, nests of numpy arrays [B, ...]. Numbers of other sizes,
            such as float64, are converted; those of another kind are refused.
          specs: the environment's specs.
        """
        self._function, self._spec, self._takes_first = function, specs.action, False
        with contextlib.suppress(TypeError, ValueError):  # a function of C whose arguments are unknown
            self._takes_first = _FIRST in inspect.signature(function).parameters

    def initial_state(self, batch_size: int) -> Any:
        """See `EvaluationPolicy`."""
        del batch_size
        return ()

    def action(self, time_step: ts.TimeStep, policy_state: Any) -> tuple[Any, Any]:
        """See `EvaluationPolicy`; raises ValueError for actions that do not have the environment's spec."""
        first = {_FIRST: np.asarray(time_step.is_first())} if self._takes_first else {}
        action = self._function(time_step.observation, **first)
        with contextlib.suppress(TypeError, ValueError):  # another structure, which the check names
            action = tf.nest.map_structure(_of_dtype, self._spec, action)
        check_batch(action, self._spec, len(time_step.step_type), f'action of {function_name(self._function)}')
        return action, policy_state


def load(path: pathlib.Path, train_step: int | None = None) -> loader.LoadedPolicy | SavedPolicy:
    """Loads a policy that tflearn has exported, or that TF-Agents' PolicySaver has saved;
    see `versions.find`.

    Raises:
      FileNotFoundError: if there is none.
      ValueError: if it is damaged, or another SavedModel.
    """
    while True:
        version = versions.find(path, train_step)
        if versions.is_complete(version):
            with contextlib.suppress(FileNotFoundError):  # it was pruned just then
                return loader.load(version)
        elif (version / _SAVER_SPECS).exists():
            return SavedPolicy(version)
        elif version.exists():  # or it was pruned as soon as it was found: the next one is looked for
            raise UserValueError(
                f'got the SavedModel {version}, which has neither {versions.METADATA} nor {_SAVER_SPECS}; need one '
                "that tflearn or TF-Agents' PolicySaver has written; or name a Python function that calls it "
                '(MODULE:FUNCTION)'
            )


def find_function(name: str) -> ActFunction:
    """Returns the function 'module:function', such as 'my_package.my_module:act'.

    Raises:
      ImportError: if the module cannot be imported.
      ValueError: if it has no such function.
    """
    module_name, _, attribute = name.partition(':')
    try:
        module = importlib.import_module(module_name)
    except (ImportError, ValueError) as error:
        raise UserImportError(f'got the policy {name!r}, but no module {module_name!r} ({error})') from error
    function = getattr(module, attribute, None)
    if not callable(function):
        raise UserValueError(f'got the policy {name!r}; need a function of {module_name} after the colon')
    return check_function(function)


def check_function(function: Any) -> ActFunction:
    """Returns `function`; raises TypeError if it is a class,
    or something else that is no function.
    """
    if isinstance(function, type) or not callable(function):
        raise UserTypeError(f'got the policy {function!r}; need a function from observations to actions')
    return function


def function_name(function: ActFunction) -> str:
    """Returns 'module:name' of a function."""
    return f'{function.__module__}:{getattr(function, "__qualname__", type(function).__qualname__)}'


def _of_dtype(spec: Any, leaf: Any) -> np.ndarray:
    """Returns an array of the spec's dtype if that keeps the kind of number;
    else the array as it is.
    """
    array, dtype = np.asarray(leaf), np.dtype(spec.dtype.as_numpy_dtype)
    return array.astype(dtype) if np.can_cast(array.dtype, dtype, 'same_kind') else array
