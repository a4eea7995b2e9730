"""What each route of our servers takes: the good messages that `wrong_messages` changes."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks import wrong_messages
from benchmarks.wrong_messages import Form, Port, Sent
from tflearn.coordinator import control, weights_transport
from tflearn.coordinator.client import CLAIM
from tflearn.net.http_messages import json_object

_OWNER = {CLAIM: '1/owner'}
_CONTRACT = {'settings': {'gamma': '0.99'}, 'formats': {'weights': 2}, 'shards': {'number': 1}}
COUNTS = {'size': 1, 'max_size': 2, 'inserts': 1, 'samples': 1, 'samples_per_insert': 1.0, 'min_diff': -5.0}
LEARNER = Form(
    'POST /v1/register',
    {'role': 'train', 'index': 0, 'address': '', 'contract': _CONTRACT, 'had_epoch': True},
    _OWNER,
)
OBSERVATION = {'position': [0.5, 1.0], 'gear': 1, 'image': [[1, 2], [3, 4]]}
OBSERVATION_SPEC = {
    'position': {'shape': (2,)},
    'gear': {'choices': 3},
    'image': {'shape': (2, 2), 'dtype': 'uint8'},
}
METRICS = (Form('GET /metrics', None, {'Accept': 'text/plain'}), Form('POST /metrics', {'a': 1}))


def coordinator() -> list[Form]:
    """Returns the forms of a coordinator's routes."""
    report = control.Report(control.Lease('collect_0', 'owner'), {'env_steps': 5.0}, ({'return': 1.0},), 3, 2)
    credits = control.Credits(1, 5, 0, (control.Share('owner', 1, 2, 3, 0),))
    counters = {'policy_version': 1, 'train_step': 1}
    publication = weights_transport.make(counters, ['kernel'], [np.ones(4, np.float32)], None)
    return [
        Form('POST /v1/register', {**LEARNER.message, 'role': 'collect', 'address': 'localhost:1'}),
        LEARNER,
        Form('GET /v1/addresses/{role}', words={'role': 'replay'}),
        Form('PUT /v1/weights', b''.join(map(bytes, publication.parts())), _OWNER),
        *relay(),
        Form('POST /v1/report', json_object(control.encode(report).encode())),
        Form('POST /v1/reports', {'after': 0, 'acknowledged': {'a': 1}, 'env_steps': {'a': 1}}, _OWNER),
        Form('PUT /v1/credits', json_object(control.encode(credits).encode()), _OWNER),
        Form('POST /v1/credits', {'number': 0, 'wait': 0.01}),
        Form('POST /v1/beat', {'state': 'working'}, _OWNER),
        Form('PUT /v1/counts/{index}', {'replay': COUNTS}, words={'index': '0'}),
        Form('GET /v1/counts'),
    ]


def relay() -> list[Form]:
    """Returns the forms of a relay's routes."""
    asked = {'If-None-Match': '"x"', 'Prefer': 'wait=0', 'A-IM': weights_transport.DELTA}
    return [Form('GET /v1/weights', None, asked), Form('GET /v1/status')]


def take_over(port: Port) -> None:
    """Registers the learner in whose name the requests to a coordinator are sent."""
    message = {**LEARNER.message, 'had_epoch': False}
    port.send(Sent('POST', '/v1/register', dict(_OWNER), wrong_messages.encoded(message), None, 'take over'))


class Simulator:
    """Sends changed messages of an external simulator; begins an episode whenever there is none."""

    def __init__(self, port: Port):
        self._port, self._episode = port, ''

    def send(self, sent: Sent) -> None:
        """Sends a request whose path has {episode} where the episode's name belongs."""
        if not self._episode:
            begin = wrong_messages.encoded({'observation': OBSERVATION})
            answer = self._port.send(Sent('POST', '/v1/episodes', {}, begin, None, 'begin'))[1]
            self._episode = (answer or {}).get('episode', '')
        path = sent.path.replace('EPISODE', self._episode)
        status, answer = self._port.send(sent._replace(path=path))
        has_ended = status == 410 or (status == 200 and (sent.method == 'DELETE' or 'steps' in (answer or {})))
        if has_ended and path != sent.path:
            self._episode = ''

    def send_begin(self, sent: Sent) -> None:
        """Sends the beginning of an episode, which ends at once if it began: while one goes on, others wait."""
        if self._episode:
            self._port.send(Sent('DELETE', f'/v1/episodes/{self._episode}', {}, None, None, 'end'))
        status, answer = self._port.send(sent)
        self._episode = (answer or {}).get('episode', '') if status == 201 else ''


def simulators() -> list[Form]:
    """Returns the forms of the routes for external simulators."""
    step = {'reward': 1.0, 'observation': OBSERVATION, 'terminated': False, 'truncated': False}
    return [
        Form('POST /v1/episodes', {'observation': OBSERVATION}),
        Form('POST /v1/episodes/{episode}/steps', step, words={'episode': 'EPISODE'}),
        Form('DELETE /v1/episodes/{episode}', words={'episode': 'EPISODE'}),
        Form('GET /v1/specs'),
    ]


def play(port: Port, count: int, seed: int) -> None:
    """Sends so many requests of simulators."""
    simulator = Simulator(port)
    for sent in wrong_messages.requests(simulators(), count, seed):
        if sent.path == '/v1/episodes':
            simulator.send_begin(sent)
        else:
            simulator.send(sent)


