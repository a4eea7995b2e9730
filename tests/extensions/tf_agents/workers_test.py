"""The drop-in as two workers that train as one, on this machine."""

import json
import os

import pytest

from tests.testing import forks
from tflearn.files.run_dir import RunDir
from tflearn.launch.local import free_address

DEADLINE_SECS = 240


def _train(directory, roots):
    """Starts the program as two workers; returns their exit statuses, logs and facts."""
    directory.mkdir(exist_ok=True)
    addresses, started = [free_address() for _ in range(2)], []
    for worker, root in enumerate(roots):
        config = {'cluster': {'worker': addresses}, 'task': {'type': 'worker', 'index': worker}}
        environment = {**os.environ, 'CUDA_VISIBLE_DEVICES': '', 'TF_CONFIG': json.dumps(config)}
        log, program = directory / f'{worker}.log', 'tests.extensions.tf_agents.two_workers'
        started.append(forks.start(program, root, directory, log=log, env=environment))
    try:
        statuses = [process.wait(DEADLINE_SECS) for process in started]
    finally:
        for process in started:
            if process.poll() is None:
                process.kill()
                process.wait(DEADLINE_SECS)
    facts = [json.loads(path.read_text()) for path in sorted(directory.glob('?.json'))]
    return statuses, [(directory / f'{worker}.log').read_text() for worker in (0, 1)], facts


@pytest.mark.parametrize('name', ['root', pytest.param('other', marks=pytest.mark.slow)])
def test_two_workers_save_and_go_on_also_in_one_directory(tmp_path, name):
    roots, start = [tmp_path / 'root', tmp_path / name], 0
    for steps in (47, 94):
        statuses, logs, facts = _train(tmp_path / f'{steps}', roots)
        assert statuses == [0, 0], logs[0][-2000:] + logs[1][-2000:]
        assert facts[0] == facts[1]
        assert (facts[0]['restored'], facts[0]['step']) == (start, steps)
        start = steps
    for root in roots:
        checkpoints = RunDir(root).checkpoints
        assert {path.name for path in checkpoints.glob('*.index')} == {f'ckpt-{n}.index' for n in (90, 92, 94)}
        assert len(list(checkpoints.parent.glob('events.*'))) == 2  # one of each start
