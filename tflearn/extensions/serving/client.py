"""Clients of a policy server, or of TensorFlow Serving with an exported policy:
PolicyClient and RemotePolicy.
"""

import threading
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import grpc
import numpy as np
import tensorflow as tf
from google.protobuf import json_format, struct_pb2
from tf_agents.trajectories import policy_step
from tf_agents.trajectories import time_step as ts

from tflearn.core import tokens
from tflearn.core.errors import UserValueError
from tflearn.core.types import check_batch
from tflearn.core.waiting import wait_until
from tflearn.extensions.serving import tensor_protos
from tflearn.extensions.serving.apprentice import DEFAULT_ACTION
from tflearn.extensions.serving.tensor_protos import (
    get_model_metadata_pb2,
    get_model_status_pb2,
    model_service_pb2_grpc,
    predict_pb2,
    prediction_service_pb2_grpc,
)
from tflearn.net.grpc_server import connect
from tflearn.policies import signatures
from tflearn.policies.loader import VersionGone
from tflearn.policies.versions import VOCABULARIES

_Answer = TypeVar('_Answer')

_ACTION = 'action'
_CALL_SECS = 10.0
# The codes of a server that starts, restarts or is overloaded for a while. NOT_FOUND, of a policy that is not there
# yet, is final where a request names a version.
_TEMPORARY = (
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.DEADLINE_EXCEEDED,
)
# Of a server that cannot answer now, whatever is asked; the other codes are of mistakes.
_OUT = (
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.INTERNAL,
    grpc.StatusCode.UNKNOWN,
)


class Decision(NamedTuple):
    """Actions, of a server or the product's own.

    Attributes:
      actions: the actions to take, [B, ...]; of a nest by the names of the outputs.
      version: the version of the policy that was asked; None: no server has answered, and the
        actions are the default.
      error: why no server has answered; '' if one has.
      state: the next policy state by name, of a recurrent policy; without an answer that which was
        sent.
    """

    actions: Any
    version: int | None
    error: str
    state: dict[str, np.ndarray]


