"""Four logical CPUs for every test: replicas on one machine. A seed. A job's log level. And an end without teardown."""

import collections
import gc
import os
import sys
import zlib
from unittest import mock

import pytest

import tflearn  # noqa: F401  (first: tf.keras is Keras 2)

# isort: split
import tensorflow as tf
from absl import logging
from tensorflow.python.eager import context

from tests.testing import forked_workers, lanes, warm_parents, without_extensions

# TFLEARN_TEST_SEED=N scripts/test: the same tests with other random numbers.
SEED = int(os.environ.get('TFLEARN_TEST_SEED', '0'))

_exit_status = 1
_left_out = set()


def pytest_addoption(parser):
    forked_workers.add_options(parser)
    parser.addoption(
        '--documents', choices=('all', 'none', 'only'), default='all', help='run the tests of documents and packaging?'
    )
    parser.addoption(
        '--extensions', choices=('all', 'none', 'only'), default='all',
        help='run the tests that need tflearn.extensions? none: imports of it are refused',
    )  # fmt: skip


def pytest_configure(config):
    cpu = tf.config.list_physical_devices('CPU')[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 4)
    # Where none is set, saving a model leaves it at WARNING, and later tests would miss what they look for.
    logging.set_verbosity(logging.INFO)
    gc.set_threshold(50_000, 20, 20)  # see `_small_heap`
    forked_workers.configure(config)
    if config.option.extensions == 'none':
        without_extensions.install()


def pytest_ignore_collect(collection_path, config):
    """Leaves out files that are not asked for, and those of which the lane runs nothing, which the summary names."""
    if lanes.is_other(collection_path, config.option.documents):
        return True
    if config.option.extensions == 'none' and without_extensions.uses_them(collection_path):
        return True
    if left_out := lanes.leaves_out(collection_path):
        _left_out.add(left_out)
        return True
    return None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if call.excinfo and (missing := lanes.missing(call.excinfo.value)):
        report.outcome, report.longrepr = 'skipped', (str(item.path), 0, f'Skipped: needs {missing}')
    return report


def pytest_terminal_summary(terminalreporter):
    if _left_out:
        terminalreporter.line(f'left out in the current lane: {", ".join(sorted(_left_out))}')


@pytest.hookimpl(trylast=True)  # the slow ones are gone
def pytest_collection_modifyitems(config, items):
    if config.option.extensions != 'all':
        wanted = config.option.extensions == 'only'
        _deselect(config, items, lambda item: _uses_extensions(item) != wanted)
    marked = _deselect(config, items, lambda item: lanes.IS_CURRENT and item.get_closest_marker('classic'))
    _left_out.update(f'{n} of {file}' for file, n in collections.Counter(map(_file_of, marked)).items())
    gc.freeze()  # what was imported; see `_small_heap`


def _deselect(config, items, is_unwanted):
    unwanted = [item for item in items if is_unwanted(item)]
    if unwanted:
        config.hook.pytest_deselected(items=unwanted)
        items[:] = [item for item in items if item not in set(unwanted)]
    return unwanted


def _uses_extensions(item):
    return item.get_closest_marker('extensions') is not None or without_extensions.uses_them(item.path)


def _file_of(item):
    return forked_workers.file_of(item.nodeid).removeprefix('tests/')


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    _seed(item.nodeid)
    # All strategies of a process begin with the same keys: an operation that an earlier test left behind would meet
    # those of the next one.
    tf.distribute.MirroredStrategy._collective_key_base += 100


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef, request):
    """What tests share does not depend on which of them is the first, nor does a test on what it shares."""
    if fixturedef.scope == 'function':
        return (yield)
    _seed(f'{fixturedef.baseid}::{fixturedef.argname}[{request.param_index}]')
    try:
        return (yield)
    finally:
        _seed(request._pyfuncitem.nodeid)


def _seed(name):
    """Seeds Python, numpy, TensorFlow and Keras by a test's or a fixture's name: a failure can be repeated.

    The kernel of a random operation counts what it has drawn. So `tf.random.set_seed` removes all kernels, and a test
    would spend a third of its time making them again. With seeds of its own it meets no other test's random kernels.
    """
    with mock.patch.object(context.pywrap_tfe, 'TFE_ContextClearCaches'):
        tf.keras.utils.set_random_seed(zlib.crc32(f'{SEED} {name}'.encode()))


@pytest.fixture
def forked_checks():
    """Forks what checks the configuration of a run, where this process starts it."""
    with warm_parents.forked(warm_parents.loaded()):
        yield


@pytest.fixture(autouse=True, scope='module')
def _small_heap():
    """TensorFlow keeps so many objects of each test that looking through them again and again would take minutes."""
    yield
    tf.random.set_seed(SEED)  # removes kernels; see `_seed`
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
