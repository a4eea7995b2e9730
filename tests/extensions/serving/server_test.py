"""A real server on a free port answers clients of TensorFlow Serving."""

import errno
import json
import pathlib
import time
import urllib.request

import numpy as np
import pytest
import tensorflow as tf

pytest.importorskip('tensorflow_serving', reason='needs pip install ".[serving]"')
import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from tf_agents.policies import random_tf_policy
from tf_agents.specs import tensor_spec
from tf_agents.trajectories import time_step as ts

from benchmarks import attacks
from tests.testing import docs_blocks, example_policies, forks, served_policies
from tflearn.core.waiting import wait_until
from tflearn.extensions.serving.client import PolicyClient
from tflearn.extensions.serving.models import Models
from tflearn.extensions.serving.served_version import BatchOptions, ServedVersion
from tflearn.extensions.serving.server import PolicyServer, ServingMetrics
from tflearn.extensions.serving.tensor_protos import (
    get_model_metadata_pb2,
    get_model_status_pb2,
    model_service_pb2_grpc,
    predict_pb2,
    prediction_service_pb2_grpc,
)
from tflearn.files import numbered
from tflearn.launch.local import free_port
from tflearn.net import grpc_server as rpc_server
from tflearn.net import metrics_server
from tflearn.net.grpc_server import connect
from tflearn.net.server_options import ServerOptions
from tflearn.policies import loader
from tflearn.policies.exporter import PolicyExporter

DEADLINE_SECS = 60.0
OBSERVATION = np.array([[1, 0, 0, 0], [-1, 0, 0, 0]], np.float32)


@pytest.fixture(scope='module')
def address(root):
    with served_policies.serving(root, BatchOptions(), max_request_bytes=100_000) as (server, _):
        yield f'localhost:{server.port}'


@pytest.fixture(scope='module')
def channel(address):
    with grpc.insecure_channel(address) as channel:
        yield channel


def predict_request(**spec):
    request = predict_pb2.PredictRequest(**{key: value for key, value in spec.items() if key == 'output_filter'})
    request.model_spec.name = spec.get('name', 'greedy_policy')
    request.model_spec.signature_name = spec.get('signature_name', '')
    if 'version' in spec:
        request.model_spec.version.value = spec['version']
    if 'version_label' in spec:
        request.model_spec.version_label = spec['version_label']
    for name, value in spec.get('inputs', {'observation': OBSERVATION}).items():
        request.inputs[name].CopyFrom(tf.make_tensor_proto(value))
    return request


def test_standalone_client_gets_actions(address):
    program = pathlib.Path(__file__).with_name('standalone_client.py')
    others = 'tflearn,tf_agents,tensorflow_probability,tests'
    ended = forks.run('tests.testing.without', others, program, address, timeout=DEADLINE_SECS)
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout) == {
        'version': 7,
        'action': [1, 0],
        'int64_val': [1, 0],
        'inputs': ['observation'],
        'states': [[7, 30]],
    }


def test_response_names_its_version_and_signature(channel):
    stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)
    for version in ({}, {'version': 7}):
        answer = stub.Predict(predict_request(**version), DEADLINE_SECS)
        assert (answer.model_spec.name, answer.model_spec.version.value) == ('greedy_policy', 7)
        assert answer.model_spec.signature_name == 'serving_default'
    answer = stub.Predict(predict_request(output_filter=['action', 'action']), DEADLINE_SECS)
    assert list(answer.outputs) == ['action']


REFUSED = {
    'NOT_FOUND': [
        ({'name': 'greedy'}, "got the model name 'greedy'; need one of ['greedy_policy']"),
        ({'version': 8}, "got a request for version 8 of 'greedy_policy', which serves [7]"),
        ({'version_label': 'stable'}, "got the label 'stable' of 'greedy_policy', which has: none"),
    ],
    'INVALID_ARGUMENT': [
        ({'name': ''}, 'got no model_spec.name'),
        ({'signature_name': 'act'}, "got signature_name='act'; need one of ['action', "),
        ({'output_filter': ['x']}, "got output_filter ['x']; need some of ['action']"),
        ({'inputs': {}}, "got no input observation; need ['observation']"),
        ({'inputs': {'x' * 5000: OBSERVATION}}, "got the input 'xxx"),
        ({'inputs': {'observation': OBSERVATION[0]}}, 'got observation of rank 1; need rank 2'),
        ({'inputs': {'observation': OBSERVATION.astype(np.float64)}}, 'got observation of float64; need float32'),
        ({'inputs': {'observation': [['text']]}}, 'got observation of shape [1, 1]; need '),
        ({'inputs': {'observation': np.zeros([1025, 4], np.float32)}}, 'got a batch of 1025; need 1 to 1024 rows'),
    ],
    'RESOURCE_EXHAUSTED': [({'inputs': {'observation': np.zeros([10_000, 4], np.float32)}}, '')],
}


