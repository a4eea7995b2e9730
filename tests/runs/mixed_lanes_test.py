"""One run of both lanes over Valkey: one collects, the other learns, and both act by the exported policy.

Slow: `TFLEARN_TEST_OTHER_PYTHON=FILE scripts/test -m slow tests/runs/mixed_lanes_test.py`; FILE is a Python with the
other lane's lock.
"""

import os
import pathlib
import signal
import sys

import numpy as np
import pytest

from tests.end_to_end import results
from tests.end_to_end.programs import metric, starter
from tflearn.files.run_dir import RunDir, read_json

OTHER = pathlib.Path(os.environ.get('TFLEARN_TEST_OTHER_PYTHON', '')).absolute()
NUM_TRAIN_STEPS = 400
BINDINGS = (
    'networks.NetworkOptions.fc_layer_params=(16,)',
    f'train.StopConditions.num_train_steps={NUM_TRAIN_STEPS}',
    'train.Intervals.steps_per_call=50',
    'train.Intervals.publish_interval_steps=50',
    'Uniform.samples_per_insert=4.0',
    'BatchItems.per_replica=16',
    'Uniform.min_size=100',
)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        'TFLEARN_TEST_OTHER_PYTHON' not in os.environ,
        reason='needs TFLEARN_TEST_OTHER_PYTHON: a Python of the other lane',
    ),
]


@pytest.mark.parametrize('learns_here', [True, False])
def test_collector_and_learner_of_different_lanes(tmp_path, learns_here):
    here, run_dir = pathlib.Path(sys.executable), RunDir(tmp_path / 'run')
    learner, collector = (here, OTHER) if learns_here else (OTHER, here)
    with starter(tmp_path, 'dqn_cartpole', BINDINGS) as start:
        replay = start('replay_server', '', '--replay_backend=valkey', python=learner)
        jobs = [start('train', python=learner), start('collect', python=collector)]
        for job in jobs:
            assert job.end() == 0, job.output
        replay.send(signal.SIGTERM)
        assert replay.end() == 128 + signal.SIGTERM, replay.output
    assert read_json(run_dir.train_result)['train_step'] == NUM_TRAIN_STEPS
    assert metric(run_dir, 'collect_0', 'env_steps') >= NUM_TRAIN_STEPS * 16 / 4

    observations = np.random.default_rng(0).normal(size=(2, 64, 4)).astype(np.float32)
    policy = run_dir.greedy_policy / str(NUM_TRAIN_STEPS)
    mine, theirs = (
        results.actions_of_standalone_program(policy, observations, tmp_path / name, python)
        for name, python in (('here', here), ('there', OTHER))
    )
    assert set(mine['actions'].ravel()) == {0, 1}
    for name, actions in mine.items():
        np.testing.assert_array_equal(actions, theirs[name])
