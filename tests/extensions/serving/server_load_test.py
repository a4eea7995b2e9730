"""Many requests at the same time: none is lost while versions change; malformed ones do no harm."""

import functools
import pathlib
import random
import threading

import numpy as np
import pytest
import tensorflow as tf

pytest.importorskip('tensorflow_serving', reason='needs pip install ".[serving]"')
import grpc

from tests.testing import served_policies
from tflearn.core.waiting import wait_until
from tflearn.extensions.serving.client import PolicyClient
from tflearn.extensions.serving.served_version import BatchOptions
from tflearn.extensions.serving.tensor_protos import predict_pb2, prediction_service_pb2_grpc

DEADLINE_SECS = 60.0
OBSERVATION = np.array([[1, 0, 0, 0], [-1, 0, 0, 0]], np.float32)
METHODS = ('PredictionService/Predict', 'PredictionService/GetModelMetadata', 'ModelService/GetModelStatus')
# The status codes of random requests.
ALLOWED = {'OK', 'INVALID_ARGUMENT', 'NOT_FOUND', 'RESOURCE_EXHAUSTED'}
MAX_GROWTH_MB = 30


@pytest.fixture
def root(tmp_path):
    """Version 1 of a policy."""
    served_policies.Publisher(tmp_path).publish(1)
    return tmp_path


def good_request():
    request = predict_pb2.PredictRequest()
    request.model_spec.name = 'greedy_policy'
    request.inputs['observation'].CopyFrom(tf.make_tensor_proto(OBSERVATION))
    return request


def test_rejects_requests_beyond_the_limit(root):
    with (
        served_policies.serving(root, max_concurrent_requests=1) as (server, models),
        served_policies.held(models) as (started, resume),
        grpc.insecure_channel(f'localhost:{server.port}') as channel,
    ):
        stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)
        first = stub.Predict.future(good_request(), DEADLINE_SECS)
        assert started.wait(DEADLINE_SECS)
        for _ in range(4):  # gRPC's own limit accepts one more after each rejection
            assert stub.Predict.future(good_request(), DEADLINE_SECS).code().name == 'RESOURCE_EXHAUSTED'
        resume.set()
        assert first.code().name == 'OK'


def test_overloaded_server_rejects_before_parsing_values(root):
    wrong = good_request()
    wrong.inputs['observation'].dtype = 2
    with (
        served_policies.serving(root, BatchOptions(max_batch_size=2, max_enqueued_batches=1)) as (server, models),
        served_policies.held(models) as (started, resume),
        grpc.insecure_channel(f'localhost:{server.port}') as channel,
    ):
        stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)
        calls = [stub.Predict.future(good_request(), DEADLINE_SECS)]
        assert started.wait(DEADLINE_SECS)
        calls.append(stub.Predict.future(good_request(), DEADLINE_SECS))
        wait_until(lambda: server._requests._waiting, 'the second request', DEADLINE_SECS)
        assert stub.Predict.future(wrong, DEADLINE_SECS).code().name == 'RESOURCE_EXHAUSTED'
        resume.set()
        assert [call.code().name for call in calls] == ['OK', 'OK']
        assert stub.Predict.future(wrong, DEADLINE_SECS).code().name == 'INVALID_ARGUMENT'


class Clients:
    """Threads that send requests until `num_requests` are answered by four versions, and check each response."""

    def __init__(self, address, num_requests):
        self.num_requests, self.answered, self.failures, self.seen = num_requests, 0, [], set()
        self._address, self._lock = address, threading.Lock()
        self._threads = [threading.Thread(target=self._ask, args=(seed,), daemon=True) for seed in range(8)]
        for thread in self._threads:
            thread.start()

    def join(self, timeout_secs):
        for thread in self._threads:
            thread.join(timeout_secs)
        assert not any(thread.is_alive() for thread in self._threads)

    def _ask(self, seed):
        rng = np.random.default_rng(seed)
        client = PolicyClient(self._address)
        while (self.answered < self.num_requests or len(self.seen) < 4) and not self.failures:
            observation = rng.normal(size=(int(rng.integers(1, 9)), 4)).astype(np.float32)
            try:
                outputs, version = client.predict({'observation': observation})
            except grpc.RpcError as error:
                self.failures.append(error)
                break
            if not served_policies.agrees(observation, outputs['action'], version):
                self.failures.append((version, observation, outputs))
            with self._lock:
                self.answered += 1
                self.seen.add(version)
        client.close()


