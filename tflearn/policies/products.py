"""Models of exported policies for products: one batch size, tensors with chosen names,
parameters of distributions.

    <output>/saved_model.pb variables/     one signature; the graph's inputs are named `<signature>_<input>`
            /output_spec.json              the outputs as LLVM's model runners read them, the action first
            /model.tflite                  the same function
            /policy_specs.pbtxt metadata.json     those of the version from which the model is made

A greedy policy acts by the mode; any other draws its actions by operations that TFLite and XLA
have.

`save_fixed_batch` makes a model for compilers that need static shapes, such as `saved_model_cli
aot_compile_cpu`.
"""

import json
import pathlib
import re
import shutil
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging
from tensorflow.core.protobuf import saved_model_pb2
from tf_agents.policies import policy_saver
from tf_agents.specs import tensor_spec
from tf_agents.trajectories import time_step as ts

from tflearn.core.errors import UserValueError
from tflearn.core.settings import PositiveInt, checked_dataclass
from tflearn.files import messages, numbered
from tflearn.files.run_dir import read_json
from tflearn.policies import converted, export_check, loaded_model, signatures, versions
from tflearn.policies.action_probabilities import NORMAL, SQUASHED, by_leaf
from tflearn.policies.export_check import check_results, draw
from tflearn.policies.exporter import ACTION_MASK

OUTPUT_SPEC = 'output_spec.json'
TFLITE = 'model.tflite'

_NAME = re.compile(r'[A-Za-z][A-Za-z0-9_]*')
_NUM_COMPARED = 16
# LLVM's names of the types of tensors.
_TYPES = {
    tf.float32: 'float',
    tf.float64: 'double',
    **{getattr(tf, f'{sign}int{bits}'): f'{sign}int{bits}_t' for sign in ('', 'u') for bits in (8, 16, 32, 64)},
}


@checked_dataclass(frozen=True)
class ProductOptions:
    """What the model of a policy for a product takes and returns.

    Attributes:
      batch_size: the size of all batches.
      signature: the signature's name, with which the names of the graph's inputs begin.
      time_step: whether step_type, reward and discount are inputs too; otherwise every step is one
        within an episode.
      parameters: whether the parameters of the action's distribution (logits, or loc and
        scale_diag) are outputs too. Those of a greedy policy are the parameters of the raw policy
        at the same train step, whose mode it takes.
      names: names of one's own for inputs and outputs, by their default names: the path of an input
        in the observation, joined with '_' ('observation' for a single tensor), 'step_type',
        'reward', 'discount', 'action', 'logits', ...
      tflite: whether to write a TFLite model too, unless the policy computes in bfloat16 or
        float16.
    """

    batch_size: PositiveInt = 1
    signature: str = 'action'
    time_step: bool = False
    parameters: bool = False
    names: Mapping[str, str] | None = None
    tflite: bool = True

    def __post_init__(self) -> None:
        chosen = [self.signature, *(self.names or {}).values()]
        if wrong := [name for name in chosen if not _NAME.fullmatch(name)]:
            raise UserValueError(
                f'got the names {", ".join(map(repr, wrong))}; need letters, digits and "_", a letter first'
            )

    def save(self, version: pathlib.Path, output: pathlib.Path, raw: pathlib.Path | None = None) -> None:
        """Makes the model of an exported version, compares it with the version,
        and renames it to `output`.

        Args:
          version: a complete version.
          output: the model's path.
          raw: the version of the raw policy at the same train step, for the parameters of a greedy
            policy.

        Raises:
          ValueError: if `output` exists, a name in the options is none of the model's or is given
            twice, the policy has no such parameters, or TFLite lacks an operation.
          ExportMismatch: if the model acts otherwise than the version; nothing is written then.
        """
        with numbered.new(output) as written:
            product = _Product(version, self, raw)
            tf.saved_model.save(product.module, str(written), signatures={self.signature: product.function})
            product.compare(tf.saved_model.load(str(written)).signatures[self.signature])
            outputs = _output_spec(written, self.signature, product.outputs)
            (written / OUTPUT_SPEC).write_text(json.dumps(outputs, indent=2) + '\n')
            if self.tflite and export_check.has_low_precision(product.function.get_concrete_function()):
                logging.warning(
                    '%s gets no %s: the policy computes in bfloat16 or float16, TFLite in float32', output, TFLITE
                )
            elif self.tflite:
                model = converted.convert_tflite(written, signature=self.signature)
                _check_names(model, outputs)
                if product.exact:
                    product.compare(lambda **given: converted.run_tflite(model, given, self.signature))
                (written / TFLITE).write_bytes(model)
            for name in (policy_saver.POLICY_SPECS_PBTXT, versions.METADATA):
                shutil.copyfile(version / name, written / name)