class PolicyClient:
    """Requests actions from a server. Thread-safe."""

    def __init__(
        self,
        address: str,
        model: str = 'greedy_policy',
        version: int | None = None,
        timeout_secs: float = _CALL_SECS,
        credentials: Any = None,
        token: str = '',
    ):
        """
        Args:
          address: the server's 'host:port'.
          version: the version that answers; None is the newest.
          credentials: `grpc.ssl_channel_credentials(...)`; None is no encryption.
          token: what the server knows this client by, if it asks for that.
        """
        self._channel = connect(address, credentials)
        self._metadata = (('authorization', tokens.header(token)),) if token else ()
        self._stub = prediction_service_pb2_grpc.PredictionServiceStub(self._channel)
        self._model = model
        self._version = version
        self._timeout_secs = timeout_secs

    def record_outcomes(self, outcomes: Sequence[Mapping[str, Any]]) -> None:
        """Reports what came of decisions: all are taken, or none.

        Args:
          outcomes: each with an 'event_id', a 'reward', and if they are known a 'time' and an
            'outcome_id'; or with 'activated': True in place of the reward, if a deferred decision
            was shown.

        Raises:
          grpc.RpcError: with the server's status: then send them again.
        """
        message: Any = struct_pb2.Struct()
        message.update({'outcomes': [dict(outcome) for outcome in outcomes]})
        call = self._channel.unary_unary(tensor_protos.OUTCOMES)
        call(message.SerializeToString(), self._timeout_secs, self._metadata)

    def predict(
        self,
        inputs: Mapping[str, np.ndarray],
        signature: str = signatures.DEFAULT,
        metadata: Mapping[str, str] = types.MappingProxyType({}),
        timeout_secs: float | None = None,
    ) -> tuple[dict[str, np.ndarray], int]:
        """Computes one signature on the server.

        Args:
          inputs: arrays [B, ...] of the signature's dtypes, by name.
          metadata: of the request, such as its 'event-id'.
          timeout_secs: the time in which it has to be answered; None is that of the client.

        Returns:
          The outputs by name, and the version that computed them.

        Raises:
          grpc.RpcError: with the server's status; UNAVAILABLE if there is no server.
        """
        request = predict_pb2.PredictRequest()
        request.model_spec.name = self._model
        request.model_spec.signature_name = signature
        if self._version is not None:
            request.model_spec.version.value = self._version
        for name, value in inputs.items():
            tensor_protos.fill(request.inputs[name], np.asarray(value), content=True)
        timeout_secs = self._timeout_secs if timeout_secs is None else timeout_secs
        response = self._stub.Predict(request, timeout_secs, (*self._metadata, *metadata.items()))
        outputs = {name: tf.make_ndarray(tensor) for name, tensor in response.outputs.items()}
        return outputs, response.model_spec.version.value

    def decide(
        self,
        inputs: Mapping[str, np.ndarray],
        default: Any,
        timeout_secs: float,
        metadata: Mapping[str, str] = types.MappingProxyType({}),
    ) -> Decision:
        """Chooses actions; the product's own ones if no server answers in time.

        Args:
          inputs: arrays [B, ...] by name, with the policy state of a recurrent policy.
          default: the product's own choice, an array [B, ...], or a mapping of them by the names of
            a nest's outputs, such as 'action_arm'. A server with --apprentice answers with a choice
            of one Discrete action too.
          timeout_secs: the time in which the server has to answer.
          metadata: of the request, such as its 'event-id'.

        Returns:
          The decision. One without a version is not logged: report no outcome of it.

        Raises:
          ValueError: if there is no default for each row, or the policy's actions have other names.
          grpc.RpcError: with the server's status if the request is wrong, or the client may not
            ask.
        """
        own = default if isinstance(default, Mapping) else {_ACTION: default}
        actions, rows = {name: np.asarray(leaf) for name, leaf in own.items()}, len(next(iter(inputs.values())))
        if any(leaf.shape[:1] != (rows,) or leaf.dtype.kind not in 'biuf' for leaf in actions.values()):
            raise UserValueError(f'got the default {default}; need an action for each of the {rows} rows')
        choice = actions.get(_ACTION)
        if choice is not None and choice.ndim == 1 and choice.dtype.kind in 'iu':
            metadata = {**metadata, DEFAULT_ACTION: ','.join(map(str, choice.tolist()))}
        version, error = None, ''
        try:
            outputs, version = self.predict(inputs, metadata=metadata, timeout_secs=timeout_secs)
        except grpc.RpcError as failed:
            if failed.code() not in _OUT:
                raise
            outputs, error = {**inputs, **actions}, f'{failed.code().name}: {failed.details()}'
        chosen, state = _named(_ACTION, outputs), _named('policy_state', outputs)
        if chosen.keys() != actions.keys():
            raise UserValueError(f'got a default of {", ".join(actions)}; need one of {", ".join(chosen)}')
        return Decision(chosen if isinstance(default, Mapping) else chosen[_ACTION], version, error, state)

    def slate(
        self, inputs: Mapping[str, np.ndarray], num_slots: int, name: str, mask: str, position: str = ''
    ) -> list[int]:
        """Chooses an item for each slot, one after the other, and none twice.

        Each slot is a decision with the id '<name>-<slot>' and the arm `name`: a server logs it
        with its probability given the slots before it.

        Args:
          inputs: arrays [1, ...] by name; the mask has the items that may be shown.
          num_slots: the number of slots.
          name: the slate's, which no other one has.
          mask: the name of the input that marks the items, such as 'observation_mask'.
          position: the name of the input that takes the number of the slot; '' has none.

        Returns:
          The indices of the items, in the order of the slots.

        Raises:
          ValueError: if there are fewer items than slots.
          grpc.RpcError: with the server's status.
        """
        left, items = np.array(inputs[mask]), list[int]()
        if np.count_nonzero(left) < num_slots:
            raise UserValueError(f'got {np.count_nonzero(left)} items for {num_slots} slots; need one for each')
        for slot in range(num_slots):
            given = {**inputs, mask: left}
            if position:
                given[position] = np.full_like(inputs[position], slot)
            metadata = {'event-id': f'{name}-{slot}', 'experiment-arm': name, 'canary-key': name}
            items.append(int(self.predict(given, metadata=metadata)[0]['action'][0]))
            left[0, items[-1]] = 0
        return items

    def initial_state(self, batch_size: int) -> dict[str, np.ndarray]:
        """Returns the initial policy state, by name,
        of `batch_size` episodes of a recurrent policy.
        """
        return self.predict({'batch_size': np.asarray(batch_size, np.int32)}, signatures.INITIAL_STATE)[0]

    def action(
        self, time_step: Any, policy_state: Mapping[str, np.ndarray] = types.MappingProxyType({})
    ) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """Chooses the actions of one step.

        Args:
          time_step: a numpy `TimeStep` [B, ...].
          policy_state: the state that `initial_state` or the last call returned; empty for a policy
            without one.

        Returns:
          The actions [B, ...] by name ('action' if the action spec is not nested), and the next
          policy state.

        Raises:
          grpc.RpcError: with the server's status.
        """
        leaves = signatures.flat_dict(signatures.to_plain(time_step))
        outputs, _ = self.predict({**leaves, **policy_state}, 'action')
        return _named(_ACTION, outputs), _named('policy_state', outputs)

    def newest_version(self) -> int | None:
        """Returns the newest version that is served;
        None if there is none, or the server does not respond.
        """
        request = get_model_status_pb2.GetModelStatusRequest()
        request.model_spec.name = self._model
        stub = model_service_pb2_grpc.ModelServiceStub(self._channel)
        try:
            response = stub.GetModelStatus(request, self._timeout_secs, self._metadata)
        except grpc.RpcError as error:
            if error.code() in _TEMPORARY:
                return None
            raise
        available = get_model_status_pb2.ModelVersionStatus.AVAILABLE
        served = [status.version for status in response.model_version_status if status.state == available]
        return max(served, default=None)

    def state_spec(self, version: int) -> Any:
        """Returns the spec of a version's policy state: () for a policy without one, a spec,
        or a dict of specs.

        Raises:
          VersionGone: if the version is not served any more.
        """
        definitions = get_model_metadata_pb2.SignatureDefMap()
        try:
            self._unpack_metadata('signature_def', version, definitions)
        except grpc.RpcError as error:  # also of a server that restarts: the version is looked for again
            raise VersionGone(f'got no version {version} of {self._model!r} any more') from error
        leaves = {
            name.removeprefix('policy_state').removeprefix('_'): tf.TensorSpec(
                [None if dimension.size < 0 else dimension.size for dimension in info.tensor_shape.dim[1:]],
                tf.dtypes.as_dtype(info.dtype),
                name,
            )
            for name, info in definitions.signature_def[signatures.DEFAULT].inputs.items()
            if name.startswith('policy_state')
        }
        return leaves.get('', leaves or ())

    def vocabularies(self) -> dict[str, list[str]]:
        """Returns the values of the categories that the policy was trained on;
        of `tflearn-serve` only.

        Returns:
          By 'action' or 'observation.<name>', the values in the order of their numbers: an action's
          are counted from 0, an observation's from 1, where 0 is any other value.

        Raises:
          grpc.RpcError: with the server's status.
        """
        words: Any = struct_pb2.Struct()
        self._unpack_metadata(VOCABULARIES, self._version, words)
        return dict(json_format.MessageToDict(words))

    def _unpack_metadata(self, field: str, version: int | None, message: Any) -> None:
        request = get_model_metadata_pb2.GetModelMetadataRequest(metadata_field=[field])
        request.model_spec.name = self._model
        if version is not None:
            request.model_spec.version.value = version
        response = self._stub.GetModelMetadata(request, self._timeout_secs, self._metadata)
        response.metadata[field].Unpack(message)

    def close(self) -> None:
        """Closes the connection."""
        self._channel.close()


