"""PolicyServer: a gRPC server of policies that TensorFlow Serving's clients can talk to, and its metrics.

Messages are parsed here, since gRPC does not answer malformed ones with INVALID_ARGUMENT.
"""

import asyncio
import functools
import math
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent import futures
from typing import Any

import grpc
import numpy as np
import tensorflow as tf
from google.protobuf import struct_pb2
from google.protobuf.message import DecodeError

from tflearn.core import side_tasks
from tflearn.extensions.serving import apprentice, decision_files, decision_log, tensor_protos
from tflearn.extensions.serving.apprentice import POLICY_ACTION, LiveAgreement
from tflearn.extensions.serving.clients import Clients, caller_metadata, check_policy, everybody
from tflearn.extensions.serving.decision_log import MAX_ID, DecisionLog
from tflearn.extensions.serving.exploration import PROBABILITY
from tflearn.extensions.serving.models import ModelHolder, Models
from tflearn.extensions.serving.request_queue import Arrays, RequestQueue
from tflearn.extensions.serving.served_version import InvalidRequest, ServedVersion, Signature
from tflearn.extensions.serving.tensor_protos import (
    get_model_metadata_pb2,
    get_model_status_pb2,
    predict_pb2,
    prometheus_client,
)
from tflearn.extensions.serving.trials import TrialOptions, Trials
from tflearn.net import grpc_server
from tflearn.net.grpc_server import Caller, GrpcRefusal
from tflearn.net.server_options import ServerOptions
from tflearn.policies import signatures
from tflearn.policies.versions import VOCABULARIES

_SIGNATURES, _PREDICTION = 'signature_def', 'tensorflow.serving.PredictionService'
_LATENCY = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)  # [s]
EVENT_ID = 'event_id'  # of a decision, besides the policy's outputs
DEFER = 'defer-activation'  # of a request's metadata: 'true' if nobody knows yet whether its decisions will be shown
_LOGGED = {
    'decisions': 'Decisions',
    'outcomes': 'Outcomes',
    'shadows': "Answers of shadows, which also may have 'failed',",
}
_POINTER = 8  # bytes of a string besides its own
_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


class ServingMetrics:
    """Counts requests, and reports which versions are served."""

    def __init__(self, models: Models):
        self.registry = prometheus_client.CollectorRegistry()
        self._models = models
        counter = functools.partial(prometheus_client.Counter, registry=self.registry)
        gauge = functools.partial(prometheus_client.Gauge, registry=self.registry)
        histogram = functools.partial(prometheus_client.Histogram, registry=self.registry)
        self._requests = counter('tflearn_requests', 'Answered requests by their gRPC status', ['method', 'code'])
        self._latency = histogram('tflearn_request_seconds', 'Time within the server', ['method'], buckets=_LATENCY)
        self._rows = histogram('tflearn_request_rows', 'Rows of a Predict request', ['model'], buckets=_ROWS)
        refused = 'Requests of unknown clients and beyond quotas'
        self._refused = counter('tflearn_refused_requests', refused, ['client', 'reason'])
        what = 'by what became of them: logged, dropped (too many waited), not_chosen (by the share)'
        self._logged = {kind: counter(f'tflearn_{kind}', f'{of} {what}', ['result']) for kind, of in _LOGGED.items()}
        for code in ('OK', 'INTERNAL'):  # from the start, since an alert sees a rise only
            self._requests.labels('Predict', code)
        for each in self._logged.values():
            each.labels('dropped')
        answers = 'Train step of the version that answers'
        self._version = gauge('tflearn_served_version', answers, ['model'])
        self._reloads = counter('tflearn_reloads', 'Times that a change of versions was taken over')
        beside = 'Decisions by the product itself: same or other as the policy would have decided'
        self._agreement = counter('tflearn_apprentice_decisions', beside, ['model', 'result'])
        recent = 'Share of the last 1,000 of the version that were the same'
        self._recent_agreement = gauge('tflearn_apprentice_agreement', recent, ['model'])
        failed = 'Failures of side tasks: polls, logs, trials'
        gauge('tflearn_side_task_failures', failed).set_function(side_tasks.failures.total)

    def record_refused(self, client: str, reason: str) -> None:
        """Counts a request that was refused before it was read: of an unknown client (''), or beyond a quota."""
        self._refused.labels(client, reason).inc()

    def record_request(self, method: str, code: str, secs: float) -> None:
        """Counts one request."""
        self._requests.labels(method, code).inc()
        self._latency.labels(method).observe(secs)

    def record_rows(self, model: str, rows: int) -> None:
        """Counts the rows of one request for a model."""
        self._rows.labels(model).observe(rows)

    def record_logged(self, kind: str, result: str, number: int) -> None:
        """Counts decisions, outcomes or answers of shadows: logged, dropped, not chosen, failed."""
        self._logged[kind].labels(result).inc(number)

    def show_agreement(self, model: str, agreement: LiveAgreement) -> None:
        """Shows in which share of the recent decisions a version would do as the product; NaN once it acts."""
        holder, gauge = self._models.get(model), self._recent_agreement.labels(model)
        gauge.set_function(lambda: math.nan if holder.states else agreement.recent)

    def record_agreement(self, model: str, is_same: np.ndarray) -> None:
        """Counts decisions by the product itself, [B]: whether the policy would have decided the same."""
        self._agreement.labels(model, 'same').inc(int(is_same.sum()))
        self._agreement.labels(model, 'other').inc(int((~is_same).sum()))

    def record_reload(self) -> None:
        """Counts a change of versions, and updates the gauges to the versions that are served now."""
        self._reloads.inc()
        for holder in self._models.holders:
            if holder.ready:
                self._version.labels(holder.name).set(holder.get().version)


