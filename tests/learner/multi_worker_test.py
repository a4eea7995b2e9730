"""Two processes on this machine that train together, by TF_CONFIG: results, positions in data, stops and failures."""

import json
import os
import pathlib
import shutil
import signal

import numpy as np
import pytest

from tests.learner import position_program, worker_program
from tests.testing import forks, written_summaries
from tflearn.core.errors import TRY_AGAIN_EXIT_STATUS
from tflearn.core.waiting import wait_until
from tflearn.files.run_dir import RunDir
from tflearn.launch.local import free_address
from tflearn.learner.learner import Learner, LearnerOptions
from tflearn.learner.summaries import SummaryOptions

DEADLINE_SECS = 240
NOISE = '_optimizer|_noise|averages'


class Cluster:
    """Two processes of a program, each with its log; those that still run at the end are killed."""

    def __init__(self, directory, *arguments, program='tests.learner.worker_program'):
        directory.mkdir(exist_ok=True)
        self.directory, self.logs, self.processes = directory, [], []
        addresses = [free_address() for _ in range(2)]
        for worker in range(2):
            config = {'cluster': {'worker': addresses}, 'task': {'type': 'worker', 'index': worker}}
            environment = {**os.environ, 'CUDA_VISIBLE_DEVICES': '', 'TF_CONFIG': json.dumps(config)}
            self.logs.append(directory / f'{worker}.log')
            log = self.logs[-1]
            self.processes.append(forks.start(program, directory, *arguments, log=log, env=environment))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.processes:
            if process.poll() is None:
                process.kill()
                process.wait(DEADLINE_SECS)

    def wait_for(self, text, worker):
        def found():
            assert self.processes[worker].poll() is None, self.logs[worker].read_text()[-3000:]
            return text in self.logs[worker].read_text()

        wait_until(found, f'{text!r} of worker {worker}', DEADLINE_SECS)

    def end(self, worker):
        """Waits until the worker ends; returns its exit status and log."""
        status = self.processes[worker].wait(DEADLINE_SECS)
        return status, self.logs[worker].read_text()

    def results(self):
        """Returns facts and values of a run without incidents, at its end."""
        for worker in (0, 1):
            status, log = self.end(worker)
            assert status == 0, log[-3000:]
        return self.left()

    def left(self):
        """Returns the facts and values that the workers have left."""
        facts = [json.loads((self.directory / f'{worker}.json').read_text()) for worker in (0, 1)]
        return facts, [dict(np.load(self.directory / f'{worker}.npz')) for worker in (0, 1)]


def _alone(directory, first_step, summaries):
    """Takes the next 20 train steps in this process, with the global batch; returns their values."""
    agent, options = worker_program.make_agent(), LearnerOptions(summaries=summaries)
    with Learner(agent, worker_program.dataset_fn(first_step, None), RunDir(directory), options=options) as learner:
        assert learner.step == first_step
        learner.run(worker_program.NUM_STEPS)
    return worker_program.values_of(agent)


def _assert_same_summaries(several, alone):
    """The chief has written norms and histograms of the global batch's gradients, in each summary once."""
    several, alone = (RunDir(each).summaries('train') for each in (several, alone))
    for read, tolerance in ((written_summaries.scalars, 1e-3), (written_summaries.histograms, 1e-2)):
        found, expected = (
            {tag: read(each)[tag] for tag in read(each) if _is_compared(tag)} for each in (several, alone)
        )
        # Keras numbers the layers of a process: their names differ, and their order does not.
        for tag, steps, others in zip(expected, found.values(), expected.values(), strict=True):
            assert steps.keys() == others.keys() == {10, 20}, tag
            assert all(steps[step] == pytest.approx(others[step], rel=tolerance, abs=1e-5) for step in steps), tag
        assert read is written_summaries.histograms or {'gradients/dqn/norm'} < found.keys()


def _is_compared(tag):
    return tag.startswith('gradients/') and tag != 'gradients/dqn/noise_scale'


def _assert_near(values, others, **tolerance):
    assert values.keys() == others.keys()
    for name, value in values.items():
        if name == NOISE and tolerance['rtol']:
            continue  # one process estimates it by halves of a batch, several replicas by theirs
        np.testing.assert_allclose(value, others[name], err_msg=name, **tolerance)


