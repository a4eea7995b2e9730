"""RestServer: TensorFlow Serving's REST interface beside gRPC, with the same admission, limits,
batches and metrics.

Large JSON is read and written in a thread; each request is answered on gRPC's event loop.
"""

import asyncio
import contextlib
import functools
import inspect
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from http import HTTPStatus
from typing import Any

import grpc
import numpy as np
import tensorflow as tf
from google.protobuf import json_format, struct_pb2

from tflearn.core.errors import UserValueError
from tflearn.extensions.serving import json_tensors
from tflearn.extensions.serving.json_tensors import PredictJson
from tflearn.extensions.serving.request_queue import Arrays
from tflearn.extensions.serving.served_version import InvalidRequest, Signature
from tflearn.extensions.serving.server import PolicyServer
from tflearn.extensions.serving.tensor_protos import get_model_metadata_pb2, get_model_status_pb2, predict_pb2
from tflearn.net.grpc_server import Caller
from tflearn.net.http_messages import HttpRefusal, Response, json_response
from tflearn.net.http_server import HttpServer, Request, Route
from tflearn.net.server_options import ServerOptions
from tflearn.policies.versions import VOCABULARIES

_SECS = 30.0  # for an answer, as TensorFlow Serving's --rest_api_timeout_in_ms
_MAX_BYTES = 16 << 20  # of bodies that are being answered
# Bytes of a request, and values of an answer, that are handled in a thread.
_LARGE, _MANY = 1 << 16, 1 << 14
_STATUS = {
    'INVALID_ARGUMENT': HTTPStatus.BAD_REQUEST,
    'FAILED_PRECONDITION': HTTPStatus.BAD_REQUEST,
    'UNAUTHENTICATED': HTTPStatus.UNAUTHORIZED,
    'PERMISSION_DENIED': HTTPStatus.FORBIDDEN,
    'NOT_FOUND': HTTPStatus.NOT_FOUND,
    'RESOURCE_EXHAUSTED': HTTPStatus.TOO_MANY_REQUESTS,
    'UNAVAILABLE': HTTPStatus.SERVICE_UNAVAILABLE,
    'DEADLINE_EXCEEDED': HTTPStatus.GATEWAY_TIMEOUT,
}
# The name of this setting depends on protobuf's version.
_ALL_FIELDS = {
    name: True
    for name in inspect.signature(json_format.MessageToDict).parameters
    if name in ('including_default_value_fields', 'always_print_fields_with_no_presence')
}


