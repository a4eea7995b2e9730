import json
import os
import re

import pytest
import tensorflow as tf

from tests.testing import forks
from tflearn.core import strategies
from tflearn.launch.local import free_address


def test_default_is_one_replica():
    assert strategies.make('default').num_replicas_in_sync == 1


def test_cpu_is_one_replica_on_the_cpu():
    strategy = strategies.make('cpu')
    assert strategy.num_replicas_in_sync == 1
    with strategy.scope():
        assert 'CPU:0' in tf.Variable(1.0).device


@pytest.mark.skipif(bool(tf.config.list_physical_devices('GPU')), reason='this machine has a GPU')
@pytest.mark.parametrize(
    ('name', 'line'), [('default', '1 CPU device(s)'), ('cpu', '1 CPU device(s)'), ('mirrored:2', '2 CPU device(s)')]
)
def test_describes_devices(tmp_path, name, line):
    strategy = strategies.make(name)
    assert strategies.describe_devices(strategy, tmp_path) == f'training on {line}; TensorFlow sees no GPU'
    (tmp_path / 'nvidia0').touch()
    unusable = strategies.describe_devices(strategy, tmp_path)
    assert unusable.startswith(f'training on {line}; this machine has an NVIDIA GPU that TensorFlow does not see')


@pytest.mark.parametrize('count', [1, 2])
def test_mirrored_on_logical_devices(count):
    strategy = strategies.make(f'mirrored:{count}')
    assert isinstance(strategy, tf.distribute.MirroredStrategy)
    assert strategy.num_replicas_in_sync == count


NONSENSE = ['mirrord', 'mirrored:', 'mirrored:0', 'mirrored:x', 'cpu:1', 'tpu:', 'multi_worker:2', '']


@pytest.mark.parametrize('name', NONSENSE)
def test_rejects_unknown_names(name):
    with pytest.raises(ValueError, match="got strategy=.*mirrored:N.*'multi_worker', 'tpu' or 'tpu:<address>'"):
        strategies.make(name)


def test_rejects_more_replicas_than_devices():
    with pytest.raises(ValueError, match=r'this machine has 4 device\(s\)'):
        strategies.make('mirrored:64')


@pytest.mark.skipif(bool(tf.config.list_physical_devices('GPU')), reason='this machine has a GPU')
def test_rejects_gpu_without_a_gpu():
    with pytest.raises(ValueError, match="got strategy='gpu'; need a GPU that TensorFlow sees.*CUDA_VISIBLE_DEVICES"):
        strategies.make('gpu')


def test_rejects_tpu_without_a_name(monkeypatch):
    monkeypatch.delenv('TPU_NAME', raising=False)
    with pytest.raises(ValueError, match="got strategy='tpu' and no TPU_NAME; need the TPU's address"):
        strategies.make('tpu')


def test_tpu_address_without_a_listener_times_out():
    address = free_address()
    with pytest.raises(TimeoutError, match=f'waiting for a TPU worker at {address}'):
        strategies.make(f'tpu:grpc://{address}', timeout_secs=1.0)
    with pytest.raises(ValueError, match="got the TPU address 'localhost:x'; need host:port"):
        strategies.make('tpu:localhost:x')


@pytest.mark.parametrize('name', ['default', 'cpu', 'mirrored:2'])
def test_layout_of_one_process(name):
    strategy = strategies.make(name)
    layout = strategies.layout(strategy)
    replicas = strategy.num_replicas_in_sync
    assert layout == strategies.ReplicaLayout(replicas, 1, 0, 1, True)
    assert layout.replicas_per_pipeline == replicas


def test_layout_describes_both_batch_sizes():
    layout = strategies.ReplicaLayout(replicas=8, input_pipelines=2, worker=1, workers=2, is_chief=False)
    assert layout.describe(64) == (
        '8 replica(s) fed by 2 input pipeline(s), 4 each; batch 64 per replica, 512 global; worker 1 of 2'
    )


