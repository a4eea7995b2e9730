"""TensorFlow Serving's PredictionService and ModelService: bytes of a request -> the response message, or an error.

Messages are parsed here, since gRPC does not answer malformed ones with INVALID_ARGUMENT.
"""

import math
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from google.protobuf.message import DecodeError

from tflearn.policies import signatures
from tflearn.serving import tensor_protos
from tflearn.serving.clients import check_policy
from tflearn.serving.models import ModelHolder, Models
from tflearn.serving.protos import get_model_metadata_pb2, get_model_status_pb2, predict_pb2
from tflearn.serving.request_queue import Arrays, RequestQueue
from tflearn.serving.served_version import InvalidRequest, ServedVersion, Signature

_SIGNATURES = 'signature_def'


class PredictionService:
    """The methods of both services, by their full gRPC names in `methods`."""

    def __init__(
        self,
        models: Models,
        requests: RequestQueue,
        max_bytes: int,
        record_rows: Callable[[str, int], object] = lambda model, rows: None,
    ):
        """
        Args:
          max_bytes: the size of the values of the largest request; a few bytes may stand for a value that is repeated.
          record_rows: called with the model's name and the number of rows of each request that was computed.
        """
        self._models = models
        self._requests, self._max_bytes = requests, max_bytes
        self._predicted = record_rows
        self.methods: Mapping[str, Callable[[bytes], Awaitable[Any]]] = {
            '/tensorflow.serving.PredictionService/Predict': self.predict,
            '/tensorflow.serving.PredictionService/GetModelMetadata': self.get_model_metadata,
            '/tensorflow.serving.ModelService/GetModelStatus': self.get_model_status,
        }

    async def predict(self, data: bytes) -> Any:
        """Answers a PredictRequest by exactly one version, which the response names.

        Raises:
          InvalidRequest: if it is malformed or does not fit the signature.
          NotServed: if the model or the version is not served.
          NotReady: while no version is loaded.
          Overloaded: if too many requests wait.
          PermissionDenied: if the client may not ask this policy.
        """
        request = _parse(predict_pb2.PredictRequest, data)
        model = self._version(request.model_spec)
        signature = model.signature(request.model_spec.signature_name or signatures.DEFAULT)
        unknown = set(request.output_filter).difference(signature.outputs)
        if unknown:
            raise InvalidRequest(f'got output_filter {sorted(unknown)}; need some of {list(signature.outputs)}')
        outputs, rows = await self._compute(signature, request.inputs)
        response = predict_pb2.PredictResponse()
        response.model_spec.name = request.model_spec.name
        response.model_spec.version.value = model.version
        response.model_spec.signature_name = signature.name
        for name in request.output_filter or outputs:
            if name not in response.outputs:  # the filter may name it twice
                tensor_protos.fill(response.outputs[name], outputs[name])
        if signature.batched:
            self._predicted(request.model_spec.name, rows)
        return response

    async def _compute(self, signature: Signature, tensors: Mapping[str, Any]) -> tuple[Arrays, int]:
        """Returns the outputs, by name, and the number of rows of the request."""
        # A few bytes can announce a very large tensor, so all limits are checked before the values are read.
        specs = {name: signature.spec_of(name) for name in tensors}
        shapes = {name: tensor_protos.shape_of(name, tensors[name], len(spec.shape)) for name, spec in specs.items()}
        signature.check(shapes)
        rows = next(iter(shapes.values()))[0] if signature.batched else 1
        self._requests.check_room(signature, rows)
        size = sum(math.prod(shapes[name]) * spec.dtype.size for name, spec in specs.items())
        if size > self._max_bytes:
            raise InvalidRequest(f'got inputs of {size} bytes, {_texts(shapes)}; need at most {self._max_bytes}')
        arrays = {name: tensor_protos.to_array(name, tensors[name], spec.dtype) for name, spec in specs.items()}
        signature.check_values(arrays)
        return await self._requests.run(signature, arrays), rows

    async def get_model_metadata(self, data: bytes) -> Any:
        """Answers a GetModelMetadataRequest for the field 'signature_def', the only one that is supported.

        Raises:
          InvalidRequest: if it is malformed or names another field.
          NotServed: if the model or the version is not served.
          NotReady: while no version is loaded.
        """
        request = _parse(get_model_metadata_pb2.GetModelMetadataRequest, data)
        if not request.metadata_field or set(request.metadata_field) != {_SIGNATURES}:
            raise InvalidRequest(f'got metadata_field {list(request.metadata_field)}; need [{_SIGNATURES!r}]')
        model = self._version(request.model_spec)
        response = get_model_metadata_pb2.GetModelMetadataResponse()
        response.model_spec.name = request.model_spec.name
        response.model_spec.version.value = model.version
        message = get_model_metadata_pb2.SignatureDefMap()
        for name, definition in model.signature_defs.items():
            message.signature_def[name].CopyFrom(definition)
        response.metadata[_SIGNATURES].Pack(message)
        return response

    async def get_model_status(self, data: bytes) -> Any:
        """Answers a GetModelStatusRequest.

        Raises:
          InvalidRequest: if it is malformed.
          NotServed: if the model is not served, or the version is unknown.
        """
        request = _parse(get_model_status_pb2.GetModelStatusRequest, data)
        holder, wanted = self._holder(request.model_spec)
        states = get_model_status_pb2.ModelVersionStatus
        response = get_model_status_pb2.GetModelStatusResponse()
        for version, error in holder.statuses().items():
            if wanted not in (None, version):
                continue
            status = response.model_version_status.add(version=version)
            status.state = states.AVAILABLE if error is None else states.END
            if error is not None:
                status.status.error_code, status.status.error_message = 3, error  # INVALID_ARGUMENT
        if not response.model_version_status:
            holder.get(wanted)
        return response

    def _holder(self, spec: Any) -> tuple[ModelHolder, int | None]:
        if not spec.name:
            raise InvalidRequest('got no model_spec.name; need the name of a model')
        check_policy(spec.name)
        if spec.version_label:
            raise InvalidRequest(
                'got a version_label; need a version number, or none for the newest; labels are not supported'
            )
        return self._models.get(spec.name), spec.version.value if spec.HasField('version') else None

    def _version(self, spec: Any) -> ServedVersion:
        holder, version = self._holder(spec)
        return holder.get(version)


def _texts(shapes: Mapping[str, tuple[int, ...]]) -> str:
    return ', '.join(f'{name} {list(shape)}' for name, shape in shapes.items())


def _parse(message: Any, data: bytes) -> Any:
    try:
        return message.FromString(data)
    except DecodeError as error:
        raise InvalidRequest(f'got {len(data)} bytes; need a {message.DESCRIPTOR.name} ({error})') from error