@pytest.mark.parametrize(
    ('code', 'spec', 'message'), [(code, *case) for code, cases in REFUSED.items() for case in cases]
)
def test_invalid_requests_get_a_status_and_a_reason(channel, code, spec, message):
    stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)
    with pytest.raises(grpc.RpcError) as raised:
        stub.Predict(predict_request(**spec), DEADLINE_SECS)
    assert raised.value.code().name == code
    assert raised.value.details().startswith(message)


def test_of_the_requests_that_would_share_a_batch_only_that_with_nan_is_refused(root):
    bad = OBSERVATION.copy()
    bad[1, 2] = np.nan
    with served_policies.serving(root, BatchOptions()) as (server, models), connect(f'localhost:{server.port}') as to:
        stub = prediction_service_pb2_grpc.PredictionServiceStub(to)
        with served_policies.held(models) as (started, resume):
            asked = [stub.Predict.future(predict_request(), DEADLINE_SECS)]
            assert started.wait(DEADLINE_SECS)
            inputs = [{'observation': each} for each in (OBSERVATION, bad, OBSERVATION)]
            asked += [stub.Predict.future(predict_request(inputs=each), DEADLINE_SECS) for each in inputs]
            refused = asked.pop(2)
            assert refused.code() is grpc.StatusCode.INVALID_ARGUMENT
            resume.set()
            assert [tf.make_ndarray(each.result().outputs['action']).tolist() for each in asked] == [[1, 0]] * 3
    assert refused.details() == (
        'got row 1 of observation with NaN or infinity, for which an action may look right and is not; need finite '
        'numbers; if the policy was trained with others, tflearn-serve --allow_nonfinite takes them'
    )


def raw(channel, method, data):
    """Sends bytes that may be malformed; returns the status code and the details."""
    with pytest.raises(grpc.RpcError) as raised:
        channel.unary_unary(f'/tensorflow.serving.{method}')(data, DEADLINE_SECS)
    return raised.value.code().name, raised.value.details()


def test_rejects_bytes_that_are_not_a_message(channel):
    code, details = raw(channel, 'PredictionService/Predict', b'\xff\xff\xff')
    assert (code, details.partition('(')[0]) == ('INVALID_ARGUMENT', 'got 3 bytes; need a PredictRequest ')
    assert raw(channel, 'ModelService/GetModelStatus', b'\x07')[0] == 'INVALID_ARGUMENT'
    assert raw(channel, 'PredictionService/Classify', b'')[0] == 'UNIMPLEMENTED'


def test_metadata_and_status_of_unknown_models(channel):
    metadata = get_model_metadata_pb2.GetModelMetadataRequest(metadata_field=['weights'])
    metadata.model_spec.name = 'greedy_policy'
    code, details = raw(channel, 'PredictionService/GetModelMetadata', metadata.SerializeToString())
    assert code == 'INVALID_ARGUMENT'
    assert details == "got metadata_field ['weights']; need 'signature_def' or 'vocabularies'"
    status = get_model_status_pb2.GetModelStatusRequest()
    status.model_spec.name = 'greedy_policy'
    status.model_spec.version.value = 8
    assert raw(channel, 'ModelService/GetModelStatus', status.SerializeToString())[0] == 'NOT_FOUND'


def test_a_version_that_cannot_be_loaded_shows_in_the_status(tmp_path):
    publisher = served_policies.Publisher(tmp_path)
    publisher.publish(1)
    (publisher.publish(2) / 'saved_model.pb').write_bytes(b'nothing')
    with served_policies.serving(tmp_path) as (server, _), grpc.insecure_channel(f'localhost:{server.port}') as channel:
        request = get_model_status_pb2.GetModelStatusRequest()
        request.model_spec.name = 'greedy_policy'
        answer = model_service_pb2_grpc.ModelServiceStub(channel).GetModelStatus(request, DEADLINE_SECS)
    damaged, served = answer.model_version_status
    assert (damaged.version, damaged.state, 'damaged' in damaged.status.error_message) == (2, 50, True)
    assert (served.version, served.state) == (1, 30)


def health(channel, service=''):
    request = health_pb2.HealthCheckRequest(service=service)
    answer = health_pb2_grpc.HealthStub(channel).Check(request, DEADLINE_SECS)
    return health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)