class PolicyServer:
    """Answers requests at `port` from its construction until `close`, as TensorFlow Serving's two services do.

    Attributes:
      ready: whether all that has to be served is; not any more after `drain`.
    """

    def __init__(
        self,
        models: Models,
        options: ServerOptions,
        metrics: ServingMetrics | None = None,
        clients: Clients | None = None,
        log: DecisionLog | None = None,
        num_threads: int = 1,
        max_concurrent_requests: int = 1024,
        trials: Trials | None = None,
    ):
        """Starts to listen.

        Args:
          models: the models to serve. Call `reloaded` after they have changed.
          metrics: counts the requests; None makes its own.
          clients: those that may send requests; None is everybody.
          log: takes the decisions and the outcomes; None keeps neither.
          num_threads: TensorFlow calls at the same time, each with one request or more.
          max_concurrent_requests: requests accepted at the same time, waiting ones included.
          trials: watches the versions that were promoted; None makes its own.

        Raises:
          ValueError: if it cannot listen at the address, or a file of `options.tls` is invalid.
        """
        self._models, self._metrics = models, metrics or ServingMetrics(models)
        self._requests, self._max_bytes = RequestQueue(num_threads), options.max_request_bytes
        self._log, self._trials = log, trials or Trials(TrialOptions())
        self._agreements: dict[str, LiveAgreement] = {}
        self._server = grpc_server.GrpcServer(
            {
                f'/{_PREDICTION}/Predict': _parsing(predict_pb2.PredictRequest, self._predict),
                f'/{_PREDICTION}/GetModelMetadata': _parsing(
                    get_model_metadata_pb2.GetModelMetadataRequest, self.get_model_metadata
                ),
                tensor_protos.OUTCOMES: _parsing(struct_pb2.Struct, self._record_outcomes),
                '/tensorflow.serving.ModelService/GetModelStatus': _parsing(
                    get_model_status_pb2.GetModelStatusRequest, self.get_model_status
                ),
            },
            options,
            _status_of,
            self._metrics.record_request,
            max_concurrent_requests=max_concurrent_requests,
            admit=clients.admit if clients else everybody,
        )
        self.port = self._server.port
        self.reloaded()

    def reloaded(self) -> None:
        """Updates health and metrics to the versions that are served now. Health follows soon after the return."""
        ready = {holder.name: holder.ready for holder in self._models.holders}
        self.ready = not self._models.missing
        self._server.set_health({**ready, '': self.ready, _PREDICTION: self.ready})
        self._metrics.record_reload()

    def drain(self) -> None:
        """Makes health say that nothing is served, so that load balancers send no more; requests are answered."""
        self.ready, names = False, [holder.name for holder in self._models.holders]
        self._server.set_health(dict.fromkeys([*names, '', _PREDICTION], False))

    def close(self, grace_secs: float = 5.0) -> None:
        """Accepts no more requests, and waits at most `grace_secs` for those that are being answered."""
        self._server.close(grace_secs)
        self._requests.close()

    def call(
        self, name: str, caller: Caller, method: Callable[[], Awaitable[Any]], timeout_secs: float
    ) -> futures.Future[Any]:
        """Answers a request of another protocol with the admission, limits and metrics of gRPC; see `GrpcServer`."""
        return self._server.call(name, caller, method, timeout_secs)

    async def _predict(self, request: Any) -> Any:
        """Answers a PredictRequest by exactly one version, which the response names. Raises as `answer`."""
        spec = request.model_spec
        model, signature, outputs = await self.answer(
            spec, request.output_filter, lambda signature: (self._arrays(signature, request.inputs), {})
        )
        response = predict_pb2.PredictResponse()
        response.model_spec.name = spec.name
        response.model_spec.version.value = model.version
        response.model_spec.signature_name = signature.name
        for name, value in outputs.items():
            tensor_protos.fill(response.outputs[name], value)
        return response

    async def answer(
        self, spec: Any, names: Sequence[str], read: Callable[[Signature], tuple[Arrays, Arrays]]
    ) -> tuple[ServedVersion, Signature, Arrays]:
        """Computes a request by exactly one version.

        Args:
          spec: the ModelSpec of the request.
          names: the outputs that are asked for; () is all of the policy's.
          read: returns the inputs, which it checks by `checked`, and texts of them for the log, see
            `DecisionLog.record`.

        Returns:
          The version, its signature, and the outputs by name.

        Raises:
          InvalidRequest: if the request does not fit the signature.
          GrpcRefusal: if the model or the version is not served, or not yet; if too many requests
            wait; or if the client may not ask this policy.
        """
        model = self._version(spec)
        with self._trials.measured(spec.name, model.version):
            return await self._computed(model, spec, names, read)

    async def _computed(
        self, model: ServedVersion, spec: Any, names: Sequence[str], read: Callable[[Signature], tuple[Arrays, Arrays]]
    ) -> tuple[ServedVersion, Signature, Arrays]:
        signature = model.signature(spec.signature_name or signatures.DEFAULT)
        decides = (self._log or model.chooser.explores) and signature.name == signatures.DEFAULT
        known = [*signature.outputs, *([EVENT_ID, PROBABILITY] if decides else [])]
        if unknown := set(names).difference(known):
            raise InvalidRequest(f'got output_filter {sorted(unknown)}; need some of {known}')
        metadata = caller_metadata.get()
        event_id, arm = (_text_of_client(metadata, name) for name in ('event-id', 'experiment-arm'))
        arrays, texts = read(signature)
        signature.check_finite(arrays, bool(decides))
        own = self._default_actions(spec.name, model, arrays) if decides else None
        # The product's own choice takes the place of exploration.
        drawn = model.decisions if decides and own is None else None
        outputs = await self._requests.run(drawn or signature, arrays)
        if signature.batched:
            self._metrics.record_rows(spec.name, len(next(iter(arrays.values()))))
        if own is not None:
            outputs = apprentice.answered(own, outputs)
            self._record_agreement(spec.name, model.version, outputs)
            arm = arm or apprentice.ARM
        if decides:
            outputs = self._decided(spec.name, model, arrays, texts, outputs, names, event_id, arm)
        return model, signature, {name: outputs[name] for name in dict.fromkeys(names or outputs) if name in outputs}

    def _default_actions(self, name: str, model: ServedVersion, arrays: Arrays) -> np.ndarray | None:
        """Returns the product's own choices, [B]; None where the policy acts by itself."""
        if not model.may_be_apprentice or self._models.get(name).states:
            return None
        return apprentice.default_actions(model.chooser, caller_metadata.get(), arrays)

    def _record_agreement(self, name: str, version: int, outputs: Arrays) -> None:
        found = self._agreements.get(name)
        if version != self._models.get(name).get().version:  # it was asked for by name
            return
        if found is None or found.version != version:
            found = self._agreements[name] = LiveAgreement(version)
            self._metrics.show_agreement(name, found)
        self._metrics.record_agreement(name, found.add(outputs))

    def agreement(self) -> dict[str, float | None]:
        """Returns how often apprentices decided as the product, for the status; None of policies that act."""
        found: dict[str, float | None] = {}
        for name, agreement in self._agreements.copy().items():
            acts = self._models.get(name).states is not None
            found |= {key: None if acts else value for key, value in agreement.metrics(name).items()}
        return found

    def _arrays(self, signature: Signature, tensors: Mapping[str, Any]) -> Arrays:
        """Returns the checked inputs, by name."""
        specs = {name: signature.spec_of(name) for name in tensors}
        shapes = {name: tensor_protos.shape_of(name, tensors[name], len(spec.shape)) for name, spec in specs.items()}
        return self.checked(signature, shapes, lambda name, dtype: tensor_protos.to_array(name, tensors[name], dtype))

    def checked(
        self,
        signature: Signature,
        shapes: Mapping[str, tuple[int, ...]],
        read: Callable[[str, tf.DType], np.ndarray],
    ) -> Arrays:
        """Returns the inputs of a request, by name.

        Args:
          shapes: their shapes. A few bytes can announce a very large tensor, so limits are checked
            before any is read.
          read: returns an input of that name and dtype.

        Raises:
          InvalidRequest: if they do not fit the signature.
          GrpcRefusal: if too many requests wait.
        """
        signature.check(shapes)
        self._requests.check_room(signature, next(iter(shapes.values()))[0] if signature.batched else 1)
        dtypes = {name: signature.inputs[name].dtype for name in shapes}
        size = sum(math.prod(shapes[name]) * (dtype.size or _POINTER) for name, dtype in dtypes.items())
        if size > self._max_bytes:
            raise InvalidRequest(f'got inputs of {size} bytes, {_texts(shapes)}; need at most {self._max_bytes}')
        arrays = {name: read(name, dtype) for name, dtype in dtypes.items()}
        signature.check_values(arrays)
        return arrays

    def _decided(
        self,
        name: str,
        model: ServedVersion,
        arrays: Arrays,
        texts: Arrays,
        outputs: Arrays,
        names: Sequence[str],
        event_id: str,
        arm: str,
    ) -> Arrays:
        """Logs a decision; returns its outputs, with its id and probability if `names` has them."""
        if self._log:
            holder = self._models.get(name)
            key = _text_of_client(caller_metadata.get(), 'canary-key')
            is_slot = bool(key) and key == arm  # as `PolicyClient.slate` asks
            arm, key = arm or holder.arm(model.version)[:MAX_ID], key or event_id
            deferred = caller_metadata.get().get(DEFER, 'false')
            if deferred not in ('true', 'false'):
                raise InvalidRequest(f'got {DEFER}={deferred!a:.100}; need true or false')
            is_deferred, rows = deferred == 'true', len(next(iter(outputs.values())))
            given = name, model.version, arrays, outputs, model.chooser.mask, event_id, arm, is_deferred, model.texts
            event_id = self._log.record(*given, texts, _text_of_client(caller_metadata.get(), 'cluster'))
            self._trials.decided(holder, model.version, event_id, rows, key, is_deferred, is_slot)
            self._trials.shadow(holder, arrays, event_id, self._requests)
        answered = {key: value for key, value in outputs.items() if key not in (PROBABILITY, POLICY_ACTION)}
        if EVENT_ID in names and self._log:
            ids = decision_files.ids(event_id, len(next(iter(outputs.values()))))
            answered[EVENT_ID] = np.array([each.encode() for each in ids], np.bytes_)
        if PROBABILITY in names and PROBABILITY in outputs:
            answered[PROBABILITY] = outputs[PROBABILITY].astype(np.float32)
        return answered

    async def record_outcomes(self, message: Mapping[str, Any]) -> dict[str, int]:
        """Writes reported outcomes, all or none; see `decision_log.outcome_lines` for the message.

        Raises:
          InvalidRequest: if the message has another form.
          GrpcRefusal: if the server keeps none, if too many wait, or if they cannot be written.
        """
        if not self._log:
            raise GrpcRefusal('FAILED_PRECONDITION', 'got outcomes without a log of decisions; need --decision_log')
        lines = decision_log.outcome_lines(message, time.time())
        written = self._log.record_outcomes(lines)
        failure = 'too much waits already'
        if written is not None:
            failure = await asyncio.wrap_future(written)
        if failure:
            error = f'got {len(lines)} outcomes, and {failure}; send them again later'
            raise GrpcRefusal('RESOURCE_EXHAUSTED', error)
        self._trials.outcomes(message)
        return {'accepted': len(lines)}

    async def _record_outcomes(self, request: Any) -> Any:
        answer: Any = struct_pb2.Struct()
        answer.update(await self.record_outcomes(_plain(request)))
        return answer

    async def get_model_metadata(self, request: Any) -> Any:
        """Answers a GetModelMetadataRequest for the fields 'signature_def' and 'vocabularies', which is our own.

        Raises:
          InvalidRequest: if it names another field.
          GrpcRefusal: if the model or the version is not served, or not yet.
        """
        fields = {*request.metadata_field}
        if not fields or not fields <= {_SIGNATURES, VOCABULARIES}:
            raise InvalidRequest(
                f'got metadata_field {list(request.metadata_field)}; need {_SIGNATURES!r} or {VOCABULARIES!r}'
            )
        model = self._version(request.model_spec)
        response = get_model_metadata_pb2.GetModelMetadataResponse()
        response.model_spec.name = request.model_spec.name
        response.model_spec.version.value = model.version
        message = get_model_metadata_pb2.SignatureDefMap()
        for name, definition in model.signature_defs.items():
            message.signature_def[name].CopyFrom(definition)
        words: Any = struct_pb2.Struct()
        words.update(model.vocabularies)
        for field, found in ((_SIGNATURES, message), (VOCABULARIES, words)):
            if field in fields:
                response.metadata[field].Pack(found)
        return response

    async def get_model_status(self, request: Any) -> Any:
        """Answers a GetModelStatusRequest. Raises GrpcRefusal if the model is not served, or the version is unknown."""
        holder, wanted = self._holder(request.model_spec)
        states = get_model_status_pb2.ModelVersionStatus
        response = get_model_status_pb2.GetModelStatusResponse()
        for version, error in holder.statuses().items():
            if wanted not in (None, version):
                continue
            status = response.model_version_status.add(version=version)
            status.state = states.AVAILABLE if error is None else states.END
            status.status.SetInParent()
            if error is not None:
                status.status.error_code, status.status.error_message = 3, error  # INVALID_ARGUMENT
        if not response.model_version_status:
            holder.get(wanted)
        return response

    def _holder(self, spec: Any) -> tuple[ModelHolder, int | None]:
        if not spec.name:
            raise InvalidRequest('got no model_spec.name; need the name of a model')
        check_policy(spec.name)
        holder = self._models.get(spec.name)
        if spec.version_label:
            return holder, holder.of_label(spec.version_label).version
        return holder, spec.version.value if spec.HasField('version') else None

    def _version(self, spec: Any) -> ServedVersion:
        holder, version = self._holder(spec)
        if version is not None:
            return holder.get(version)
        given = caller_metadata.get()
        return holder.of_key(_text_of_client(given, 'canary-key') or _text_of_client(given, 'event-id'))


