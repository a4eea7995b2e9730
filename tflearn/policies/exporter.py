"""Exports TF-Agents policies, and Keras models, as SavedModels,
for programs that have neither tflearn nor TF-Agents.

    policy = tf.saved_model.load('.../policies/greedy_policy/9000')
    state = policy.get_initial_state(batch_size)
    step = policy.action(step_type, reward, discount, observation, state)  # a dict: action, policy_state, info
    actions = policy.signatures['serving_default'](observation=...)['action']

TF-Agents can load it too: `tf_agents.policies.policy_loader.load(path)`.

Arguments and results are dicts, lists and tuples of tensors with a leading batch dimension of any
size.
"""

import functools
import pathlib
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf
from absl import logging
from tf_agents.policies import policy_saver
from tf_agents.specs import tensor_spec

import tflearn
from tflearn.core.action_mask import mask_of
from tflearn.core.errors import UserValueError
from tflearn.core.finite import finite_check
from tflearn.core.settings import PositiveInt, checked
from tflearn.files import numbered, temporary
from tflearn.files.run_dir import write_json
from tflearn.policies import signatures, traced_functions, updates, versions
from tflearn.policies.export_check import ExportCheck, Snapshot
from tflearn.policies.updates import ModelFiles

# A key of the metadata: the names of the observation's leaves, in the order of the replay's
# columns.
OBSERVATION_NAMES = 'observation_names'
# A key of the metadata: the path of the observation's part that marks legal actions, if there is
# one.
ACTION_MASK = 'action_mask'
# The file by which TF-Agents' loader knows the specs, as `PolicySaver` writes it.
_SPECS = pathlib.Path(policy_saver.POLICY_SPECS_PBTXT)


