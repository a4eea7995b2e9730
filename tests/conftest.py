"""Four logical CPUs for every test: replicas on one machine. A seed. A job's log level. And an end without teardown."""

import collections
import gc
import os
import sys

import pytest

import tflearn  # noqa: F401  (first: tf.keras is Keras 2)

# isort: split
import tensorflow as tf
from absl import logging

from tests.testing import lanes

# TFLEARN_TEST_SEED=N scripts/test: the same tests with other random numbers.
SEED = int(os.environ.get('TFLEARN_TEST_SEED', '0'))

# Files whose tests take longest, longest first: last of all they would keep one process busy while the others are done.
LONGEST = (
    'end_to_end_test.py',
    'learner/multi_worker_test.py',
    'jobs/train_test.py',
    'docs_code_test.py',
    'docs_programs_test.py',
    'api/training_test.py',
    'learner/tf_agents_suites_test.py',
    'learner/learner_test.py',
    'jobs/synchronous_test.py',
    'jobs/train_offline_test.py',
    'learner/replicas_test.py',
    'jobs/multi_worker_train_test.py',
    'learner/train_loop_test.py',
    'learner/tf_agents_learner_test.py',
    'learner/learner_options_test.py',
    'conformance_test.py',
    'policies/exporter_test.py',
    'jobs/on_policy_test.py',
    'jobs/demonstrations_test.py',
    'replay/restart_test.py',
)

_exit_status = 1
_left_out = set()


def pytest_configure():
    cpu = tf.config.list_physical_devices('CPU')[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 4)
    # Where none is set, saving a model leaves it at WARNING, and later tests would miss what they look for.
    logging.set_verbosity(logging.INFO)
    gc.set_threshold(50_000, 20, 20)  # see `_small_heap`


def pytest_ignore_collect(collection_path):
    """Leaves out files and folders of which the lane has nothing to run; the summary names them."""
    if left_out := lanes.leaves_out(collection_path):
        _left_out.add(left_out)
        return True
    return None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if call.excinfo and lanes.needs_reverb(call.excinfo.value):
        report.outcome, report.longrepr = 'skipped', (str(item.path), 0, 'Skipped: needs Reverb')
    return report


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node):
    _left_out.update(getattr(node, 'workeroutput', {}).get('left_out', ()))


def pytest_terminal_summary(terminalreporter):
    if _left_out:
        terminalreporter.line(f'left out in the current lane: {", ".join(sorted(_left_out))}')


@pytest.hookimpl(trylast=True)  # the slow ones are gone
def pytest_collection_modifyitems(config, items):
    order = {file: i for i, file in enumerate(LONGEST)}
    items.sort(key=lambda item: order.get(_file_of(item), len(LONGEST)))
    marked = [item for item in items if lanes.IS_CURRENT and item.get_closest_marker('classic')]
    if marked:
        config.hook.pytest_deselected(items=marked)
        items[:] = [item for item in items if item not in marked]
        _left_out.update(f'{n} of {file}' for file, n in collections.Counter(map(_file_of, marked)).items())
    gc.freeze()  # what was imported; see `_small_heap`


def _file_of(item):
    return item.nodeid.split('::')[0].removeprefix('tests/')


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup():
    """Seeds Python, numpy, TensorFlow and Keras, before fixtures of any scope: a failure can be repeated."""
    tf.keras.utils.set_random_seed(SEED)
    # All strategies of a process begin with the same keys: an operation that an earlier test left behind would meet
    # those of the next one.
    tf.distribute.MirroredStrategy._collective_key_base += 100


@pytest.fixture(autouse=True, scope='module')
def _small_heap():
    """TensorFlow keeps so many objects of each test that looking through them again and again would take minutes."""
    yield
    gc.collect()
    gc.freeze()


def pytest_sessionfinish(session, exitstatus):
    global _exit_status
    _exit_status = int(exitstatus)
    if hasattr(session.config, 'workeroutput'):  # one of several processes
        session.config.workeroutput['left_out'] = sorted(_left_out)


def pytest_unconfigure():
    # Threads of Reverb that wait for servers which are gone would abort the process while it is torn down.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(_exit_status)
