"""Four logical CPUs for every test: replicas on one machine. A seed. A job's log level. And an end without teardown."""

import gc
import os
import pathlib
import re
import sys

import pytest

import tflearn  # noqa: F401  (first: tf.keras is Keras 2)

# isort: split
import tensorflow as tf
from absl import logging

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

# What the lane does not change, or what only Reverb can do: in the current lane (Python 3.12 and later) it is left out.
SAME_IN_BOTH = (
    *('architecture', 'chaos', 'config', 'files', 'launch', 'net', 'tools'),
    *('architecture_test.py', 'docker_test.py', 'docs_commands_test.py', 'docs_test.py', 'from_rllib_test.py'),
    *('gin_files_test.py', 'notebook_test.py', 'packaging_test.py', 'scale_model_test.py', 'suite_test.py'),
)
IS_CURRENT = sys.version_info >= (3, 12)
_USES_REVERB = re.compile(r'^\s*(import reverb|from (tflearn\.replay\.reverb|tests\.sampling\.prioritized_test))', re.M)
_NEEDS_REVERB = re.compile('need --replay_backend=reverb|where reverb cannot be imported')

_exit_status = 1
_left_out = set()


def pytest_configure():
    cpu = tf.config.list_physical_devices('CPU')[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 4)
    # Where none is set, saving a model leaves it at WARNING, and later tests would miss what they look for.
    logging.set_verbosity(logging.INFO)
    gc.set_threshold(50_000, 20, 20)  # see `_small_heap`


def pytest_ignore_collect(collection_path):
    """Leaves out what the current lane does not change, and files that import Reverb; the summary names them."""
    if not IS_CURRENT:
        return None
    name = collection_path.relative_to(pathlib.Path(__file__).parent).as_posix()
    uses_reverb = name.endswith('_test.py') and _USES_REVERB.search(collection_path.read_text(encoding='utf-8'))
    if name in SAME_IN_BOTH or uses_reverb:
        _left_out.add(f'{name} (Reverb)' if uses_reverb else name)
        return True
    return None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """Skips what the current lane refuses since it needs Reverb: draws by the server, and the address of one."""
    report = yield
    error = call.excinfo and call.excinfo.value
    checks = (AssertionError, pytest.fail.Exception)  # whose texts quote what a test expects
    if IS_CURRENT and error and not isinstance(error, checks) and _NEEDS_REVERB.search(str(error)):
        report.outcome, report.longrepr = 'skipped', (str(item.path), 0, 'Skipped: needs Reverb')
    return report


def pytest_terminal_summary(terminalreporter):
    if _left_out:
        terminalreporter.line(f'left out in the current lane: {", ".join(sorted(_left_out))}')


def pytest_collection_modifyitems(items):
    order = {file: i for i, file in enumerate(LONGEST)}
    items.sort(key=lambda item: order.get(item.nodeid.split('::')[0].removeprefix('tests/'), len(LONGEST)))
    gc.freeze()  # what was imported; see `_small_heap`


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


def pytest_sessionfinish(exitstatus):
    global _exit_status
    _exit_status = int(exitstatus)


def pytest_unconfigure():
    # Threads of Reverb that wait for servers which are gone would abort the process while it is torn down.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(_exit_status)
