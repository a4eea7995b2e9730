"""Exports TF-Agents policies as SavedModels for people who have neither tflearn nor TF-Agents.

    policy = tf.saved_model.load('.../policies/greedy_policy/9000')
    state = policy.get_initial_state(batch_size)
    step = policy.action(step_type, reward, discount, observation, state)  # a dict: action, policy_state, info
    actions = policy.signatures['serving_default'](observation=...)['action']

Arguments and results are dicts, lists and tuples of tensors with a leading batch dimension of any size.
"""

import pathlib
import shutil
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf
from absl import logging

import tflearn
from tflearn.background import Background
from tflearn.policies import export_check, plain_nests, signatures, versions
from tflearn.run_dir import write_json

_WEIGHTS = pathlib.Path(tf.saved_model.VARIABLES_DIRECTORY, tf.saved_model.VARIABLES_FILENAME)
_VALUE = '.ATTRIBUTES/VARIABLE_VALUE'


class PolicyExporter:
    """Writes versions of one policy: `<directory>/<train step>/`, whole or not there.

    The policy is traced and saved as a SavedModel once, in the constructor. An export takes a snapshot of the weights
    (the only part that must not run beside a train step), then writes them next to the same graph.

    One exporter writes to a directory; readers are as many as they like.
    """

    def __init__(self, policy: Any, directory: pathlib.Path, keep_last: int = 5):
        """Traces the policy, and removes what a killed exporter left in `directory`.

        Args:
          policy: a TF-Agents `TFPolicy` whose variables exist. A stochastic one draws anew wherever it is loaded,
            whatever `tf.random.set_seed` says here.
          directory: of the versions, for instance `RunDir.policy('greedy_policy')`.
          keep_last: versions that are kept.

        Raises:
          ValueError: if `keep_last` is below 1, the specs give two tensors the same name, or this is in the scope of a
            distribution strategy (where what is loaded would be distributed; the policy itself may be).
        """
        if keep_last < 1:
            raise ValueError(f'got keep_last={keep_last}; need at least 1')
        _check_outside_scope()
        self._policy = policy
        self._directory = directory
        self._keep_last = keep_last
        self._checked = False
        versions.remove_leftovers(directory)
        self._live = signatures.traced(policy)
        self._signatures = signatures.named(policy, self._live)
        self._graph, self._constants, self._keys = self._template()
        self._read_all = tf.function(lambda: [_on_host(variable) for variable in self._live.model_variables])
        self._background = Background('policy_exporter')
        self._writing = threading.Lock()

    def _template(self) -> tuple[dict[pathlib.Path, bytes], dict[str, Any], list[str]]:
        """Returns what of the SavedModel does not depend on the weights: files, saved values, keys of the weights."""
        path = versions.temporary(self._directory, 'template')
        try:
            tf.saved_model.save(self._live, str(path), signatures=self._signatures)
            files = {file.relative_to(path): file for file in path.rglob('*') if file.is_file()}
            # The fingerprint is one of the weights too, and optional.
            graph = {
                name: file.read_bytes()
                for name, file in files.items()
                if name.parts[0] not in (tf.saved_model.VARIABLES_DIRECTORY, 'fingerprint.pb')
            }
            # A SavedModel's weights are a checkpoint of its root object.
            reader = tf.train.load_checkpoint(str(path / _WEIGHTS))
            keys = [f'model_variables/{i}/{_VALUE}' for i in range(len(self._live.model_variables))]
            others = sorted(reader.get_variable_to_shape_map().keys() - set(keys))
            return graph, {key: reader.get_tensor(key) for key in others}, keys
        finally:
            shutil.rmtree(path, ignore_errors=True)

    def export(self, train_step: int, metadata: Mapping[str, Any]) -> pathlib.Path:
        """Exports the policy as it is now. Must not run beside a train step.

        The first version of an exporter is loaded again before it gets its name, and must act as the live policy does.

        Args:
          train_step: names the version.
          metadata: JSON values that are written beside the model: env_steps, policy_version, ... The exporter adds
            train_step, exported_at (unix seconds), the specs and the versions of tflearn and TensorFlow.

        Returns:
          The version's path. A version that is there already is left as it is.

        Raises:
          RuntimeError: if the exported policy acts otherwise than the live one.
          OSError: if it cannot be written.
          ValueError: inside the scope of a distribution strategy.
        """
        _check_outside_scope()
        version = self._directory / str(int(train_step))
        self._export(version, self._read_all(), {**metadata, 'train_step': int(train_step)}, not self._checked)
        self._checked = True
        return version

    def export_soon(self, train_step: int, metadata: Mapping[str, Any]) -> None:
        """Takes the snapshot now and exports it on a thread of its own. A newer one replaces one that is not begun.

        A failure is logged; it is raised by `wait`, unless a later export succeeds.

        Args:
          train_step: as for `export`.
          metadata: as for `export`.
        """
        if not self._checked:
            self.export(train_step, metadata)
            return
        version, weights = self._directory / str(int(train_step)), self._read_all()
        facts = {**metadata, 'train_step': int(train_step)}
        self._background.submit(lambda: self._export(version, weights, facts))

    def wait(self, timeout_secs: float = 600.0) -> None:
        """Waits until all is exported.

        Raises:
          TimeoutError: if it takes longer.
          OSError, tf.errors.OpError: what made the newest export fail.
        """
        self._background.join(timeout_secs)
        self._background.raise_failure()

    def _export(
        self, version: pathlib.Path, weights: Sequence[tf.Tensor], facts: Mapping[str, Any], check: bool = False
    ) -> None:
        with self._writing:
            if version.exists():
                logging.info('the policy of step %s is exported already: left %s as it is', version.name, version)
                return
            written = versions.temporary(self._directory, version.name)
            try:
                self._write(written, weights, facts)
                if check:
                    export_check.check_acts_alike(
                        self._live, tf.saved_model.load(str(written)), self._policy, self._signatures
                    )
                versions.publish(written, version)
            except BaseException:
                versions.remove(written)
                raise
            versions.prune(self._directory, self._keep_last, spare=int(version.name))

    def drop_newer_than(self, train_step: int) -> list[int]:
        """Moves versions beyond `train_step` aside: of training that was lost when an older checkpoint was restored.

        To be called before the first export. Versions that an evaluation holds on to stay.

        Returns:
          The train steps of the versions that were moved.
        """
        return versions.drop_newer_than(self._directory, train_step)

    def _write(self, path: pathlib.Path, weights: Sequence[tf.Tensor], metadata: Mapping[str, Any]) -> None:
        for name, content in self._graph.items():
            (path / name).parent.mkdir(parents=True, exist_ok=True)
            (path / name).write_bytes(content)
        (path / _WEIGHTS).parent.mkdir(exist_ok=True)
        with tf.device('CPU:0'):
            tf.raw_ops.SaveV2(
                prefix=str(path / _WEIGHTS),
                tensor_names=[*self._keys, *self._constants],
                shape_and_slices=[''] * (len(self._keys) + len(self._constants)),
                tensors=[*weights, *map(tf.constant, self._constants.values())],
            )
        time_step_spec = self._policy.time_step_spec
        specs = {name: getattr(time_step_spec, name) for name in time_step_spec._fields}
        specs |= {name: getattr(self._policy, f'{name}_spec') for name in ('action', 'policy_state', 'info')}
        facts = {
            'exported_at': time.time(),
            'specs': {name: plain_nests.describe(spec) for name, spec in specs.items()},
            'tflearn_version': tflearn.__version__,
            'tensorflow_version': tf.__version__,
        }
        write_json(path / versions.METADATA, {**metadata, **facts})


def _on_host(variable: tf.Variable) -> tf.Tensor:
    # No copy on CPU: a tensor is immutable, whoever updates the variable while it is there copies first.
    with tf.device('CPU:0'):
        return tf.identity(variable.read_value())


def _check_outside_scope() -> None:
    if tf.distribute.has_strategy():
        name = type(tf.distribute.get_strategy()).__name__
        raise ValueError(f'got a PolicyExporter in the scope of a {name}; need it outside; leave the scope first')