def _named(nest: str, tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Returns the tensors of a nest: those whose names begin with its name."""
    return {name: value for name, value in tensors.items() if name.startswith(nest)}


class RemotePolicy:
    """A policy whose actions TensorFlow Serving, or `tflearn-serve`, computes.

    It waits for a server that is unavailable or overloaded for a while. Each step sends the policy
    state to the server and receives the next one.
    """

    def __init__(
        self,
        address: str,
        model: str,
        specs: Any,
        version: int | None = None,
        timeout_secs: float = 60.0,
        stop: threading.Event | None = None,
    ):
        """Does not connect yet.

        Args:
          address: the server's 'host:port'.
          specs: an object with the specs of the exported TF-Agents policy: `time_step_spec`,
            `action_spec`, `policy_state_spec`, `info_spec`.
          version: the version that acts; None is the one that the server chooses at each step.
        """
        self.time_step_spec = specs.time_step_spec
        self._what = f'the policy {model!r} served at {address}'
        self._model, self._version = model, version
        self._specs = specs
        self._timeout_secs, self._stop = timeout_secs, stop
        self._client = PolicyClient(address, model, version, _CALL_SECS)

    def initial_state(self, batch_size: int) -> Any:
        """Returns the initial policy state of `batch_size` episodes;
        () for a policy without one.
        """
        if not tf.nest.flatten(self._specs.policy_state_spec):
            return ()
        return self._nest('policy_state', self._ask(lambda: self._client.initial_state(batch_size)))

    def action(self, time_step: ts.TimeStep, policy_state: Any) -> tuple[Any, Any]:
        """Returns (action, policy state) for time steps [B] of numpy arrays."""
        step = self.step(time_step, policy_state)
        return step.action, step.state

    def step(self, time_step: ts.TimeStep, policy_state: Any) -> policy_step.PolicyStep:
        """Acts on time steps [B] of numpy arrays; returns numpy arrays.

        Raises:
          VersionGone: if the version is not served any more.
          TimeoutError: if the server was unavailable or overloaded for too long.
          grpc.RpcError: for any other status of the server.
        """
        inputs = signatures.flat_dict(signatures.to_plain(time_step))
        inputs |= signatures.flat_dict({'policy_state': signatures.to_plain(policy_state)})
        outputs, _ = self._ask(lambda: self._client.predict(inputs, 'action'))
        return policy_step.PolicyStep(*(self._nest(name, outputs) for name in ('action', 'policy_state', 'info')))

    def check(self, time_step: ts.TimeStep) -> None:
        """Checks that time steps [B] have the policy's spec.

        Raises:
          ValueError: naming the leaf that differs.
        """
        check_batch(time_step, self.time_step_spec, len(time_step.step_type), 'time step')

    def close(self) -> None:
        """Closes the connection."""
        self._client.close()

    def _nest(self, name: str, outputs: Mapping[str, np.ndarray]) -> Any:
        spec = getattr(self._specs, f'{name}_spec')
        plain = signatures.to_plain(spec)
        leaves = [outputs[leaf] for leaf, _ in signatures.flat(plain, name)]
        return signatures.from_plain(tf.nest.pack_sequence_as(plain, leaves), spec)

    def _ask(self, call: Callable[[], _Answer]) -> _Answer:
        last_error = ''

        def answer() -> tuple[_Answer] | None:
            nonlocal last_error
            try:
                return (call(),)
            except grpc.RpcError as error:
                if error.code() == grpc.StatusCode.NOT_FOUND and self._version is not None:
                    raise VersionGone(f'got no version {self._version} of {self._what} any more') from error
                if error.code() in _TEMPORARY:
                    last_error = f' ({error.code().name}: {error.details()})'
                    return None
                raise

        return wait_until(answer, lambda: self._what + last_error, self._timeout_secs, self._stop)[0]
