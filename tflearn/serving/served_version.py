"""One loaded version of a policy: its signatures, and what may be asked of each."""

import pathlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from tflearn.errors import UserValueError
from tflearn.policies import loader
from tflearn.policies.loaded_model import ModelFunction
from tflearn.serving import batching
from tflearn.serving.batching import BatchOptions

# Without batches: so many of the largest requests may wait.
_WAITING = 16


class InvalidRequest(UserValueError):
    """The request does not fit the signature; the message is for whoever sent it."""


class Signature:
    """A function of named tensors that checks its inputs.

    Attributes:
      inputs: what has to be given, by name, in the order of the function's inputs.
      outputs: names of what is returned.
      batched: all inputs and outputs have a leading batch dimension.
      rows_per_call: requests may be put together up to that many rows; 0: each goes by itself.
      max_waiting_rows: what may wait to be computed: `max_enqueued_batches` full batches; without batches, 16 of the
        largest requests.
    """

    def __init__(self, name: str, function: ModelFunction, options: BatchOptions | None, max_rows: int):
        """
        Args:
          name: of the signature.
          function: the version's.
          options: of batches; None computes each call by itself.
          max_rows: the largest batch that one call may bring.
        """
        self.name = name
        self.max_rows = max_rows
        self.inputs: dict[str, tf.TensorSpec] = {
            spec.name: spec for spec in tf.nest.flatten(function.definition.structured_input_signature)
        }
        self.outputs = tuple(sorted(function.definition.structured_outputs))  # the order of the function's outputs
        self._shapes = {name: tuple(spec.shape) for name, spec in self.inputs.items()}
        self.batched = bool(self._shapes) and all(shape and shape[0] is None for shape in self._shapes.values())
        self._alone: Callable[..., Any] = batching.program(function, None)
        together = options if self.batched else None
        self._program = batching.program(function, together) if together else self._alone
        self.rows_per_call = together.max_batch_size if together else 0
        self.max_waiting_rows = (
            together.max_enqueued_batches * together.max_batch_size if together else _WAITING * max_rows
        )

    def spec_of(self, name: str) -> tf.TensorSpec:
        """Returns what the input `name` has to be.

        Raises:
          InvalidRequest: if there is no such input.
        """
        if name not in self.inputs:
            raise InvalidRequest(f'got the input {name!r}; need one of {sorted(self.inputs)}, as {self.name} takes')
        return self.inputs[name]

    def check(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """Checks names and shapes of the inputs, before any memory is spent on their values.

        Raises:
          InvalidRequest: saying what is wrong.
        """
        for name, shape in shapes.items():
            self.spec_of(name)
            need = self._shapes[name]
            if len(shape) != len(need) or any(b not in (None, a) for a, b in zip(shape, need, strict=True)):
                raise InvalidRequest(f'got {name} of shape {list(shape)}; need {_text(need)}')
        if missing := sorted(self.inputs.keys() - shapes.keys()):
            raise InvalidRequest(f'got no input {", ".join(missing)}; need {sorted(self.inputs)}, as {self.name} takes')
        if not self.batched:
            return
        rows = {shape[0] for shape in shapes.values()}
        if len(rows) > 1:
            sizes = {name: shape[0] for name, shape in sorted(shapes.items())}
            raise InvalidRequest(f'got inputs of several batch sizes, {sizes}; need the same for all')
        if not 1 <= next(iter(rows)) <= self.max_rows:
            raise InvalidRequest(f'got a batch of {next(iter(rows))}; need 1 to {self.max_rows} rows')

    def run(self, inputs: Mapping[str, np.ndarray], alone: bool = False) -> dict[str, np.ndarray]:
        """Computes the outputs, by name, of inputs that were checked.

        Args:
          inputs: of the dtypes of `self.inputs`.
          alone: not in one batch with other calls.

        Raises:
          InvalidRequest: if there are more rows than one call may ask for.
          tf.errors.InvalidArgumentError: if the policy cannot compute these values.
          tf.errors.UnavailableError: if too many batches wait.
        """
        if 'batch_size' in self.inputs and not self.batched and not 1 <= inputs['batch_size'] <= self.max_rows:
            raise InvalidRequest(f'got batch_size={inputs["batch_size"]}; need 1 to {self.max_rows}')
        program: Any = self._alone if alone else self._program
        outputs = program([tf.constant(inputs[name], spec.dtype) for name, spec in self.inputs.items()])
        return {name: output.numpy() for name, output in zip(self.outputs, outputs, strict=True)}

    def warm_up(self) -> None:
        """Computes zeros, so that the first request does not have to wait for what TensorFlow does once."""
        ones = {name: [1 if size is None else size for size in spec.shape] for name, spec in self.inputs.items()}
        make: Any = np.zeros if self.batched else np.ones
        self.run({name: make(shape, self.inputs[name].dtype.as_numpy_dtype) for name, shape in ones.items()})


class ServedVersion:
    """A loaded version. It is unloaded when nobody refers to it any more.

    Attributes:
      version: its train step.
      path: where it was loaded from.
      signatures: by name.
      signature_defs: TensorFlow's messages about the signatures, by name, for clients.
    """

    def __init__(self, path: pathlib.Path, options: BatchOptions | None = None, max_rows: int = 1024):
        """Loads the version and runs each signature once.

        Args:
          path: `<directory>/<train step>`.
          options: of batches; None computes each request by itself.
          max_rows: the largest batch that one request may bring.

        Raises:
          FileNotFoundError: if the version is not there (any more).
          ValueError: if it is damaged.
        """
        self.path = path
        self.version = int(path.name)
        model, _ = loader.load_model(path)
        self.signature_defs = model.signature_defs
        self.signatures = {
            name: Signature(name, function, options, max_rows) for name, function in model.signatures.items()
        }
        for signature in self.signatures.values():
            signature.warm_up()

    def signature(self, name: str) -> Signature:
        """Returns the signature `name`.

        Raises:
          InvalidRequest: if there is none.
        """
        if name not in self.signatures:
            raise InvalidRequest(f'got signature_name={name!r}; need one of {sorted(self.signatures)}')
        return self.signatures[name]


def _text(shape: tuple[int | None, ...]) -> str:
    return f'[{", ".join("any" if size is None else str(size) for size in shape)}]'