def _in_a_process_of_its_own(folder, text, **environment):
    program = folder / 'program.py'
    program.write_text(text)
    return forks.run(str(program), env={**os.environ, 'CUDA_VISIBLE_DEVICES': '', **environment}, timeout=200)


def _tf_config(size, index=0):
    addresses = [free_address() for _ in range(size)]
    return json.dumps({'cluster': {'worker': addresses}, 'task': {'type': 'worker', 'index': index}})


def test_sets_threads_before_tensorflow_starts(tmp_path):
    program = (
        'import tensorflow as tf; from tflearn.core import strategies; strategies.use_threads(1, intra_op=2); '
        'tf.constant(1); print(tf.config.threading.get_inter_op_parallelism_threads(), '
        'tf.config.threading.get_intra_op_parallelism_threads()); strategies.use_threads(None); '
        'strategies.use_threads(2)'
    )
    result = _in_a_process_of_its_own(tmp_path, program)
    assert result.stdout.strip() == '1 2'
    assert 'RuntimeError: Inter op parallelism cannot be modified after initialization.' in result.stderr


@pytest.mark.parametrize(('cores', 'threads'), [(2, '1'), (64, '0')])
def test_collectors_use_one_thread_for_an_operation_on_few_cores(tmp_path, cores, threads):
    program = (
        f'import os, tensorflow as tf; os.cpu_count = lambda: {cores}; from tflearn.jobs import collect; '
        'collect.use_threads(); print(tf.config.threading.get_intra_op_parallelism_threads())'
    )
    assert _in_a_process_of_its_own(tmp_path, program).stdout.strip() == threads


def test_multi_worker_needs_tf_config(monkeypatch):
    monkeypatch.delenv('TF_CONFIG', raising=False)
    with pytest.raises(ValueError, match='got no TF_CONFIG in the environment; need e.g.'):
        strategies.make('multi_worker')


def test_rejects_tpu_on_a_machine_without_one(tmp_path):
    program = "from tflearn.core import strategies; strategies.make('tpu:local')"
    done = _in_a_process_of_its_own(tmp_path, program)
    assert done.returncode == 1
    expected = "no TPU starts at 'local'.*need a TPU and a TensorFlow made for it"
    assert re.search(expected, done.stderr), done.stderr[-3000:]


def test_rejects_multi_worker_after_tensorflow_has_started(tmp_path):
    program = """
import tensorflow as tf
tf.constant(1.0) + 1.0
from tflearn.core import strategies
strategies.make('multi_worker')
"""
    done = _in_a_process_of_its_own(tmp_path, program, TF_CONFIG=_tf_config(1))
    assert done.returncode == 1
    assert "got strategy='multi_worker' too late" in done.stderr, done.stderr[-3000:]


def test_multi_worker_restores_the_handler_of_sigterm(tmp_path):
    program = """
import os, signal, threading
received = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: received.set())
from tflearn.core import strategies
strategy = strategies.make('multi_worker')
print(strategies.layout(strategy))
os.kill(os.getpid(), signal.SIGTERM)
print('received' if received.wait(30) else 'lost')
"""
    done = _in_a_process_of_its_own(tmp_path, program, TF_CONFIG=_tf_config(1))
    assert 'ReplicaLayout(replicas=1, input_pipelines=1, worker=0, workers=1, is_chief=True)' in done.stdout, (
        done.stderr
    )
    assert done.stdout.endswith('received\n')


def test_wait_for_other_workers_has_a_deadline(tmp_path):
    program = """
from absl import logging
logging.set_verbosity(logging.INFO)
from tflearn.core import strategies
strategies.make('multi_worker', timeout_secs=3)
"""
    done = _in_a_process_of_its_own(tmp_path, program, TF_CONFIG=_tf_config(2))
    assert done.returncode == 1
    assert 'waiting at most 3 s for 2 worker(s): localhost:' in done.stderr
    assert 'Timeout (0:00:03)!' in done.stderr and '_multi_worker' in done.stderr, done.stderr[-3000:]