class RestServer:
    """Answers requests of HTTP at `port` from its construction until `close`."""

    def __init__(self, server: PolicyServer, options: ServerOptions):
        """Starts to listen.

        Args:
          server: answers the requests.
          options: where it listens, and its limits; `server` has those of the requests.

        Raises:
          ValueError: if it cannot listen there, or a file of TLS is invalid.
        """
        self._server, self._lock, self._parsing, self._bytes = server, threading.Lock(), threading.Lock(), 0
        routes: dict[str, Route] = {}
        for part, field in (('', ''), ('/versions/ID', 'version'), ('/labels/NAME', 'version_label')):
            model = f'/v1/models/NAME{part}'
            routes |= {
                f'POST {model}:predict': functools.partial(self._predict, field),
                f'GET {model}': functools.partial(self._status, field),
                f'GET {model}/metadata': functools.partial(self._metadata, field),
            }
        routes['POST /v1/outcomes'] = self._outcomes
        self._http = HttpServer(options, routes, 'rest_server', ('--rest_port', ''))
        self.port = self._http.port
        self._http.start()

    def close(self, grace_secs: float = 5.0) -> None:
        """Accepts no more connections, and waits at most `grace_secs` for the requests that are being answered."""
        self._http.close(grace_secs)

    async def _predict(self, field: str, request: Request, *words: str) -> Response:
        body = await request.read()
        with self._room(len(body)):
            parsed = await self._parsed(body, json_tensors.parse)
            call = functools.partial(self._answer, parsed, functools.partial(_spec, field, *words))
            form, outputs, actions = await self._call(request, 'Predict', call)
        written = functools.partial(_written, form, outputs, actions)
        is_large = sum(output.size for output in outputs.values()) > _MANY
        return await self._http.in_thread(written) if is_large else written()

    async def _parsed(self, body: memoryview, parse: Callable[[memoryview], Any]) -> Any:
        """Returns what `_parse` does, in a thread if that takes long."""
        work = functools.partial(self._parse, body, parse)
        return await self._http.in_thread(work) if len(body) > _LARGE else work()

    def _parse(self, body: memoryview, parse: Callable[[memoryview], Any]) -> Any:
        """Returns the request, or an error, which is raised on the event loop:
        it counts as one of a request.
        """
        # Large ones one at a time: objects of Python need much more memory than their JSON.
        alone: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()
        with self._parsing if len(body) > _LARGE else alone:
            start = time.perf_counter()
            try:
                return parse(body)
            except UserValueError as error:
                return InvalidRequest(str(error))
            finally:
                if len(body) > _LARGE:  # parsing keeps Python's lock: the others get as long
                    threading.Event().wait(time.perf_counter() - start)

    async def _answer(self, parsed: PredictJson | InvalidRequest, make_spec: Callable[[], Any]) -> Any:
        if isinstance(parsed, InvalidRequest):
            raise parsed
        spec = make_spec()
        spec.signature_name = parsed.signature

        def read(signature: Signature) -> tuple[Arrays, Arrays]:
            values = parsed.named(signature)
            shapes = {name: value.shape for name, value in values.items()}

            def to_array(name: str, dtype: tf.DType) -> np.ndarray:
                return json_tensors.to_array(name, values[name], dtype, signature.meanings.get(name))

            arrays = self._server.checked(signature, shapes, to_array)
            return arrays, json_tensors.unknown_texts(values, arrays, signature.meanings)

        model, _, outputs = await self._server.answer(spec, parsed.output_filter, read)
        return parsed.form, outputs, model.vocabularies.get('action', ())

    async def _outcomes(self, request: Request) -> Response:
        body = await request.read()
        with self._room(len(body)):
            parsed = await self._parsed(body, json_tensors.parse_object)

            async def record() -> Any:
                if isinstance(parsed, InvalidRequest):
                    raise parsed
                return await self._server.record_outcomes(parsed)

            return json_response(await self._call(request, 'RecordOutcomes', record))

    async def _status(self, field: str, request: Request, *words: str) -> Response:
        async def status() -> Any:
            message: Any = get_model_status_pb2.GetModelStatusRequest
            return await self._server.get_model_status(message(model_spec=_spec(field, *words)))

        return json_response(_dict(await self._call(request, 'GetModelStatus', status)))

    async def _metadata(self, field: str, request: Request, *words: str) -> Response:
        async def metadata() -> Any:
            message: Any = get_model_metadata_pb2.GetModelMetadataRequest
            asked = message(model_spec=_spec(field, *words), metadata_field=['signature_def', VOCABULARIES])
            return await self._server.get_model_metadata(asked)

        answer = await self._call(request, 'GetModelMetadata', metadata)
        found: Any = get_model_metadata_pb2.SignatureDefMap()
        answer.metadata['signature_def'].Unpack(found)
        values: Any = struct_pb2.Struct()
        answer.metadata[VOCABULARIES].Unpack(values)
        described = {'signature_def': _dict(found), **({VOCABULARIES: _dict(values)} if values.fields else {})}
        return json_response({'model_spec': _dict(answer.model_spec), 'metadata': described})

    async def _call(self, request: Request, name: str, method: Callable[[], Awaitable[Any]]) -> Any:
        caller = Caller({key.lower(): value for key, value in request.headers.items()}, _certificate_names(request))
        code, details, answer = await asyncio.wrap_future(self._server.call(name, caller, method, _SECS))
        if code is not grpc.StatusCode.OK:
            raise HttpRefusal(_STATUS.get(code.name, HTTPStatus.INTERNAL_SERVER_ERROR), details)
        return answer

    @contextlib.contextmanager
    def _room(self, size: int) -> Iterator[None]:
        """Bounds the bodies that are being answered."""
        with self._lock:
            is_full = bool(self._bytes) and self._bytes + size > _MAX_BYTES
            self._bytes += 0 if is_full else size
        if is_full:
            error = f'got a body of {size} bytes, and {_MAX_BYTES} are being answered; send less, or try again later'
            raise HttpRefusal(HTTPStatus.TOO_MANY_REQUESTS, error)
        try:
            yield
        finally:
            with self._lock:
                self._bytes -= size


def _written(form: str, outputs: Arrays, actions: Sequence[str]) -> Response:
    return json_response(json_tensors.answer(form, outputs, actions))


def _spec(field: str, name: str, word: str = '') -> Any:
    """Returns the ModelSpec of a path's words.
    Raises InvalidRequest for a version that is no number.
    """
    spec: Any = predict_pb2.PredictRequest().model_spec
    spec.name = name
    if field == 'version_label':
        spec.version_label = word
    elif field:
        if not word.isdecimal() or len(word) > 18:
            raise InvalidRequest(f'got the version {word!r}; need a number')
        spec.version.value = int(word)
    return spec


def _dict(message: Any) -> Any:
    return json_format.MessageToDict(message, preserving_proto_field_name=True, **_ALL_FIELDS)


def _certificate_names(request: Request) -> tuple[str, ...]:
    """Returns the common name and the DNS names in the client's certificate,
    if it had to show one.
    """
    certificate = request.certificate
    names = [value for part in certificate.get('subject', ()) for key, value in part if key == 'commonName']
    return (*names, *(value for kind, value in certificate.get('subjectAltName', ()) if kind == 'DNS'))