def test_health_and_metrics_follow_the_versions(tmp_path):
    models = Models(tmp_path, ServedVersion)
    metrics = ServingMetrics(models)
    port = free_port()
    served = metrics_server.serve(metrics.registry, 'localhost', port, '--metrics_port')
    server = PolicyServer(models, ServerOptions(), metrics)
    with grpc.insecure_channel(f'localhost:{server.port}') as channel:
        assert health(channel) == 'NOT_SERVING'
        served_policies.Publisher(tmp_path).publish(3)
        models.refresh()
        server.reloaded()
        assert health(channel) == health(channel, 'greedy_policy') == 'SERVING'
        client = PolicyClient(f'localhost:{server.port}')
        client.predict({'observation': OBSERVATION})
        client.close()
    server.close()
    text = urllib.request.urlopen(f'http://localhost:{port}/metrics', timeout=DEADLINE_SECS).read().decode()
    served.close()
    assert 'tflearn_served_version{model="greedy_policy"} 3.0' in text
    assert 'tflearn_requests_total{code="OK",method="Predict"} 1.0' in text
    for never in (
        'tflearn_requests_total{code="INTERNAL",method="Predict"}',
        'tflearn_decisions_total{result="dropped"}',
    ):
        assert f'{never} 0.0' in text, 'an alert sees the first one'
    assert 'tflearn_request_rows_sum{model="greedy_policy"} 2.0' in text


def test_health_watcher_that_does_not_read_blocks_nobody(tmp_path):
    publisher = served_policies.Publisher(tmp_path)
    options = [('grpc.http2.lookahead_bytes', 5), ('grpc.http2.bdp_probe', 0)]  # a response is longer
    with served_policies.serving(tmp_path) as (server, models):
        address = f'localhost:{server.port}'
        with grpc.insecure_channel(address, options) as deaf, grpc.insecure_channel(address) as channel:
            request = health_pb2.HealthCheckRequest()
            watch = health_pb2_grpc.HealthStub(deaf).Watch(request, DEADLINE_SECS)
            wait_until(lambda: '' in server._server._health._server_watchers, 'the watch', DEADLINE_SECS)
            started = time.monotonic()
            for step in (1, 2):
                publisher.publish(step)
                models.refresh()
                server.reloaded()
            assert health(channel, 'greedy_policy') == 'SERVING'
            server.close(0)
            assert time.monotonic() - started < rpc_server._LOOP_SECS
            watch.cancel()


def test_a_recurrent_policy_keeps_its_state_with_the_client(tmp_path):
    policy = example_policies.recurrent()
    PolicyExporter(policy, tmp_path / 'greedy_policy').export(0, {})
    with served_policies.serving(tmp_path, BatchOptions()) as (server, _):
        client = PolicyClient(f'localhost:{server.port}')
        served, live = client.initial_state(3), policy.get_initial_state(3)
        for seed in range(3):
            time_step = example_policies.time_step(policy, 3, seed)
            actions, served = client.action(time_step, served)
            step = policy.action(tf.nest.map_structure(tf.constant, time_step), live)
            live = step.state
            np.testing.assert_array_equal(actions['action'], step.action)
        time_steps = [example_policies.time_step(policy, 1, seed) for seed in range(4)]
        robot, live, expected = Robot(time_steps), policy.get_initial_state(1), []
        _program_of_a_robot()(client, robot)
        wrong = {'policy_state_1': served['policy_state_1'] + np.float32([[0], [0], [np.inf]])}
        with pytest.raises(grpc.RpcError) as raised:
            client.decide({'observation': np.zeros((3, 4), np.float32), **served, **wrong}, [0] * 3, DEADLINE_SECS)
        assert raised.value.code().name == 'INVALID_ARGUMENT'
        assert raised.value.details().startswith('got row 2 of policy_state_1 with NaN or infinity, for which')
        for time_step in time_steps:
            step = policy.action(tf.nest.map_structure(tf.constant, time_step), live)
            live = step.state
            expected.append(step.action.numpy()[0])
        assert robot.actions == expected
        inputs = {'observation': np.zeros((3, 4), np.float32), **served}
        with pytest.raises(ValueError, match='got a default of action_arm; need one of action'):
            client.decide(inputs, {'action_arm': [0] * 3}, DEADLINE_SECS)
    for default in ([[0.5, -1.0]] * 3, {'action_arm': np.ones((3, 2)), 'action_hand': [True] * 3}):
        decision = client.decide(inputs, default, DEADLINE_SECS)
        assert decision.version is None and decision.error.startswith('UNAVAILABLE: ')
        tf.nest.map_structure(np.testing.assert_array_equal, decision.state, served)
        if isinstance(default, dict):
            assert set(decision.actions) == {'action_arm', 'action_hand'}
        else:
            np.testing.assert_array_equal(decision.actions, default)
    assert set(served) == {'policy_state_0', 'policy_state_1'}


class Robot:
    """Observes what is in time steps."""

    stand_still = 0

    def __init__(self, time_steps):
        self._observations, self.actions = [time_step.observation[0] for time_step in time_steps], []

    def observe(self):
        return self._observations[len(self.actions)] if len(self.actions) < len(self._observations) else None

    def act(self, action):
        self.actions.append(action)