def rest(name: str, inputs: Mapping[str, Any], version: int) -> list[Form]:
    """Returns the forms of the routes of REST.

    Args:
      name: a policy's.
      inputs: a batch of one row for each of its inputs.
      version: the policy's.
    """
    headers = {'event-id': 'event', 'canary-key': 'key', 'experiment-arm': 'arm'}
    also = {
        'instances': (*inputs, 'input'),
        'inputs': (*inputs, 'input'),
        'b64': (*inputs,),
        'signature_name': ('serving_default',),
    }
    row = {key: values[0] for key, values in inputs.items()}
    predict, model = 'POST /v1/models/{name}:predict', '/v1/models/{name}/versions/{version}'
    words, of_version = {'name': name}, {'name': name, 'version': str(version)}
    chosen = {'inputs': dict(inputs), 'signature_name': 'serving_default', 'output_filter': ['event_id']}
    outcome = {'event_id': 'e1', 'reward': 1.0}
    return [
        Form(predict, {'instances': [row]}, headers, words, also),
        Form(predict, chosen, headers, words, also),
        Form(f'POST {model}:predict', {'inputs': dict(inputs)}, {}, of_version, also),
        Form(
            'POST /v1/models/{name}/labels/{label}:predict',
            {'inputs': dict(inputs)},
            words={**words, 'label': 'stable'},
            also=also,
        ),
        Form('GET /v1/models/{name}', words=words),
        Form(f'GET {model}/metadata', words=of_version),
        Form('POST /v1/outcomes', {**outcome, 'time': 1.7e9, 'outcome_id': 'o'}),
        Form(
            'POST /v1/outcomes', {'outcomes': [outcome, {**outcome, 'event_id': 'e2'}]}, also={'outcomes': ['outcome']}
        ),
    ]


_PREDICTION = '/tensorflow.serving.PredictionService'
_OTHERS = {'inputs': ('input',), 'outcomes': ('outcome',), 'modelSpec': ('model_spec', 'model')}


def grpc_messages(
    name: str, inputs: Mapping[str, Mapping[str, Any]], version: int
) -> list[tuple[str, Any, dict[str, Any]]]:
    """Returns the methods of gRPC, the kinds of their messages and a good message of each, as JSON.

    Args:
      inputs: a TensorProto as JSON for each input of the policy.
    """
    from google.protobuf import struct_pb2

    from tflearn.extensions.serving.tensor_protos import (
        OUTCOMES,
        get_model_metadata_pb2,
        get_model_status_pb2,
        predict_pb2,
    )

    spec = {'name': name, 'version': version, 'signatureName': 'serving_default'}
    predict, status = predict_pb2.PredictRequest, get_model_status_pb2.GetModelStatusRequest
    metadata = get_model_metadata_pb2.GetModelMetadataRequest
    outcome = {'event_id': 'e1', 'reward': 1.0, 'time': 1.7e9}
    return [
        (f'{_PREDICTION}/Predict', predict, {'modelSpec': spec, 'inputs': dict(inputs), 'outputFilter': ['action']}),
        (f'{_PREDICTION}/Predict', predict, {'modelSpec': {'name': name}, 'inputs': dict(inputs)}),
        (f'{_PREDICTION}/GetModelMetadata', metadata, {'modelSpec': spec, 'metadataField': ['signature_def']}),
        ('/tensorflow.serving.ModelService/GetModelStatus', status, {'modelSpec': spec}),
        (OUTCOMES, struct_pb2.Struct, outcome),
        (OUTCOMES, struct_pb2.Struct, {'outcomes': [outcome, {**outcome, 'event_id': 'e2'}]}),
    ]


def grpc_requests(
    messages: Sequence[tuple[str, Any, dict[str, Any]]], count: int, seed: int
) -> Iterator[tuple[str, bytes, tuple[str, ...], str]]:
    """Returns so many requests: the method, the bytes, the names of what was changed, and what was, for a person."""
    import random

    from google.protobuf import json_format, struct_pb2

    chance = random.Random(seed)
    for i in range(count):
        method, kind, good = messages[i % len(messages)]
        made = wrong_messages.changed(good, chance)
        try:
            message: Any = kind()
            if kind is struct_pb2.Struct:
                message.update(made.value)
            else:
                json_format.ParseDict(made.value, message, ignore_unknown_fields=True)
            kind.FromString(message.SerializeToString())
            yield method, message.SerializeToString(), (*_with_others(made.fields), *made.added), made.what
        except Exception:  # what no message of protobuf can hold
            data = json_format.ParseDict(good, kind()).SerializeToString()
            yield method, wrong_messages.damaged(data, chance), (), 'bytes'


def _with_others(fields: Sequence[str]) -> tuple[str, ...]:
    snake = [re.sub('[A-Z]', lambda found: f'_{found[0].lower()}', field) for field in fields]
    return (*fields, *snake, *(other for field in fields for other in _OTHERS.get(field, ())))


def ask_grpc(
    call: Callable[[str, bytes], object], messages: Sequence[tuple[str, Any, dict[str, Any]]], count: int, seed: int
) -> tuple[dict[str, int], list[str]]:
    """Sends so many requests of gRPC.

    Args:
      call: sends bytes to a method; raises `grpc.RpcError`.

    Returns:
      How many answers had each status, and what answers should not have been.
    """
    import grpc

    statuses: dict[str, int] = {}
    faults = []
    for method, data, fields, what in grpc_requests(messages, count, seed):
        code, details = 'OK', ''
        try:
            call(method, data)
        except grpc.RpcError as error:
            code, details = error.code().name, error.details() or ''
        statuses[code] = statuses.get(code, 0) + 1
        is_named = not fields or wrong_messages.names(details, fields)
        if code not in ('OK', 'NOT_FOUND', 'INVALID_ARGUMENT') or (code == 'INVALID_ARGUMENT' and not is_named):
            faults.append(f'{method} ({what}): {code} {details[:200]}')
    return statuses, faults