def test_two_workers_equal_one_process_also_resumed_and_when_one_dies_the_other_ends_with_an_error(tmp_path):
    with Cluster(tmp_path / 'two', 'train') as cluster:
        facts, (chief, other) = cluster.results()
    assert [fact['step'] for fact in facts] == [20, 20]
    assert [fact['difference'] for fact in facts] == [0.0, 0.0]
    _assert_near(chief, other, rtol=0, atol=0)
    _assert_near(chief, _alone(tmp_path / 'one', 0, worker_program.SUMMARIES), rtol=1e-3, atol=1e-5)
    _assert_same_summaries(tmp_path / 'two', tmp_path / 'one')
    assert 'worker 1 of 2' in (tmp_path / 'two' / '1.log').read_text()
    assert (
        '2 replica(s) fed by 2 input pipeline(s), 1 each; batch 4 per replica, 8 global; worker 0 of 2, the chief'
        in (tmp_path / 'two' / '0.log').read_text()
    )
    for worker in (0, 1):
        log = (tmp_path / 'two' / f'{worker}.log').read_text()
        assert 'got different values of the worker on the workers: [0, 1] by replica; need one' in log
    assert facts[0]['run_dir'] == str(tmp_path / 'two')
    assert not pathlib.Path(facts[1]['run_dir']).exists(), "what only the chief's files are for is removed"
    # Both resume from the chief's checkpoint, and so does one process with the global batch.
    shutil.copytree(tmp_path / 'two', tmp_path / 'again')
    with Cluster(tmp_path / 'two', 'endless') as cluster:
        for worker in (0, 1):
            cluster.wait_for('at train step 40', worker)
        facts, (chief, other) = cluster.left()
        _kill(cluster, 0)
    assert [fact['step'] for fact in facts] == [40, 40]
    _assert_near(chief, other, rtol=0, atol=0)
    _assert_near(chief, _alone(tmp_path / 'again', 20, SummaryOptions(None)), rtol=1e-3, atol=1e-4)


@pytest.mark.slow  # learner_options_test.py does so with two replicas of one process
def test_two_workers_in_xla_equal_one_process(tmp_path):
    with Cluster(tmp_path / 'two', 'xla') as cluster:
        facts, (chief, other) = cluster.results()
    assert [fact['step'] for fact in facts] == [20, 20]
    _assert_near(chief, other, rtol=0, atol=0)
    _assert_near(chief, _alone(tmp_path / 'one', 0, worker_program.SUMMARIES), rtol=1e-3, atol=1e-5)
    _assert_same_summaries(tmp_path / 'two', tmp_path / 'one')
    assert 'Compiled cluster using XLA' in (tmp_path / 'two' / '0.log').read_text()


def _kill(cluster, victim):
    """Kills a worker: the other one ends with an error."""
    cluster.processes[victim].kill()
    status, log = cluster.end(1 - victim)
    assert status not in (0, -signal.SIGKILL)
    # TensorFlow's own service may end the process first.
    assert 'PeerStopped: lost another worker (' in log or 'heartbeat' in log.lower(), log[-3000:]


@pytest.mark.slow  # the first test resumes a plain dataset
@pytest.mark.parametrize('pipeline', ['shuffled', 'interleaved', 'generated', 'unsaved'])
def test_each_worker_takes_the_batches_that_are_left_of_its_part(tmp_path, pipeline):
    logs = []
    for steps in (13, 7, 10):  # three epochs of ten batches each
        with Cluster(tmp_path, pipeline, steps, program='tests.learner.position_program') as cluster:
            for worker in (0, 1):
                status, log = cluster.end(worker)
                assert status == 0, log[-3000:]
                logs.append(log)
    for worker in (0, 1):
        numbers = np.loadtxt(tmp_path / f'{worker}.txt', dtype=int).tolist()
        own = list(range(worker, 2 * position_program.NUM_BATCHES, 2))
        if pipeline == 'unsaved':
            assert numbers == [*own, *own[:3], *own[:7], *own]
            assert 'the position in the dataset is in no checkpoint (TensorFlow cannot save' in logs[worker]
            assert 'after 13 batches of the dataset: it begins again' in logs[2 + worker]
            continue
        for epoch in (numbers[:10], numbers[10:20], numbers[20:]):
            assert sorted(epoch) == own
        assert 'begins again' not in ''.join(logs)


@pytest.mark.slow
def test_watchdog_ends_the_worker_that_waits_for_a_stuck_one(tmp_path):
    with Cluster(tmp_path / 'run', 'stuck') as cluster:
        status, log = cluster.end(0)
    assert status not in (0, None), log[-3000:]
    assert status == TRY_AGAIN_EXIT_STATUS and 'got no end of 4 train steps from train step 8 in 20 s' in log, log[
        -3000:
    ]
    assert 'most recent call first' in log, 'where every thread stood'