def _plain(message: Any) -> Any:
    """Returns the value of a Struct, or of a part of one. (protobuf's own conversion fails for NaN and infinities.)"""
    if isinstance(message, struct_pb2.Struct):
        return {name: _plain(value) for name, value in message.fields.items()}
    kind = message.WhichOneof('kind')
    if kind == 'list_value':
        return [_plain(value) for value in message.list_value.values]
    if kind == 'struct_value':
        return _plain(message.struct_value)
    return None if kind in (None, 'null_value') else getattr(message, kind)


def _text_of_client(metadata: Mapping[str, str], name: str) -> str:
    """Returns a text of the request's metadata, for the log. Raises InvalidRequest if no log can hold it."""
    text = metadata.get(name, '')
    if not text.isprintable():
        raise InvalidRequest(f'got the {name} {text!a:.100}; need printable characters in UTF-8')
    return text[:MAX_ID]


def _texts(shapes: Mapping[str, tuple[int, ...]]) -> str:
    return ', '.join(f'{name} {list(shape)}' for name, shape in shapes.items())


def _parsing(message: Any, answer: Callable[[Any], Awaitable[Any]]) -> grpc_server.Method:
    def method(data: bytes) -> Awaitable[Any]:
        try:
            return answer(message.FromString(data))
        except DecodeError as error:
            raise InvalidRequest(f'got {len(data)} bytes; need a {message.DESCRIPTOR.name} ({error})') from error

    return method


def _status_of(error: Exception) -> tuple[Any, str] | None:
    """Returns the gRPC status of an error that a request causes."""
    if isinstance(error, InvalidRequest):
        return grpc.StatusCode.INVALID_ARGUMENT, str(error)
    if isinstance(error, tf.errors.InvalidArgumentError):
        text = f'the policy cannot compute these values: {" ".join(error.message.split())}'
        return grpc.StatusCode.INVALID_ARGUMENT, text
    return None