class _Product:
    """The function of a product's model.

    Attributes:
      function: a `tf.function` of named tensors, which returns a dict of tensors.
      module: what the function needs.
      outputs: the names of the outputs, the action first.
      exact: whether the policy is deterministic.
    """

    def __init__(self, version: pathlib.Path, options: ProductOptions, raw: pathlib.Path | None):
        specs_file = version / policy_saver.POLICY_SPECS_PBTXT
        if not specs_file.is_file():
            raise UserValueError(f'got the version {version} without {specs_file.name}; need one of this tflearn')
        with loaded_model.naming_damage(version):
            specs = tensor_spec.from_pbtxt_file(str(specs_file))
            data, state = specs['collect_data_spec'], specs['policy_state_spec']
            self._version, self._policy, self._options = version, tf.saved_model.load(str(version)), options
        if (
            'reward' in self._policy.signatures[signatures.DEFAULT].structured_input_signature[1]
            and not options.time_step
        ):
            raise UserValueError(
                f'got the version {version}, whose memory takes the reward, with time_step=False; need it as an input; '
                'set time_step=True'
            )
        self.exact = not loaded_model.is_stochastic(self._policy.action_of_fields.get_concrete_function())
        self._parameters = self._parameters_function(raw)
        self.module = tf.Module(name='policy')
        self.module.policies = [self._policy if self._parameters is None else self._parameters]
        self._action_specs = signatures.flat_dict({'action': signatures.to_plain(data.action)})
        self._specs = {
            'observation': signatures.to_plain(data.observation),
            'policy_state': signatures.to_plain(state),
            **{name: getattr(data, name) for name in ('step_type', 'reward', 'discount') if options.time_step},
        }
        self._reward = data.reward
        self._inputs = self._named(_flat_inputs(self._specs))
        mask = (read_json(version / versions.METADATA, messages.Metadata) or {}).get(ACTION_MASK)
        self._mask = mask and self._name(re.sub(r'\W', '_', mask))
        self.function = tf.function(self._call, input_signature=self._signature(), autograph=False)
        made = self.function.get_concrete_function().structured_outputs
        self._check_names(made)
        actions = [self._name(name) for name in self._action_specs]
        self.outputs = [*actions, *sorted(made.keys() - set(actions))]

    def compare(self, function: Callable[..., Mapping[str, Any]]) -> None:
        """Compares a model's function with the version, on random observations.

        Raises:
          ExportMismatch: if they act differently; for a stochastic policy, if shapes or dtypes
            differ.
        """
        rng = np.random.default_rng(0)
        size = self._options.batch_size
        batches = []
        for _ in range(-(-_NUM_COMPARED // size)):
            given = {name: draw(spec, rng, size) for name, spec in self._inputs.items()}
            if self._mask:  # a policy fails where nothing is legal
                given[self._mask][:] = 1
            tensors = {name: tf.constant(array) for name, array in given.items()}
            outputs = function(**tensors)
            got = [tf.constant(outputs[self._name(name)]) for name in self._action_specs]
            batches.append((got, tf.nest.flatten(self._fields(tensors))))
        # One batch of all: a float is compared by its magnitude in the batch.
        got, leaves = (
            [tf.concat(parts, 0) for parts in zip(*each, strict=True)] for each in zip(*batches, strict=True)
        )
        variables = self._policy.model_variables
        values = [variable.read_value() for variable in variables]
        version = export_check.Program(self._policy.action_of_fields.get_concrete_function(), leaves, variables, values)
        expected = signatures.flat_dict({'action': version.structured_results()['action']})
        where = f'the model of {self._version}'
        check_results(where, version, dict(zip(self._action_specs, got, strict=True)), expected, self.exact)

    def _parameters_function(self, raw: pathlib.Path | None) -> Any:
        """Returns the model with the distribution from which actions are made;
        None if actions are the version's.
        """
        needed = self._options.parameters
        if self.exact and not needed:
            return None
        path = raw if self.exact else self._version
        if path is None or not versions.is_complete(path):
            raise UserValueError(
                f'got parameters=True for the greedy policy {self._version}, and no raw policy at {path}; need it of '
                "the same train step; export 'raw_policy' too"
            )
        with loaded_model.naming_damage(path):
            model = self._policy if path == self._version else tf.saved_model.load(str(path))
        has = hasattr(model, 'distribution')
        kinds = by_leaf(model.distribution.get_concrete_function().structured_outputs['distribution']) if has else []
        if kinds and all(_is_known(kind, can_be_squashed=not needed) for kind in kinds):
            return model
        if needed:
            found = ', '.join(sorted({name for kind in kinds for name in kind})) or 'no parameters'
            raise UserValueError(
                f'got parameters=True for the policy {path}, whose distribution has {found}; need logits, or loc and '
                'scale_diag; leave parameters out'
            )
        return None

    def _name(self, default: str) -> str:
        return (self._options.names or {}).get(default, default)

    def _named(self, leaves: Mapping[str, Any]) -> dict[str, Any]:
        """Returns leaves by the names of the model. Raises ValueError if two have the same name."""
        named = {self._name(name): leaf for name, leaf in leaves.items()}
        if len(named) < len(leaves):
            raise UserValueError(f'got names={self._options.names}, which give several inputs one name; choose others')
        return named

    def _check_names(self, outputs: Mapping[str, Any]) -> None:
        chosen = self._options.names or {}
        there = {*self._inputs, *outputs}
        unknown = [name for name in chosen if chosen[name] not in there]
        if unknown or len(outputs) < self._num_outputs:
            defaults = sorted(there - set(chosen.values()) | set(chosen) - set(unknown))
            raise UserValueError(
                f'got names for {", ".join(unknown) or "two outputs that are equal"}; the inputs and outputs of the '
                f'model are {", ".join(defaults)}'
            )

    def _signature(self) -> list[tf.TensorSpec]:
        size = self._options.batch_size
        return [tf.TensorSpec([size, *spec.shape], spec.dtype, name) for name, spec in self._inputs.items()]

    def _fields(self, given: Mapping[str, Any]) -> list[Any]:
        """Returns the arguments of an exported policy's functions from the named inputs."""
        size = self._options.batch_size
        nests = tf.nest.pack_sequence_as(self._specs, [given[name] for name in self._inputs])
        zeros = tf.nest.map_structure(lambda spec: tf.zeros([size, *spec.shape], spec.dtype), self._reward)
        missing = {'step_type': tf.fill([size], ts.StepType.MID), 'reward': zeros, 'discount': tf.ones([size])}
        fields = {**missing, **nests}
        return [fields[name] for name in (*ts.TimeStep._fields, 'policy_state')]

    def _call(self, *tensors: tf.Tensor) -> dict[str, tf.Tensor]:
        # With a seed that was set before, every process would draw the same numbers.
        tf.random.set_seed(None)
        fields = self._fields(dict(zip(self._inputs, tensors, strict=True)))
        if self._parameters is None:
            step = self._policy.action(*fields)
            made = {'action': step['action'], 'policy_state': step['policy_state']}
            outputs = signatures.flat_dict(made)
        else:
            step = self._parameters.distribution(*fields)
            choose = _mode if self.exact else _sample
            kinds = zip(self._action_specs.items(), by_leaf(step['distribution']), strict=True)
            outputs = signatures.flat_dict({'policy_state': step['policy_state']})
            for (name, spec), kind in kinds:
                outputs[name] = choose(kind, spec)
                suffix = name.removeprefix('action')
                outputs |= {f'{key}{suffix}': kind[key] for key in kind if self._options.parameters}
        self._num_outputs = len(outputs)
        size = self._options.batch_size
        return {self._name(name): tf.ensure_shape(value, [size, *value.shape[1:]]) for name, value in outputs.items()}


def _flat_inputs(specs: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the specs by their default names, in the order of `tf.nest.flatten`."""
    leaves: dict[str, Any] = {}
    for name in sorted(specs):
        prefix = '' if name == 'observation' else name
        for path, leaf in signatures.flat(specs[name], prefix):
            key = path or 'observation'
            if key in leaves:
                raise UserValueError(f'got two inputs named {key}; need names of their own; rename a key of the spec')
            leaves[key] = leaf
    return leaves


def _is_known(parameters: Mapping[str, Any], can_be_squashed: bool) -> bool:
    """Returns whether actions are made of these parameters here;
    others, such as TD3's, are made by the policy.
    """
    if parameters.keys() == SQUASHED:
        return can_be_squashed and parameters['distribution'].keys() == NORMAL
    return parameters.keys() in ({'logits'}, NORMAL)


def _mode(parameters: Mapping[str, tf.Tensor], spec: Any) -> tf.Tensor:
    if 'loc' in parameters:
        return parameters['loc']
    return tf.argmax(parameters['logits'], axis=-1, output_type=spec.dtype) + tf.cast(spec.minimum, spec.dtype)


def _sample(parameters: Mapping[str, tf.Tensor], spec: Any) -> tf.Tensor:
    if 'distribution' in parameters:
        middle, half = (spec.maximum + spec.minimum) / 2, (spec.maximum - spec.minimum) / 2
        return middle + half * tf.tanh(_sample_normal(parameters['distribution']))
    if 'loc' in parameters:
        return tf.clip_by_value(_sample_normal(parameters), spec.minimum, spec.maximum)
    logits = parameters['logits']
    flat = tf.reshape(logits, [-1, logits.shape[-1]])
    drawn = tf.reshape(tf.random.categorical(flat, 1, spec.dtype), tf.shape(logits)[:-1])
    return drawn + tf.cast(spec.minimum, spec.dtype)


def _sample_normal(parameters: Mapping[str, tf.Tensor]) -> tf.Tensor:
    loc = parameters['loc']
    return loc + parameters['scale_diag'] * tf.random.normal(tf.shape(loc), dtype=loc.dtype)


def _output_spec(path: pathlib.Path, signature: str, names: list[str]) -> list[dict[str, Any]]:
    """Returns the content of output_spec.json:
    the logging name, and the tensor in the graph of the SavedModel.
    """
    saved = saved_model_pb2.SavedModel.FromString((path / tf.saved_model.SAVED_MODEL_FILENAME_PB).read_bytes())
    outputs = saved.meta_graphs[0].signature_def[signature].outputs
    specs = []
    for name in names:
        tensor, _, port = outputs[name].name.partition(':')
        dtype = tf.as_dtype(outputs[name].dtype)
        if dtype not in _TYPES:
            raise UserValueError(f'got the output {name} of {dtype.name}; need integers or floats of 32 or 64 bits')
        shape = [dim.size for dim in outputs[name].tensor_shape.dim]
        tensor_spec_ = {'name': tensor, 'port': int(port or 0), 'type': _TYPES[dtype], 'shape': shape}
        specs.append({'logging_name': name, 'tensor_spec': tensor_spec_})
    return specs


def _check_names(model: bytes, outputs: list[dict[str, Any]]) -> None:
    found = {tensor['name'] for tensor in converted.tflite_interpreter(model).get_output_details()}
    wanted = {f'{each["tensor_spec"]["name"]}:{each["tensor_spec"]["port"]}' for each in outputs}
    if found != wanted:
        raise RuntimeError(f'got the outputs {sorted(found)} of the TFLite model; need {sorted(wanted)}')


def save_fixed_batch(version: pathlib.Path, batch_size: int, output: pathlib.Path) -> None:
    """Saves only the signature 'serving_default' of an exported version, for one batch size.

    Args:
      output: the SavedModel's path; it is written atomically.

    Raises:
      ValueError: if `output` exists.
    """
    module = tf.Module(name='policy')
    with loaded_model.naming_damage(version):
        module.policy = tf.saved_model.load(str(version))
        serving = module.policy.signatures[signatures.DEFAULT]
        specs = {
            name: tf.TensorSpec([batch_size, *spec.shape[1:]], spec.dtype, name)
            for name, spec in serving.structured_input_signature[1].items()
        }

    @tf.function(input_signature=[*specs.values()], autograph=False)
    def fixed(*tensors: tf.Tensor) -> dict[str, tf.Tensor]:
        return {name: tf.identity(value) for name, value in serving(**dict(zip(specs, tensors, strict=True))).items()}

    with numbered.new(output) as written:
        tf.saved_model.save(module, str(written), signatures={signatures.DEFAULT: fixed})
