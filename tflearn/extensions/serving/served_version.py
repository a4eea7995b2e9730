"""One loaded version of a policy: its signatures and their limits."""

import dataclasses
import math
import pathlib
import types
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tflearn.core.errors import UserValueError
from tflearn.core.settings import NonNegativeInt, PositiveInt, checked_dataclass
from tflearn.extensions.serving.exploration import CannotExplore, Chooser, Exploration
from tflearn.policies import loader, signatures, versions
from tflearn.policies.loaded_model import ModelFunction


@checked_dataclass(frozen=True)
class BatchOptions:
    """How requests become batches. The names are those of TensorFlow Serving.

    Attributes:
      max_batch_size: the largest number of rows of a batch; a larger request is computed
        separately.
      batch_timeout_micros: how long an incomplete batch waits for more requests, in microseconds;
        with 0 it waits only for a free thread.
      num_batch_threads: the number of batches that are computed at the same time.
      max_enqueued_batches: the number of batches that may wait; further requests get
        RESOURCE_EXHAUSTED.
    """

    max_batch_size: PositiveInt = 64
    batch_timeout_micros: NonNegativeInt = 0
    num_batch_threads: PositiveInt = 1
    max_enqueued_batches: PositiveInt = 100

    def serving_config(self) -> str:
        """Returns these settings as TensorFlow Serving's --batching_parameters_file."""
        return ''.join(f'{name} {{ value: {value} }}\n' for name, value in dataclasses.asdict(self).items())


# The number of the largest requests that may wait, without batches.
_MAX_WAITING = 16


# The least and the greatest value of each element; numbers, or arrays of the shape without the batch.
Bounds = tuple[np.ndarray, np.ndarray]


class InvalidRequest(UserValueError):
    """The request is invalid; the client gets INVALID_ARGUMENT and this message."""


class Meaning(NamedTuple):
    """What texts and nulls are, in the data that a policy was trained on.

    Attributes:
      numbers: those of a category's texts; all others are 0.
      texts: the texts by their numbers; '' is none.
      missing: the number of a null; None if there is none.
      are_numbers: whether a text of `numbers` is a number itself, such as that of an hour.
    """

    numbers: Mapping[str, int] = types.MappingProxyType({})
    texts: Sequence[str] = ()
    missing: float | None = None
    are_numbers: bool = False


