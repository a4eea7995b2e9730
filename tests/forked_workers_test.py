"""The processes of the test command, by programs of pytest over small folders of tests."""

import os
import signal
import xml.etree.ElementTree

import pytest

from tests.testing import forked_workers, forks
from tflearn.core.waiting import wait_until

DEADLINE_SECS = 120.0
# The warm parent's path has libraries that setuptools brings, whose own plugins of pytest do not work here.
ENVIRONMENT = {**os.environ, 'PYTEST_DISABLE_PLUGIN_AUTOLOAD': '1'}
CONFTEST = """
from tests.testing import forked_workers

pytest_addoption = forked_workers.add_options
pytest_configure = forked_workers.configure
"""
SEVERAL_OUTCOMES = """
import os, warnings, pytest

@pytest.fixture(scope='module', autouse=True)
def shared():
    yield os.getpid()

@pytest.fixture
def fails_afterwards():
    yield
    raise ValueError('afterwards')

@pytest.mark.parametrize('i', range(6))
def test_numbers(i): assert i != 4
def test_warns(): warnings.warn('careful')
@pytest.mark.skip(reason='not here')
def test_skipped(): pass
@pytest.mark.xfail
def test_expected(): assert False
def test_teardown(fails_afterwards): print('printed before')
"""
PASSES = """
def test_one(tmp_path): assert not list(tmp_path.iterdir())
def test_two(tmp_path): assert not list(tmp_path.iterdir())
"""
ENDS_ITS_PROCESS = """
import os, signal, threading

def test_before(): pass
def test_crashes(): os.kill(os.getpid(), signal.SIGSEGV)
def test_between(): pass
def test_exits(): os._exit(0)
def test_hangs(): threading.Event().wait()
def test_after(): pass
"""
WAITS = """
import os, pathlib, threading, pytest

@pytest.fixture
def cleaned():
    pathlib.Path(f'{__file__}.pid').write_text(str(os.getpid()))
    yield
    pathlib.Path(f'{__file__}.cleaned').touch()

def test_waits(cleaned): threading.Event().wait(100.0)
"""
RUNS_AN_OPERATION = """
import tensorflow as tf

ONE = tf.constant(1)

def test_one(): assert ONE == 1
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / 'pytest.ini').write_text('[pytest]\npython_files = *_test.py\n')
    (tmp_path / 'conftest.py').write_text(CONFTEST)
    return tmp_path


def run(folder, *arguments):
    return forks.run('pytest', '-p', 'no:cacheprovider', *arguments, timeout=DEADLINE_SECS, cwd=folder, env=ENVIRONMENT)


def outcomes(folder, *arguments):
    """Returns pytest's exit status, and what its junit file says of each test."""
    ended = run(folder, *arguments, '--junitxml=junit.xml')
    assert (folder / 'junit.xml').exists(), ended.stdout + ended.stderr
    cases = xml.etree.ElementTree.parse(folder / 'junit.xml').iter('testcase')
    found = sorted((case.get('classname'), case.get('name'), tuple(each.tag for each in case)) for case in cases)
    return ended.returncode, found, ended.stdout


def counts_in(output):
    """Returns pytest's last line without the seconds, whose digits also change how the line is filled."""
    return output.rpartition(' in ')[0].splitlines()[-1].strip('= ')


def test_workers_have_the_outcomes_of_one_process(folder):
    for name in ('a', 'b'):
        (folder / f'{name}_test.py').write_text(SEVERAL_OUTCOMES)
        (folder / f'{name}_passes_test.py').write_text(PASSES)
    code, expected, output = outcomes(folder)
    assert (code, len(expected)) == (1, 24)
    same_code, found, same_output = outcomes(folder, '--workers=2')
    assert (same_code, found) == (code, expected)
    assert counts_in(output) == counts_in(same_output)
    assert same_output.count('printed before') == 2 and same_output.count('careful') == output.count('careful')


