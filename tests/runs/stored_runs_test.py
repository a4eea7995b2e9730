"""Run directories of an earlier commit: the same command goes on with them, and their policies act."""

import numpy as np
import pytest

import tflearn
from tests.end_to_end.programs import Addresses, Program
from tests.stored_runs import store
from tests.testing import lanes
from tflearn.files.run_dir import read_json
from tflearn.policies import versions

STEPS = store.NUM_TRAIN_STEPS


# The others' replay checkpoints are Reverb's.
@pytest.mark.parametrize('name', lanes.sample(store.RUNS, 'synchronous'))
def test_the_same_command_goes_on_with_a_stored_run(name, tmp_path):
    run, run_dir = store.RUNS[name], store.unpack(name, tmp_path)
    saved = read_json(run_dir.train_result)
    refused, flags = run.program == 'launch', run.flags(2 * STEPS)
    # One is launched; of the others it is the job that refuses them.
    job = 'replay_server' if refused and name != 'uniform' else run.program
    flags += Addresses().flags(job) if job == 'replay_server' else []
    with Program(job, *flags, folder=tmp_path, forked=True) as program:
        if refused:  # its replay has tables of messages, which go through the coordinator now
            assert program.end() == 2
            assert 'got the replay checkpoint' in program.last_line and 'table.heartbeats' in program.last_line
            return
        assert program.end() == 0, program.output
    logs = ''.join(path.read_text() for path in run_dir.root.glob('logs/*.log')) or program.output
    assert f'train step {STEPS}, {run_dir.checkpoints}/ckpt-{STEPS}\n' in logs
    result = read_json(run_dir.train_result)
    assert result['train_step'] == 2 * STEPS and result['env_steps'] > saved['env_steps']
    for policy in ('greedy_policy', 'collect_policy', 'raw_policy'):
        assert versions.versions(run_dir.policy(policy)) == [0, STEPS, 2 * STEPS]


@pytest.mark.parametrize('name', ['synchronous', 'queue'])
def test_stored_policies_act(name, tmp_path):
    run_dir = store.unpack(name, tmp_path)
    policy = tflearn.load_policy(run_dir.greedy_policy / str(STEPS))
    actions = policy(np.linspace(-1, 1, 20, dtype=np.float32).reshape(5, 4))
    assert actions.shape == (5,) and set(actions) <= {0, 1}
