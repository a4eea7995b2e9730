"""A client of a policy server, or of TensorFlow Serving with an exported policy."""

import types
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from tflearn.core import tokens
from tflearn.net.grpc_server import connect
from tflearn.policies import plain_nests, signatures
from tflearn.serving import tensor_protos
from tflearn.serving.protos import predict_pb2, prediction_service_pb2_grpc


class PolicyClient:
    """Requests actions from a server. Thread-safe."""

    def __init__(
        self,
        address: str,
        model: str = 'greedy_policy',
        version: int | None = None,
        timeout_secs: float = 10.0,
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

    def predict(
        self, inputs: Mapping[str, np.ndarray], signature: str = signatures.DEFAULT
    ) -> tuple[dict[str, np.ndarray], int]:
        """Computes one signature on the server.

        Args:
          inputs: arrays [B, ...] of the signature's dtypes, by name.

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
        response = self._stub.Predict(request, self._timeout_secs, self._metadata)
        outputs = {name: tf.make_ndarray(tensor) for name, tensor in response.outputs.items()}
        return outputs, response.model_spec.version.value

    def initial_state(self, batch_size: int) -> dict[str, np.ndarray]:
        """Returns the initial policy state, by name, of `batch_size` episodes of a recurrent policy."""
        return self.predict({'batch_size': np.asarray(batch_size, np.int32)}, signatures.INITIAL_STATE)[0]

    def action(
        self, time_step: Any, policy_state: Mapping[str, np.ndarray] = types.MappingProxyType({})
    ) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """Chooses the actions of one step.

        Args:
          time_step: a numpy `TimeStep` [B, ...].
          policy_state: the state that `initial_state` or the last call returned; empty for a policy without one.

        Returns:
          The actions [B, ...] by name ('action' if the action spec is not nested), and the next policy state.

        Raises:
          grpc.RpcError: with the server's status.
        """
        leaves = plain_nests.flat_dict(plain_nests.to_plain(time_step))
        outputs, _ = self.predict({**leaves, **policy_state}, 'action')
        state = {name: value for name, value in outputs.items() if name.startswith('policy_state')}
        return {name: value for name, value in outputs.items() if name.startswith('action')}, state

    def close(self) -> None:
        self._channel.close()