@pytest.mark.parametrize('num_requests', [1000, pytest.param(100_000, marks=pytest.mark.slow)])
def test_reload_under_load_drops_no_request(tmp_path, num_requests):
    """Each response comes from exactly one version: all its rows agree with the version that it names."""
    publisher = served_policies.Publisher(tmp_path)
    publisher.publish(1)
    with served_policies.serving(tmp_path, BatchOptions()) as (server, models):
        clients = Clients(f'localhost:{server.port}', num_requests)
        for step in (2, 3, 4):
            due = num_requests * (step - 1) // 4
            wait_until(lambda due=due: clients.answered >= due or clients.failures, 'answers', 200, poll_secs=0.01)
            publisher.publish(step)
            assert models.refresh()
            seen = functools.partial(clients.seen.__contains__, step)
            wait_until(lambda seen=seen: seen() or clients.failures, f'version {step}', 200, poll_secs=0.01)
        clients.join(200)
    assert not clients.failures, clients.failures[0]
    assert clients.seen == {1, 2, 3, 4}


def random_request(rng):
    """Makes a random request: noise, a valid one with changed bytes, or a message with wrong fields."""
    kind = rng.randrange(3)
    if kind == 0:
        return rng.randbytes(rng.randrange(200))
    request = good_request()
    if kind == 1:
        data = bytearray(request.SerializeToString())
        for _ in range(rng.randrange(1, 5)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        return bytes(data[: rng.randrange(1, len(data) + 1)] if rng.random() < 0.3 else data)
    tensor = request.inputs[rng.choice(['observation', 'x', ''])]
    tensor.Clear()
    tensor.dtype = rng.choice([1, 1, 1, 2, 3, 7, 9, 14, 23, 101, 12345])
    for _ in range(rng.randrange(5)):
        tensor.tensor_shape.dim.add().size = rng.choice([-1, 0, 1, 2, 4, 4, 1000, 2**31, 2**62])
    tensor.tensor_shape.unknown_rank = rng.random() < 0.1
    tensor.float_val.extend(rng.choice([0.0, 1e38, float('nan')]) for _ in range(rng.randrange(9)))
    tensor.string_val.extend([b'text'] * rng.randrange(2))
    tensor.tensor_content = rng.randbytes(rng.choice([0, 0, 0, 3, 16, 32]))
    request.model_spec.name = rng.choice(['greedy_policy', 'greedy_policy', '', '../..', 'x' * 3000])
    request.model_spec.signature_name = rng.choice(['', 'action', 'distribution', '__saved_model_init_op', '\0'])
    if rng.random() < 0.3:
        request.model_spec.version.value = rng.choice([1, -1, 2**62])
    request.output_filter.extend(rng.choice([[], ['action'], ['x'] * 500]))
    return request.SerializeToString()


def fuzz(channel, count, seed):
    """Sends random requests; returns the number of responses by status."""
    rng, codes = random.Random(seed), {}
    calls = {method: channel.unary_unary(f'/tensorflow.serving.{method}') for method in METHODS}
    for _ in range(count):
        method = rng.choice(METHODS[:1] * 8 + METHODS)
        data, code = random_request(rng), 'OK'
        try:
            answer = calls[method](data, DEADLINE_SECS)
            if method == METHODS[0]:
                check_shape(data, answer)
        except grpc.RpcError as error:
            code = error.code().name
            assert error.details()
        codes[code] = codes.get(code, 0) + 1
    return codes


def check_shape(data, answer):
    """Checks that a response to a random request has an action for each of its rows."""
    request = predict_pb2.PredictRequest.FromString(data)
    response = predict_pb2.PredictResponse.FromString(answer)
    rows = next(iter(request.inputs.values())).tensor_shape.dim[0].size
    for tensor in response.outputs.values():
        assert tf.make_ndarray(tensor).shape[0] == rows


def resident_mb():
    """Returns the memory of this process."""
    (line,) = (line for line in pathlib.Path('/proc/self/status').read_text().splitlines() if line.startswith('VmRSS:'))
    return int(line.split()[1]) / 1024


@pytest.mark.parametrize('count', [500, pytest.param(10_000, marks=pytest.mark.slow)])
def test_random_requests_do_no_harm(root, count):
    with (
        served_policies.serving(root, BatchOptions()) as (server, _),
        grpc.insecure_channel(f'localhost:{server.port}') as channel,
    ):
        fuzz(channel, count // 2, seed=1)
        before = resident_mb()
        codes = fuzz(channel, count - count // 2, seed=2)
        growth = resident_mb() - before
        answer = prediction_service_pb2_grpc.PredictionServiceStub(channel).Predict(good_request(), DEADLINE_SECS)
    assert set(codes) <= ALLOWED and codes['INVALID_ARGUMENT'] > count // 5, codes
    assert growth < MAX_GROWTH_MB
    assert list(answer.outputs['action'].int64_val) == [1, 0]
