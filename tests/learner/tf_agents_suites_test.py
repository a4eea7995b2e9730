"""TF-Agents' own tests of its learners, unchanged but for the line that imports the module that they test: ours."""

import os
import pathlib
import re
import subprocess
import sys

import pytest
import tf_agents.train

ROOT = pathlib.Path(__file__).resolve().parents[2]
DEADLINE_SECS = 600
# Tests in each file, and the processes that share them: as many as spread the slow ones evenly.
NUM_TESTS = {'learner': 23, 'ppo_learner': 14}
SHARDS = {'learner': range(3), 'ppo_learner': range(1)}


def _with_our_module(name):
    """TF-Agents' test file of the module `name`, with one line replaced."""
    text = (pathlib.Path(tf_agents.train.__file__).parent / f'{name}_test.py').read_text(encoding='utf-8')
    line = f'from tf_agents.train import {name}\n'
    assert text.count(line) == 1
    return text.replace(line, f'from tflearn.learner import tf_agents_learner as {name}\n')


@pytest.fixture(scope='module')
def suites(tmp_path_factory):
    """All processes, started at once: (module, shard) -> process, log."""
    directory, started = tmp_path_factory.mktemp('suites'), {}
    for name, shards in SHARDS.items():
        file = directory / f'{name}_test.py'
        file.write_text(_with_our_module(name), encoding='utf-8')
        for shard in shards:
            place = directory / f'{name}_{shard}'
            place.mkdir()
            environment = {
                **os.environ,
                'PYTHONPATH': str(ROOT),
                'CUDA_VISIBLE_DEVICES': '-1',
                'TEST_TMPDIR': str(place),
                'TEST_TOTAL_SHARDS': str(len(shards)),
                'TEST_SHARD_INDEX': str(shard),
            }
            log = place / 'log'
            with log.open('w') as output:
                process = subprocess.Popen(
                    [sys.executable, str(file)], cwd=place, env=environment, stdout=output, stderr=subprocess.STDOUT
                )
            started[name, shard] = process, log
    yield started
    for process, _ in started.values():
        if process.poll() is None:
            process.kill()
            process.wait(30)


@pytest.fixture(scope='module')
def num_run():
    """Tests that ran, by module."""
    return dict.fromkeys(SHARDS, 0)


@pytest.mark.parametrize(('name', 'shard'), [(name, shard) for name in SHARDS for shard in SHARDS[name]])
def test_their_tests_pass(suites, num_run, name, shard):
    process, log = suites[name, shard]
    status = process.wait(DEADLINE_SECS)
    text = log.read_text(errors='replace')
    assert status == 0, text[-6000:]
    ran, skipped = re.search(r'^Ran (\d+) tests? in', text, re.M), re.search(r'^OK \(skipped=(\d+)\)', text, re.M)
    num_run[name] += int(ran.group(1)) - int(skipped.group(1) if skipped else 0)


def test_all_of_them_ran(num_run):
    assert num_run == NUM_TESTS
