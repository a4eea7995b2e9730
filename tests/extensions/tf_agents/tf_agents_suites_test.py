"""TF-Agents' own tests of its learners, unchanged except for the import of the tested module: they test ours."""

import os
import pathlib
import re

import pytest
import tf_agents.train

from tests.testing import forks, lanes

DEADLINE_SECS = 280  # before that of every test
# Tests in each file, and the processes that share them, one after the other: each is done long before the deadline.
NUM_TESTS = {'learner': 23, 'ppo_learner': 14}
SHARDS = {'learner': range(5), 'ppo_learner': range(1)}
# Those that run by default: one of each kind, the others differ in agent and strategy; () are all of a file. Those of
# checkpoints have one in tf_agents_learner_test.py, for both directions.
SAMPLE = {
    'learner': (
        'testLearnerRun',
        'testLearnerLoss',
        'testLearnerAssertInvalidIterations',
        'testLearnerRaiseExceptionOnMismatchingBatchSetup',
    ),
    'ppo_learner': (),
}


def _with_our_module(name):
    """TF-Agents' test file of the module `name`, with one line replaced."""
    text = (pathlib.Path(tf_agents.train.__file__).parent / f'{name}_test.py').read_text(encoding='utf-8')
    line = f'from tf_agents.train import {name}\n'
    assert text.count(line) == 1
    return text.replace(line, f'from tflearn.extensions.tf_agents import tf_agents_{name} as {name}\n')


def _run(folder, name, *tests, **environment):
    """Runs tests of a file, all by default; returns how many there were that were not skipped."""
    file, log = folder / f'{name}_test.py', folder / 'log'
    file.write_text(_with_our_module(name), encoding='utf-8')
    environment = {**os.environ, 'CUDA_VISIBLE_DEVICES': '-1', 'TEST_TMPDIR': str(folder), **environment}
    code = forks.start(str(file), *tests, log=log, cwd=folder, env=environment).wait(DEADLINE_SECS)
    output = log.read_text(errors='replace')
    assert code == 0, output[-6000:]
    ran = re.search(r'^Ran (\d+) tests? in', output, re.M)
    skipped = re.search(r'^OK \(skipped=(\d+)\)', output, re.M)
    return int(ran.group(1)) - int(skipped.group(1) if skipped else 0)


@pytest.mark.parametrize('name', SAMPLE)
def test_a_sample_of_tf_agents_tests_passes(tmp_path, name):
    if name == 'learner' and lanes.IS_CURRENT:
        pytest.skip("TF-Agents' own test imports Reverb")
    tests = [f'LearnerTest.{test}' for test in SAMPLE[name]]
    assert _run(tmp_path, name, *tests) == (len(tests) or NUM_TESTS[name])


@pytest.fixture(scope='module')
def num_run():
    """Tests that ran, by module."""
    return dict.fromkeys(SHARDS, 0)


@pytest.mark.slow
@pytest.mark.parametrize(('name', 'shard'), [(name, shard) for name in SHARDS for shard in SHARDS[name]])
def test_tf_agents_tests_pass(tmp_path, num_run, name, shard):
    shards = {'TEST_TOTAL_SHARDS': str(len(SHARDS[name])), 'TEST_SHARD_INDEX': str(shard)}
    num_run[name] += _run(tmp_path, name, **shards)


@pytest.mark.slow
def test_all_tf_agents_tests_ran(num_run):
    assert num_run == NUM_TESTS