class Signature:
    """A function of named tensors that checks its inputs.

    Attributes:
      meanings: of the inputs that were columns of a log, by name.
      inputs: the specs of the inputs, by name, in the order of the function's inputs.
      outputs: the names of the outputs.
      batched: whether all inputs and outputs have a leading batch dimension.
      rows_per_call: the largest number of rows of requests that share a call; 0 computes each
        request separately.
      wait_secs: how long a request waits for others that share its call.
      max_waiting_rows: the number of rows that may wait: those of `max_enqueued_batches` full
        batches; without batches, those of 16 of the largest requests.
    """

    def __init__(
        self,
        name: str,
        function: ModelFunction,
        options: BatchOptions | None,
        max_rows: int,
        bounds: Mapping[str, Bounds] = types.MappingProxyType({}),
        meanings: Mapping[str, Meaning] = types.MappingProxyType({}),
        allow_nonfinite: bool = False,
    ):
        """
        Args:
          bounds: of integer inputs, by name.
          meanings: of the inputs that were columns of a log, by name.
          options: the options of batches; None computes each call separately.
          allow_nonfinite: whether floats may be NaN and infinities; those of an input whose missing
            values are such always may.
        """
        self.name = name
        self.max_rows, self.meanings = max_rows, meanings
        self.inputs: dict[str, tf.TensorSpec] = {
            spec.name: spec for spec in tf.nest.flatten(function.definition.structured_input_signature)
        }
        # The order of the function's outputs.
        self.outputs = tuple(sorted(function.definition.structured_outputs))
        self._shapes = {name: tuple(spec.shape) for name, spec in self.inputs.items()}
        self._bounds = {name: bound for name, bound in bounds.items() if name in self.inputs}
        self._floats = [name for name, spec in self.inputs.items() if spec.dtype.is_floating]
        missing = {name: meanings.get(name, Meaning()).missing or 0.0 for name in self._floats}
        self._takes_any = {name for name in missing if allow_nonfinite or not math.isfinite(missing[name])}
        self.batched = bool(self._shapes) and all(shape and shape[0] is None for shape in self._shapes.values())
        # Else requests cannot share a call.
        alike = all(None not in shape[1:] for shape in self._shapes.values())
        self._program = function.outputs
        batches = options if self.batched and alike else None
        self.rows_per_call = batches.max_batch_size if batches else 0
        self.wait_secs = batches.batch_timeout_micros / 1e6 if batches else 0.0
        self.max_waiting_rows = (
            batches.max_enqueued_batches * batches.max_batch_size if batches else _MAX_WAITING * max_rows
        )

    def spec_of(self, name: str) -> tf.TensorSpec:
        """Returns the spec of the input `name`. Raises InvalidRequest if there is no such input."""
        if name not in self.inputs:
            raise InvalidRequest(f'got the input {name!r}; need one of {sorted(self.inputs)}, as {self.name} takes')
        return self.inputs[name]

    def check(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """Checks names and shapes of the inputs, before any memory is allocated for their values.

        Raises:
          InvalidRequest: if they do not fit the signature.
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
            names = ', '.join(self.inputs)
            raise InvalidRequest(f'got a batch of {next(iter(rows))}; need 1 to {self.max_rows} rows of {names}')

    def check_values(self, inputs: Mapping[str, np.ndarray]) -> None:
        """Checks integers of checked shapes against their bounds.

        Raises:
          InvalidRequest: naming the input, the first value that is out of its bounds, and these.
        """
        for name, (low, high) in self._bounds.items():
            values = inputs[name]
            wrong = (values < low) | (values > high)
            if wrong.any():
                at = np.unravel_index(np.argmax(wrong), wrong.shape)
                need = [np.broadcast_to(bound, values.shape)[at] for bound in (low, high)]
                raise InvalidRequest(f'got {name} with the value {values[at]}; need {need[0]} to {need[1]}')

    def check_finite(self, inputs: Mapping[str, np.ndarray], decides: bool) -> None:
        """Checks that floats of checked shapes are finite, where they have to be.

        Args:
          decides: whether the action is logged or explores: no log can hold other numbers.

        Raises:
          InvalidRequest: naming the input and the first row that is not finite.
        """
        for name in self._floats:
            if name in self._takes_any and not decides:
                continue
            values = inputs[name]
            finite = np.isfinite(values.astype(np.float32) if values.dtype == tf.bfloat16 else values)
            if finite.all():
                continue
            row = f'row {np.argwhere(~finite)[0][0]} of ' if self.batched else ''
            taken = 'if the policy was trained with others, tflearn-serve --allow_nonfinite takes them'
            if decides:
                taken = 'a decision that is logged or explores takes no others'
            raise InvalidRequest(f'got {row}{name} {signatures.NONFINITE}; {taken}')

    def run(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Computes the outputs, by name, from checked inputs.

        Args:
          inputs: arrays of the dtypes of `self.inputs`, by name.

        Raises:
          InvalidRequest: if it requests the initial state of too many rows.
          tf.errors.InvalidArgumentError: if the policy cannot compute these values.
        """
        if 'batch_size' in self.inputs and not self.batched and not 1 <= inputs['batch_size'] <= self.max_rows:
            raise InvalidRequest(f'got batch_size={inputs["batch_size"]}; need 1 to {self.max_rows}')
        outputs = self._program([tf.constant(inputs[name], spec.dtype) for name, spec in self.inputs.items()])
        return {name: output.numpy() for name, output in zip(self.outputs, outputs, strict=True)}

    def warm_up(self) -> None:
        """Computes zeros, so that the first request does not wait for TensorFlow's initialization."""
        ones = {name: [1 if size is None else size for size in spec.shape] for name, spec in self.inputs.items()}
        dtypes = {name: self.inputs[name].dtype for name in ones}
        fill = {name: b'' if dtype == tf.string else int(not self.batched) for name, dtype in dtypes.items()}
        self.run({name: np.full(shape, fill[name], dtypes[name].as_numpy_dtype) for name, shape in ones.items()})


class Decisions:
    """A signature that also chooses the actions, those of a batch at once;
    the queue of requests takes it as one.
    """

    def __init__(self, computed: Signature, chooser: Chooser):
        self.batched, self.rows_per_call = computed.batched, computed.rows_per_call
        self.wait_secs, self.max_waiting_rows = computed.wait_secs, computed.max_waiting_rows
        self._computed, self._chooser, self._random = computed, chooser, np.random.default_rng()

    def run(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Returns the outputs of a decision, see `Chooser`. Raises as `Signature.run`."""
        full = signatures.completed(inputs, self._computed.inputs)
        return self._chooser(inputs, self._computed.run(full), self._random)


class ServedVersion:
    """A loaded version. It is unloaded when no reference to it is left.

    Attributes:
      version: the version's train step.
      path: the path from which it was loaded.
      may_be_apprentice: whether the product's own actions may be answered in place of the policy's.
      signatures: the signatures, by name.
      chooser: how the actions of a decision are chosen that is logged, or explores.
      decisions: the default signature with these actions; None if the version has no such
        signature.
      signature_defs: TensorFlow's `SignatureDef` messages, by name, for clients.
      vocabularies: the values of the categories that the policy was trained on, by the categories'
        names.
      texts: by the names of inputs and of 'action' what the decision log has for each number: the
        categories' texts, in UTF-8.
    """

    def __init__(
        self,
        path: pathlib.Path,
        options: BatchOptions | None = None,
        max_rows: int = 1024,
        exploration: Exploration | None = None,
        hidden: Collection[str] = (),
        apprentice: bool = False,
        allow_nonfinite: bool = False,
    ):
        """Loads the version and runs each signature once.

        Args:
          path: `<directory>/<train step>`.
          exploration: what is served besides the policy's own actions.
          hidden: the inputs that the decision log leaves out or hashes.
          apprentice: the value of `may_be_apprentice`.
          allow_nonfinite: whether inputs may be NaN and infinities.

        Raises:
          FileNotFoundError: if the version does not exist (any more).
          ValueError: if it is damaged, the policy cannot explore so, or has no such inputs.
        """
        self.path, self.may_be_apprentice = path, apprentice
        self.version = int(path.name)
        model, metadata = loader.load_model(path)
        bounds = _bounds((metadata.get('specs') or {}).get('observation', {}))
        self.signature_defs = model.signature_defs
        self.vocabularies: Mapping[str, Sequence[str]] = metadata.get(versions.VOCABULARIES) or {}
        meanings = _meanings(self.vocabularies, metadata.get(versions.MISSING) or {})
        self.signatures = {
            name: Signature(name, function, options, max_rows, bounds, meanings, allow_nonfinite)
            for name, function in model.signatures.items()
        }
        default = self.signatures.get(signatures.DEFAULT)
        inputs = default.inputs if default else {}
        self.texts = {
            name: np.array([word.encode() for word in meaning.texts], np.object_)
            for name, meaning in meanings.items()
            if meaning.texts and (name == 'action' or (name in inputs and inputs[name].dtype.is_integer))
        }
        if default and (unknown := sorted({*hidden} - {*default.inputs})):
            raise UserValueError(
                f'got {", ".join(unknown)} for --decision_log_omit or --decision_log_hash; need inputs of the policy, '
                f'such as {", ".join(default.inputs)}'
            )
        outputs = {name: signature.outputs for name, signature in self.signatures.items()}
        self.chooser = Chooser(metadata, outputs, exploration or Exploration())
        if apprentice and not self.chooser.actions:
            raise CannotExplore(f'got --apprentice for {path.parent.name}; need a policy of one Discrete action')
        computed = self.signatures.get(self.chooser.signature)
        self.decisions = Decisions(computed, self.chooser) if computed else None
        for signature in self.signatures.values():
            signature.warm_up()

    def signature(self, name: str) -> Signature:
        """Returns the signature `name`. Raises InvalidRequest if there is none."""
        if name not in self.signatures:
            raise InvalidRequest(f'got signature_name={name!r}; need one of {sorted(self.signatures)}')
        return self.signatures[name]


def _meanings(vocabularies: Mapping[str, Sequence[str]], missing: Mapping[str, float]) -> dict[str, Meaning]:
    """Returns what texts and nulls are, by the names of the inputs:
    an observation's categories begin with 1.
    """
    found = {name: Meaning(missing=number) for name, number in missing.items()}
    for name, words in vocabularies.items():
        texts = [*words] if name == 'action' else ['', *words]
        numbers = {word: number for number, word in enumerate(texts) if word}
        found[name] = Meaning(numbers, texts, 0, any(map(str.isdecimal, words)))
    return {next(each for each, _ in signatures.flat({name: None})): meaning for name, meaning in found.items()}


def _bounds(described: Any) -> dict[str, Bounds]:
    """Returns the bounds of integers in an observation by the names of the inputs.

    Args:
      described: the spec of the observation as `signatures.describe` returns it.
    """
    found = {}
    for name, leaf in signatures.flat(_with_leaves(described), 'observation'):
        dtype = tf.as_dtype(leaf.dtype)
        if not dtype.is_integer or getattr(leaf, 'minimum', None) is None or getattr(leaf, 'maximum', None) is None:
            continue
        low, high = np.asarray(leaf.minimum), np.asarray(leaf.maximum)
        # 0 is always accepted, as in the export: loaders run a policy once on zeros. A dtype's limits are no bounds.
        if not (np.any(high == dtype.max) or (dtype.min < 0 and np.any(low == dtype.min))):
            found[name] = np.minimum(low, 0), high
    return found


def _with_leaves(described: Any) -> Any:
    if isinstance(described, list):
        return [_with_leaves(value) for value in described]
    if isinstance(described.get('dtype'), str):
        return types.SimpleNamespace(**described)
    return {key: _with_leaves(value) for key, value in described.items()}


def _text(shape: tuple[int | None, ...]) -> str:
    return f'[{", ".join("any" if size is None else str(size) for size in shape)}]'
