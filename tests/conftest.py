"""Four logical CPUs for every test: replicas on one machine. A job's log level. And an end without teardown."""

import gc
import os
import sys

import pytest
import tensorflow as tf
from absl import logging

_exit_status = 1


def pytest_configure():
    cpu = tf.config.list_physical_devices('CPU')[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 4)
    # Where none is set, saving a model leaves it at WARNING, and later tests would miss what they look for.
    logging.set_verbosity(logging.INFO)


@pytest.fixture(autouse=True, scope='module')
def _small_heap():
    """TensorFlow keeps so many objects of each test that looking through them again and again would take minutes."""
    yield
    gc.collect()
    gc.freeze()


def pytest_sessionfinish(exitstatus):
    global _exit_status
    _exit_status = int(exitstatus)


def pytest_unconfigure():
    # Threads of Reverb that wait for servers which are gone would abort the process while it is torn down.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(_exit_status)
