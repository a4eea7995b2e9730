"""The serve job serves a run's policies, whichever of both starts first, and ends when it is stopped."""

import stat
import threading
import urllib.error
import urllib.request

import numpy as np
import pytest

pytest.importorskip('tensorflow_serving', reason='needs pip install ".[serving]"')
import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.jobs.conftest import _no_source_is_read_again  # noqa: F401
from tests.testing import served_policies
from tests.testing.jobs import Job
from tflearn.core.waiting import wait_until
from tflearn.extensions.serving import serve
from tflearn.extensions.serving.client import PolicyClient
from tflearn.files.run_dir import RunDir, read_json
from tflearn.launch.local import free_port

OBSERVATION = np.array([[1, 0, 0, 0], [-1, 0, 0, 0]], np.float32)


@pytest.fixture
def start(tmp_path):
    """Starts the job; returns it and the run directory."""
    jobs = []

    def start(connect_timeout_secs=60.0, port=0, metrics_port=None, **options):
        run_dir = RunDir(tmp_path / 'run')
        arguments = {
            'run_dir': run_dir,
            'server_options': serve.ServerOptions(port=port),
            'options': serve.ServeOptions(poll_secs=0.05, **options),
            'connect_timeout_secs': connect_timeout_secs,
            'metrics_port': metrics_port,
        }
        jobs.append(Job(serve.serve, threading.Event(), **arguments))
        return jobs[-1], run_dir

    yield start
    for job in jobs:
        job.stop.set()
        job._thread.join(60)


def status(run_dir):
    return read_json(run_dir.status('serve')) or {}


def test_waits_for_the_first_policy_follows_new_ones_and_answers_for_a_while_when_it_is_stopped(start):
    metrics_port = free_port()
    options = {'batching': serve.BatchOptions(), 'allow_nonfinite': True, 'lame_duck_secs': 2.0}
    job, run_dir = start(metrics_port=metrics_port, **options)
    wait_until(lambda: status(run_dir).get('port'), 'the server', 60)
    assert status(run_dir)['state'] == 'waiting for a policy' and ready(metrics_port) == 503
    publisher = served_policies.Publisher(run_dir.policies)
    client = PolicyClient(f'localhost:{status(run_dir)["port"]}')
    for step in (1, 2):
        publisher.publish(step)
        wait_until(lambda step=step: status(run_dir).get('greedy_policy_version') == step, f'version {step}', 60)
        outputs, version = client.predict({'observation': OBSERVATION})
        assert version == step and served_policies.agrees(OBSERVATION, outputs['action'], step)
    assert ready(metrics_port) == 200
    assert f'base_path: "{run_dir.greedy_policy}"' in run_dir.serving_models.read_text()
    assert 'max_batch_size { value: 64 }' in run_dir.serving_batching.read_text()
    job.stop.set()
    wait_until(lambda: health(status(run_dir)['port']) == health_pb2.HealthCheckResponse.NOT_SERVING, 'health', 2)
    assert client.predict({'observation': OBSERVATION + np.inf})[1] == 2 and ready(metrics_port) == 503
    client.close()
    job.join()
    assert status(run_dir)['state'] == 'stopped'


def test_times_out_without_a_policy(start):
    job, run_dir = start(connect_timeout_secs=0.1, policies=('greedy_policy',))
    with pytest.raises(TimeoutError, match=f'waiting for a version of greedy_policy in {run_dir.policies}'):
        job.join()
    assert stat.S_IMODE(run_dir.root.stat().st_mode) == 0o700, 'it has the log of decisions'


def health(port):
    with grpc.insecure_channel(f'localhost:{port}') as channel:
        return health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), 60).status


def ready(port):
    """Returns what a probe is answered."""
    try:
        with urllib.request.urlopen(f'http://localhost:{port}/ready', timeout=60) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def test_unnamed_policy_without_versions_does_not_end_the_server(start, tmp_path):
    run_dir = RunDir(tmp_path / 'run')
    run_dir.policy('other').mkdir(parents=True)
    served_policies.Publisher(run_dir.policies).publish(1)
    job, run_dir = start(connect_timeout_secs=0.5)
    wait_until(lambda: status(run_dir).get('greedy_policy_version') == 1, 'the version', 60)
    job._thread.join(1.0)
    assert not job.ended and status(run_dir)['state'] == 'running'
    assert health(status(run_dir)['port']) == health_pb2.HealthCheckResponse.SERVING
