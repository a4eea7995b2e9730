"""Half-valid messages to REST and gRPC; `benchmarks/attacks.py` sends 10,000 to each."""

import contextlib

import pytest

pytest.importorskip('tensorflow_serving', reason='needs pip install ".[serving]"')
import grpc

from benchmarks import wrong_forms, wrong_messages
from benchmarks.wrong_messages import Port
from tests.extensions.serving.outcomes_test import serving
from tests.extensions.serving.rest_test import ask

COUNT, SEED = 200, 1
NAME, VERSION = 'greedy_policy', 7
ROWS = {'observation': [[1.0, 0.0, 0.5, 0.0]]}
TENSOR = {
    'dtype': 'DT_FLOAT',
    'tensorShape': {'dim': [{'size': 1}, {'size': 4}]},
    'floatVal': [1.0, 0.0, 0.5, 0.0],
}


def check_log(directory, names):
    """Checks that what the server has written can be read."""
    lines = [line for name in names for file in directory.glob(f'{name}-*') for line in file.read_bytes().splitlines()]
    assert len(lines) > 10 and all(wrong_messages.strict_json(line) is not None for line in lines)


def test_rest_answers_or_names_the_field_and_its_log_can_be_read(root, tmp_path):
    with serving(root, tmp_path) as (rest, _, _), contextlib.closing(Port(rest)) as port:
        for sent in wrong_messages.requests(wrong_forms.rest(NAME, ROWS, VERSION), COUNT, SEED):
            port.send(sent)
        assert port.faults == [] and {200, 400, 404} <= port.statuses.keys()
    check_log(tmp_path, ['decisions', 'outcomes'])


def test_grpc_answers_or_names_the_field(root, tmp_path):
    messages = wrong_forms.grpc_messages(NAME, {'observation': TENSOR}, VERSION)
    with serving(root, tmp_path) as (_, port, _), grpc.insecure_channel(f'127.0.0.1:{port}') as channel:
        statuses, faults = wrong_forms.ask_grpc(
            lambda method, data: channel.unary_unary(method)(data, wrong_messages.DEADLINE_SECS), messages, COUNT, SEED
        )
    assert faults == [] and {'OK', 'INVALID_ARGUMENT', 'NOT_FOUND'} <= statuses.keys()
    check_log(tmp_path, ['decisions', 'outcomes'])


@pytest.mark.parametrize('field', ['signature_name', 'output_filter'])
def test_half_a_character_as_a_name_is_refused(root, tmp_path, field):
    value = '\ud800' if field == 'signature_name' else ['\ud800']
    with serving(root, tmp_path) as (rest, _, _):
        code, answer = ask(rest, f'/v1/models/{NAME}:predict', {'instances': ROWS['observation'], field: value})
    assert code == 400 and field in answer['error']


@pytest.mark.parametrize('number', [float('nan'), float('inf')])
def test_an_outcome_of_grpc_that_is_no_number_is_refused_by_its_name(root, tmp_path, number):
    from google.protobuf import struct_pb2

    from tflearn.extensions.serving.tensor_protos import OUTCOMES

    message = struct_pb2.Struct()
    message.update({'event_id': 'a', 'reward': number})
    with (
        serving(root, tmp_path) as (_, port, _),
        grpc.insecure_channel(f'127.0.0.1:{port}') as channel,
        pytest.raises(grpc.RpcError) as refused,
    ):
        channel.unary_unary(OUTCOMES)(message.SerializeToString(), wrong_messages.DEADLINE_SECS)
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT and 'reward' in refused.value.details()
