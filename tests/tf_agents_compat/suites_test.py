"""TF-Agents' own tests of its learners, unchanged except for the import of the tested module: they test ours."""

import os
import pathlib
import re
import subprocess
import sys

import pytest
import tf_agents.train

ROOT = pathlib.Path(__file__).resolve().parents[2]
DEADLINE_SECS = 280  # before that of every test
# Tests in each file, and the processes that share them, one after the other: each is done long before the deadline.
NUM_TESTS = {'learner': 23, 'ppo_learner': 14}
SHARDS = {'learner': range(5), 'ppo_learner': range(1)}


def _with_our_module(name):
    """TF-Agents' test file of the module `name`, with one line replaced."""
    text = (pathlib.Path(tf_agents.train.__file__).parent / f'{name}_test.py').read_text(encoding='utf-8')
    line = f'from tf_agents.train import {name}\n'
    assert text.count(line) == 1
    return text.replace(line, f'from tflearn.learner import tf_agents_learner as {name}\n')


@pytest.fixture(scope='module')
def num_run():
    """Tests that ran, by module."""
    return dict.fromkeys(SHARDS, 0)


@pytest.mark.parametrize(('name', 'shard'), [(name, shard) for name in SHARDS for shard in SHARDS[name]])
def test_tf_agents_tests_pass(tmp_path, num_run, name, shard):
    file = tmp_path / f'{name}_test.py'
    file.write_text(_with_our_module(name), encoding='utf-8')
    environment = {
        **os.environ,
        'PYTHONPATH': str(ROOT),
        'CUDA_VISIBLE_DEVICES': '-1',
        'TEST_TMPDIR': str(tmp_path),
        'TEST_TOTAL_SHARDS': str(len(SHARDS[name])),
        'TEST_SHARD_INDEX': str(shard),
    }
    done = subprocess.run(
        [sys.executable, str(file)],
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors='replace',
        timeout=DEADLINE_SECS,
    )
    assert done.returncode == 0, done.stdout[-6000:]
    ran = re.search(r'^Ran (\d+) tests? in', done.stdout, re.M)
    skipped = re.search(r'^OK \(skipped=(\d+)\)', done.stdout, re.M)
    num_run[name] += int(ran.group(1)) - int(skipped.group(1) if skipped else 0)


def test_all_tf_agents_tests_ran(num_run):
    assert num_run == NUM_TESTS
