"""Checkpoints of a process that is killed while it writes, and of one whose disk is full."""

import os
import signal
import threading
import time

import numpy as np
import tensorflow as tf

from tests.testing import forks
from tflearn.learner.checkpoints import Checkpoints

DEADLINE_SECS = 120.0
SIZE = 8_000_000

SAVE_FOREVER = f"""
import sys, itertools
import tensorflow as tf
from tflearn.learner.checkpoints import Checkpoints
a = tf.Variable(tf.zeros({SIZE}))
checkpoints = Checkpoints(sys.argv[1], dict(a=a), max_to_keep=1, asynchronous=True)
for step in itertools.count(1):
    a.assign(tf.fill((tf.size(a),), float(step)))
    checkpoints.save(step)
"""

SAVE_TO_A_FULL_DISK = """
import resource, sys, threading
import tensorflow as tf
from tflearn.learner.checkpoints import Checkpoints
a = tf.Variable(tf.zeros(100_000))
checkpoints = Checkpoints(sys.argv[1], dict(a=a), asynchronous=True)
def save(step, max_bytes):
    resource.setrlimit(resource.RLIMIT_FSIZE, (max_bytes, resource.RLIM_INFINITY))
    a.assign(tf.fill((100_000,), float(step)))
    checkpoints.save(step)
    checkpoints.wait()
save(1, resource.RLIM_INFINITY)
try:
    save(2, 50_000)
except OSError as error:
    print(error, checkpoints.newest)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
assert Checkpoints(sys.argv[1], dict(a=a)).restore_newest() == checkpoints.newest
assert a.numpy()[0] == 1.0
save(3, resource.RLIM_INFINITY)
print(checkpoints.newest, threading.active_count())
"""


def _start(folder, text, directory):
    program = folder / 'program.py'
    program.write_text(text)
    environment = {**os.environ, 'CUDA_VISIBLE_DEVICES': ''}
    return forks.start(str(program), directory, log=folder / 'log', errors=folder / 'errors', env=environment)


def test_process_killed_while_writing_leaves_complete_checkpoints(tmp_path, tmp_path_factory):
    folder = tmp_path_factory.mktemp('program')
    killed_while_writing = False
    deadline = time.monotonic() + DEADLINE_SECS
    while not killed_while_writing:
        process = _start(folder, SAVE_FOREVER, tmp_path)
        try:
            while not (list(tmp_path.glob('*.index')) and _half_written(tmp_path)):
                assert process.poll() is None and time.monotonic() < deadline
                threading.Event().wait(0.001)
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait(DEADLINE_SECS)
        killed_while_writing = bool(_half_written(tmp_path))
    checkpoints = Checkpoints(tmp_path, {'a': (a := tf.Variable(tf.zeros(SIZE)))})
    path = checkpoints.restore_newest()
    np.testing.assert_array_equal(a, np.full(SIZE, float(path.rpartition('-')[2]), np.float32))
    checkpoints.save(1_000_000)
    assert not list(tmp_path.glob('.writing*'))


def _half_written(directory):
    try:
        return [file for file in directory.glob('.writing*/*') if file.stat().st_size > 0]
    except FileNotFoundError:
        return []


def test_full_disk_keeps_the_previous_checkpoint(tmp_path, tmp_path_factory):
    folder = tmp_path_factory.mktemp('program')
    process = _start(folder, SAVE_TO_A_FULL_DISK, tmp_path)
    try:
        code = process.wait(DEADLINE_SECS)
    finally:
        process.kill()
    assert code == 0, (folder / 'errors').read_text()
    failure, success = (folder / 'log').read_text().splitlines()
    assert failure.startswith(f'could not save {tmp_path}/ckpt-2 (')
    assert failure.endswith(f'{tmp_path}/ckpt-1')
    assert success == f'{tmp_path}/ckpt-3 1'