def _program_of_a_robot():
    (program,) = [block.text for block in docs_blocks.of('python') if 'def drive' in block.text]
    names = {'np': np}
    exec(program.replace('timeout_secs=0.04', f'timeout_secs={DEADLINE_SECS}'), names)
    return names['drive']


def test_config_files_make_tensorflow_serving_serve_the_same(root):
    config = pytest.importorskip('tensorflow_serving.config.model_server_config_pb2')
    from google.protobuf import text_format

    models = Models(root, ServedVersion, ['greedy_policy'], [3, 4])
    parsed = text_format.Parse(models.serving_config(), config.ModelServerConfig())
    (model,) = parsed.model_config_list.config
    assert (model.name, model.base_path) == ('greedy_policy', str(root / 'greedy_policy'))
    assert list(model.model_version_policy.specific.versions) == [3, 4]


def test_no_version_yet_is_unavailable_and_a_failing_directory_is_looked_at_again(tmp_path, monkeypatch):
    publisher = served_policies.Publisher(tmp_path)
    with served_policies.serving(tmp_path) as (server, models), connect(f'localhost:{server.port}') as connected:
        stub = prediction_service_pb2_grpc.PredictionServiceStub(connected)
        for version in ({}, {'version': 8}):
            with pytest.raises(grpc.RpcError) as raised:
                stub.Predict(predict_request(**version), DEADLINE_SECS)
            assert raised.value.code().name == 'UNAVAILABLE'
        publisher.publish(1)
        with monkeypatch.context() as patched:
            patched.setattr(numbered.os, 'listdir', _no_handles)
            assert not models.refresh()
        with monkeypatch.context() as patched:
            patched.setattr(loader, 'read_json', _no_handles)  # of the load
            assert not models.refresh()
        assert models.refresh()
        assert stub.Predict(predict_request(), DEADLINE_SECS).model_spec.version.value == 1
        with pytest.raises(grpc.RpcError) as raised:
            stub.Predict(predict_request(version=8), DEADLINE_SECS)
        assert raised.value.code().name == 'NOT_FOUND'


def _no_handles(*unused):
    raise OSError(errno.EMFILE, 'Too many open files')


def test_few_bytes_do_not_stand_for_many(tmp_path):
    attacks.save_sequence_policy(tmp_path / 'greedy_policy' / '1')
    with (
        served_policies.serving(tmp_path, BatchOptions()) as (server, _),
        connect(f'localhost:{server.port}') as connected,
    ):
        stub = prediction_service_pb2_grpc.PredictionServiceStub(connected)
        request = predict_request(inputs={})
        few = request.inputs['observation']
        few.dtype = tf.float32.as_datatype_enum
        few.float_val.append(1.0)
        few.tensor_shape.dim.add().size = 1024
        few.tensor_shape.dim.add().size = 500_000
        with pytest.raises(grpc.RpcError) as raised:
            stub.Predict(request, DEADLINE_SECS)
        assert raised.value.code().name == 'INVALID_ARGUMENT'
        assert raised.value.details() == (
            'got inputs of 2048000000 bytes, observation [1024, 500000]; need at most 4194304'
        )
        # Those of different lengths are computed, though they come at the same time.
        asked = []
        for length in (3, 5, 7):
            few.tensor_shape.dim[0].size, few.tensor_shape.dim[1].size = 2, length
            asked.append(stub.Predict.future(request, DEADLINE_SECS))
        assert [tf.make_ndarray(each.result().outputs['action']).tolist() for each in asked] == [[True, True]] * 3


def test_a_category_out_of_bounds_is_named(tmp_path):
    spec = {'kind': tensor_spec.BoundedTensorSpec((2,), tf.int32, 1, 4), 'x': tf.TensorSpec((3,), tf.float32)}
    policy = random_tf_policy.RandomTFPolicy(ts.time_step_spec(spec), tensor_spec.BoundedTensorSpec((), tf.int64, 0, 1))
    PolicyExporter(policy, tmp_path / 'greedy_policy').export(1, {})
    with served_policies.serving(tmp_path) as (server, _), connect(f'localhost:{server.port}') as connected:
        stub = prediction_service_pb2_grpc.PredictionServiceStub(connected)
        for kind in ([[1, 4]], [[0, 0]], [[2, 5]], [[-1, 2]]):
            inputs = {'observation_kind': np.array(kind, np.int32), 'observation_x': np.zeros((1, 3), np.float32)}
            asked = stub.Predict.future(predict_request(inputs=inputs), DEADLINE_SECS)
            wrong = [value for value in kind[0] if not 0 <= value <= 4]
            if not wrong:
                assert asked.result().outputs['action']
                continue
            assert asked.code().name == 'INVALID_ARGUMENT'
            assert asked.details() == f'got observation_kind with the value {wrong[0]}; need 0 to 4'