def test_the_first_failure_ends_all_where_asked(folder):
    (folder / 'a_test.py').write_text('def test_fails(): assert False')
    (folder / 'b_test.py').write_text(WAITS)
    ended = run(folder, '--workers=2', '-x')
    assert ended.returncode == 1 and 'stopping after 1 failures' in ended.stdout
    assert (folder / 'b_test.py.cleaned').exists() or not (folder / 'b_test.py.pid').exists()


def test_no_tests_end_as_in_one_process(folder):
    (folder / 'a_test.py').write_text('def test_one(): pass')
    assert run(folder, '--workers=2', '-k', 'nothing').returncode == pytest.ExitCode.NO_TESTS_COLLECTED
    assert run(folder, '--workers=2').returncode == pytest.ExitCode.OK


def test_a_crash_names_its_test_and_others_are_run(folder):
    (folder / 'a_test.py').write_text(ENDS_ITS_PROCESS)
    code, found, output = outcomes(
        folder, '--workers=2', '-o', 'faulthandler_timeout=3', '-o', 'faulthandler_exit_on_timeout=true'
    )
    assert code == 1
    failed = [name for _, name, tags in found if tags]
    assert failed == ['test_crashes', 'test_exits', 'test_hangs']
    assert [name for _, name, tags in found if not tags] == ['test_after', 'test_before', 'test_between']
    assert 'ended by SIGSEGV while it ran a_test.py::test_crashes' in output
    assert 'ended by exit code 0 while it ran a_test.py::test_exits' in output
    assert 'Timeout (0:00:03)!' in output and 'in test_hangs' in output


@pytest.mark.parametrize('number', [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_workers_with_their_fixtures(folder, number):
    for name in ('a', 'b'):
        (folder / f'{name}_test.py').write_text(WAITS)
    given = {'log': folder / 'log', 'cwd': folder, 'env': ENVIRONMENT}
    process = forks.start('pytest', '-p', 'no:cacheprovider', '--workers=2', **given)
    try:
        pids = [folder / f'{name}_test.py.pid' for name in ('a', 'b')]
        wait_until(lambda: all(each.exists() and each.read_text() for each in pids), 'both tests', DEADLINE_SECS)
        process.send_signal(number)
        assert process.wait(DEADLINE_SECS) == pytest.ExitCode.INTERRUPTED
    finally:
        process.kill()
    for each in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(int(each.read_text()), 0)
        assert each.with_suffix('.cleaned').exists()


@pytest.mark.parametrize('arguments', [[], ['--workers=2']], ids=['one process', 'workers'])
def test_a_module_that_runs_an_operation_is_refused_by_name(folder, arguments):
    (folder / 'a_test.py').write_text(PASSES)
    (folder / 'wrong_test.py').write_text(RUNS_AN_OPERATION)
    ended = run(folder, *arguments)
    assert ended.returncode == pytest.ExitCode.INTERRUPTED
    assert 'got an operation of TensorFlow while wrong_test.py was collected; need none' in ended.stdout


@pytest.fixture(scope='module')
def shared():
    """Makes the tests that take it share something."""


def test_shared_fixtures_are_shared(shared):
    """One of the tests that `test_long_files_are_divided` divides, or not."""


def test_long_files_are_divided_where_nothing_is_shared(request):
    file = forked_workers.file_of(request.node.nodeid)
    items = [item for item in request.session.items if forked_workers.file_of(item.nodeid) == file]
    alone = [item for item in items if 'shared' not in item.fixturenames]
    units = forked_workers.units_of(alone, {file: 40.0})
    assert len(units) == min(3, len(alone))
    assert [i for unit in units for i in unit] == list(range(len(alone)))
    assert len(forked_workers.units_of(alone, {file: 10.0})) == 1
    if len(alone) < len(items):
        assert len(forked_workers.units_of(items, {file: 40.0})) == 1


def test_the_longest_files_come_first(request):
    items = request.session.items
    files = list(dict.fromkeys(forked_workers.file_of(item.nodeid) for item in items))
    units = forked_workers.units_of(items, {file: 6.0 + i for i, file in enumerate(files)})
    order = list(dict.fromkeys(forked_workers.file_of(items[unit[0]].nodeid) for unit in units))
    assert order == files[::-1]