class PolicyExporter:
    """Writes versions of one policy, `<directory>/<train step>/`, atomically.

    The policy is traced once, in the constructor, and saved as a SavedModel once, with the first
    version. An export takes a snapshot of the weights (the only part that must not run during a
    train step), writes them next to the same graph, compares the result with the live policy (see
    `ExportCheck`), and then renames it.

    A directory has one exporter and any number of readers.
    """

    @checked
    def __init__(
        self, policy: Any, directory: pathlib.Path, keep_last: PositiveInt = 5, keep_updates: PositiveInt = 100
    ):
        """Traces the policy, and removes the temporary files of a killed exporter from `directory`.

        Args:
          policy: a TF-Agents `TFPolicy` whose variables exist. A stochastic one draws different
            numbers in each process that loads it, whatever seed `tf.random.set_seed` has set here.
          keep_last: the number of versions to keep, besides the best one.

        Raises:
          ValueError: if a number is below 1, the specs give two tensors the same name, or this is
            called in the scope of a distribution strategy (which would distribute loaded variables;
            the policy's own may be distributed).
        """
        _check_outside_scope()
        self._directory = directory
        self._keep_last, self._keep_updates = keep_last, keep_updates
        for folder in (directory, updates.folder(directory)):
            temporary.remove_leftovers(folder)
        self._live = traced_functions.traced(policy)
        self._signatures = traced_functions.named(policy, self._live)
        self._others = {_SPECS: _specs(policy)}
        self._check = ExportCheck(self._live, policy, self._signatures)
        self._constant_facts = _constant_facts(policy)
        self._read_all = tf.function(
            lambda: [_on_host(variable) for variable in self._live.model_variables], autograph=False
        )
        self._check_finite = finite_check(self._named(self._read_all()))
        self._writing = threading.Lock()

    @functools.cached_property
    def _files(self) -> ModelFiles:
        # Saving takes a third of a second in Python alone: the first version's thread does it, not
        # the constructor.
        return ModelFiles.of(self._live, self._signatures, self._directory, self._others)

    def export(self, train_step: int, metadata: Mapping[str, Any]) -> pathlib.Path:
        """Exports the policy's current weights. Must not run during a train step.

        Args:
          train_step: the train step, which names the version.
          metadata: JSON values that are written beside the model: env_steps, policy_version, ...
            The exporter adds train_step, exported_at (unix seconds), the specs and the versions of
            tflearn and TensorFlow.

        Returns:
          The version's path. An existing version is not overwritten, but a first export is compared
          nevertheless.

        Raises:
          ExportMismatch: if the exported policy acts differently from the live one; the version is
            not published.
          OSError: if the version cannot be written.
          FloatingPointError: if the weights are not finite; the version is not published.
          ValueError: inside the scope of a distribution strategy.
        """
        self.snapshot(train_step, metadata)()
        return self._directory / str(int(train_step))

    @property
    def checked(self) -> bool:
        """Whether a first version was compared."""
        return self._check.has_compared

    def snapshot(self, train_step: int, metadata: Mapping[str, Any], update: bool = False) -> Callable[[], None]:
        """Takes a snapshot of the policy; arguments as for `export`.
        Must not run during a train step.

        Args:
          update: whether only the weights are exported, see `updates`; nothing but a warning is
            logged before a first complete version was compared with the live policy.

        Returns:
          A function that writes it, in any thread, also during train steps.

        Raises:
          ValueError: inside the scope of a distribution strategy.
        """
        _check_outside_scope()
        weights, live = self._read_all(), self._check.snapshot()
        facts = {**metadata, 'train_step': int(train_step), 'exported_at': time.time(), **self._constant_facts}
        write = self._write_update if update else self._write_version
        return lambda: write(int(train_step), weights, live, facts)

    def drop_newer_than(self, train_step: int) -> list[int]:
        """Moves versions and updates newer than `train_step` aside,
        once an older checkpoint was restored.

        Call it before the first export. Versions that an evaluation has marked as kept stay.
        Returns the others' steps.
        """
        versions.drop_newer_than(updates.folder(self._directory), train_step, updates.NEEDED)
        return versions.drop_newer_than(self._directory, train_step)

    def _write_version(
        self, train_step: int, weights: Sequence[tf.Tensor], live: Snapshot, facts: Mapping[str, Any]
    ) -> None:
        version = self._directory / str(train_step)
        with self._writing:
            self._publish(version, weights, live, facts, self._files.write_graph)
            versions.prune(self._directory, self._keep_last, spare=train_step)

    def _named(self, weights: Sequence[tf.Tensor]) -> dict[str, tf.Tensor]:
        names = (f'{variable.name} ({i})' for i, variable in enumerate(self._live.model_variables))
        return dict(zip(names, weights, strict=True))

    def _write_update(
        self, train_step: int, weights: Sequence[tf.Tensor], live: Snapshot, facts: Mapping[str, Any]
    ) -> None:
        update = updates.folder(self._directory) / str(train_step)
        if live[0]:
            logging.warning('skipped the update %s: no full export was compared with the live policy yet', update)
            return
        with self._writing:
            updates.write_model(self._directory, self._files)
            self._publish(update, weights, live, {**facts, updates.GRAPH: self._files.digest})
            updates.prune(self._directory, self._keep_updates)

    def _publish(
        self,
        path: pathlib.Path,
        weights: Sequence[tf.Tensor],
        live: Snapshot,
        facts: Mapping[str, Any],
        write_graph: Callable[[pathlib.Path], None] | None = None,
    ) -> None:
        exists = path.exists()
        if exists and not live[0]:
            logging.info('the policy of step %s is exported already: did not overwrite %s', path.name, path)
            return
        self._check_finite(self._named(weights), f'weights for the export {path}')
        with numbered.writing(path) as written:
            if write_graph:
                write_graph(written)
            self._files.write_weights(written, weights)
            write_json(written / versions.METADATA, facts)
            self._check.compare(written, self._files, weights, live)
            if not exists:  # otherwise it was written only to be compared
                versions.publish(written, path)


def _constant_facts(policy: Any) -> dict[str, Any]:
    """Returns the metadata that all versions have in common."""
    time_step_spec = policy.time_step_spec
    specs = {name: getattr(time_step_spec, name) for name in time_step_spec._fields}
    specs |= {name: getattr(policy, f'{name}_spec') for name in ('action', 'policy_state', 'info')}
    mask = mask_of(policy)
    return {
        'specs': {name: signatures.describe(spec) for name, spec in specs.items()},
        OBSERVATION_NAMES: signatures.names_in_order(time_step_spec.observation, 'observation'),
        **({} if mask is None else {ACTION_MASK: mask.path}),
        'tflearn_version': tflearn.__version__,
        'tensorflow_version': tf.__version__,
    }


def _specs(policy: Any) -> bytes:
    """Returns the content of the file `_SPECS`."""
    # The policy state as `get_initial_state` of the export returns it.
    policy_state_spec = signatures.to_plain(policy.policy_state_spec)
    specs = {'collect_data_spec': policy.collect_data_spec, 'policy_state_spec': policy_state_spec}
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, _SPECS)
        tensor_spec.to_pbtxt_file(str(path), specs)
        return path.read_bytes()


def _on_host(variable: tf.Variable) -> tf.Tensor:
    # No copy on CPU: the tensor is immutable, and an update of the variable copies the value first.
    with tf.device('CPU:0'):
        return tf.identity(variable.read_value())


def _check_outside_scope() -> None:
    if tf.distribute.has_strategy():
        name = type(tf.distribute.get_strategy()).__name__
        raise UserValueError(f'got a PolicyExporter in the scope of a {name}; need it outside; leave the scope first')
