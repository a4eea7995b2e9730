"""The real server follows the states: a rollback answers within a second, a canary answers its share and is logged."""

import contextlib
import json
import os
import pathlib
import resource
import signal
import subprocess
import sys
import threading
import time

import grpc
import pytest

pytest.importorskip('tensorflow_serving', reason='needs pip install ".[serving]"')
import tensorflow as tf
from tensorflow_serving.apis import predict_pb2, prediction_service_pb2_grpc

from tests.testing import forks
from tests.testing.served_policies import OBSERVATION, Publisher, agrees
from tflearn.core.waiting import wait_until
from tflearn.files.run_dir import RunDir, read_json
from tflearn.launch.local import free_port
from tflearn.policies import states

DEADLINE_SECS = 120.0


@pytest.fixture
def served(tmp_path, request):
    """A running server of versions 1 and 2, of which 2 is stable; a function that asks; the policy's directory."""
    publisher, port = Publisher(tmp_path / 'policies'), free_port()
    directory = publisher.directory
    for step in (1, 2):
        publisher.publish(step)
        states.promote(directory, step, 'stable', 'a test')
    flags = (
        f'--root_dir={tmp_path}',
        f'--port={port}',
        f'--decision_log={tmp_path}/log',
        *getattr(request, 'param', ()),
    )
    program = forks.start('scripts.serve', *flags, log=tmp_path / 'serve.log')
    with grpc.insecure_channel(f'localhost:{port}') as channel:
        stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)

        def ask(label='', **metadata):
            request = predict_pb2.PredictRequest()
            request.model_spec.name = 'greedy_policy'
            if label:
                request.model_spec.version_label = label
            request.inputs['observation'].CopyFrom(tf.make_tensor_proto(OBSERVATION))
            headers = [(name.replace('_', '-'), value) for name, value in metadata.items()]
            answer = stub.Predict(request, DEADLINE_SECS, headers, wait_for_ready=True)
            version = answer.model_spec.version.value
            assert agrees(OBSERVATION, tf.make_ndarray(answer.outputs['action']), version)
            return version

        def is_ready():
            try:
                return ask() == 2
            except grpc.RpcError:
                return False

        try:
            wait_until(is_ready, 'the server', DEADLINE_SECS)
            yield ask, publisher
        finally:
            program.send_signal(signal.SIGTERM)
            assert program.wait(DEADLINE_SECS) == 0, (tmp_path / 'serve.log').read_text()


def test_a_rollback_answers_within_a_second(served, tmp_path):
    ask, publisher = served
    command = [sys.executable, '-m', 'scripts', 'promote', f'--root_dir={tmp_path}', '--rollback', '--why=bad']
    with subprocess.Popen(command, cwd=forks.CHECKOUT, env=os.environ, stdout=subprocess.DEVNULL) as program:
        wait_until(lambda: ask() == 1, 'the old version', DEADLINE_SECS, poll_secs=0.01)
        taken = time.time() - (publisher.directory / states.FILE).stat().st_mtime
        assert program.wait(DEADLINE_SECS) == 0
    assert taken < 1.0


@pytest.mark.parametrize(
    'served', [('--trial_requests=300', '--trial_max_latency_secs=0.00001')], indirect=True, ids=['slow']
)
def test_a_slow_version_is_taken_back(served, tmp_path):
    ask, publisher = served
    wait_until(lambda: ask() == 1, 'the old version', DEADLINE_SECS, poll_secs=0.001)
    last = states.read(publisher.directory).history[-1]
    assert last['who'] == 'tflearn-serve' and '300 requests took more than 1e-05 s' in last['why']


def lines_of(directory):
    """The decisions of files that are complete, or being written."""
    texts = []
    found = directory.glob('*decisions-*.jsonl')
    for file in sorted(found, key=lambda file: file.name.lstrip('.')):
        with contextlib.suppress(FileNotFoundError):  # it was renamed just now
            texts.append(file.read_text().rpartition('\n')[0])
    return [json.loads(line) for text in texts for line in text.splitlines()]


def test_a_log_of_shadows_that_cannot_be_written_ends_no_server(served, tmp_path):
    ask, publisher = served
    (tmp_path / 'log' / 'shadow').write_text('in the place of a directory')
    publisher.publish(3)
    states.promote(publisher.directory, 3, 'shadow', 'a test')
    wait_until(lambda: 'greedy_policy_version' in status(tmp_path), 'the status', DEADLINE_SECS)
    failures = lambda: status(tmp_path).get('side_task_failures', 0)  # noqa: E731
    wait_until(lambda: failures() >= 2, 'two attempts', DEADLINE_SECS)
    assert ask() == 2
    (tmp_path / 'log' / 'shadow').unlink()
    shadowed = lambda: lines_of(tmp_path / 'log' / 'shadow')  # noqa: E731
    wait_until(lambda: ask() == 2 and shadowed(), 'the log', DEADLINE_SECS)
    assert {line['version'] for line in shadowed()} == {3}


def test_a_log_whose_process_died_waits_for_file_handles(served, tmp_path):
    ask, _ = served
    pid = wait_until(lambda: status(tmp_path).get('pid'), 'the status', DEADLINE_SECS)
    limits = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (10, limits[1]))  # of which none is free
    try:
        os.kill(writer_of(pid), signal.SIGKILL)
        for number in range(20):
            assert ask(event_id=f'e-{number}') == 2
        threading.Event().wait(1.5)  # for attempts that fail
        assert ask(event_id='e-20') == 2
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)
    expected = [f'e-{number}-{row}' for number in range(21) for row in range(len(OBSERVATION))]
    wait_until(lambda: logged_ids(tmp_path)[-len(expected) :] == expected, 'the log', DEADLINE_SECS)
    assert len(set(logged_ids(tmp_path))) == len(logged_ids(tmp_path))


def status(root):
    return read_json(RunDir(root).status('serve')) or {}


def logged_ids(root):
    return [line['id'] for line in lines_of(root / 'log')]


def writer_of(pid):
    """The process that writes the log of a server."""
    children = pathlib.Path(f'/proc/{pid}/task').glob('*/children')
    found = [child for file in children for child in file.read_text().split()]
    command = lambda child: pathlib.Path(f'/proc/{child}/cmdline').read_bytes()  # noqa: E731
    (writer,) = [child for child in found if b'spawn_main' in command(child)]
    return int(writer)


def test_a_canary_answers_its_keys_and_is_logged_as_such(served, tmp_path):
    ask, publisher = served
    publisher.publish(3)
    found = states.promote(publisher.directory, 3, 'canary', 'a test', share=0.3)
    wait_until(lambda: 3 in {ask(canary_key=f'user-{i}') for i in range(40)}, 'the canary', DEADLINE_SECS)
    keys = [f'user-{i}' for i in range(60)]
    answered = [ask(canary_key=key, event_id=f'e-{key}') for key in keys]
    assert answered == [found.labels[found.arm(key)] for key in keys] and set(answered) == {2, 3}
    assert [ask(label) for label in ('stable', 'canary')] == [2, 3]

    def logged():
        texts = [file.read_text().rpartition('\n')[0] for file in (tmp_path / 'log').glob('.*.jsonl')]
        lines = [json.loads(line) for text in texts for line in text.splitlines()]
        return {line['id'][2:-2]: (line['arm'], line['version']) for line in lines if line['id'].startswith('e-')}

    wait_until(lambda: len(logged()) == 60, 'the log', DEADLINE_SECS)
    assert logged() == {key: (found.arm(key), found.labels[found.arm(key)]) for key in keys}
