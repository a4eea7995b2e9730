"""Files of a run that are damaged or deleted while it goes on; a port that is taken."""

import contextlib
import signal
import socket

import pytest

from tests.chaos.chaos_run import ChaosRun, wait_for
from tests.chaos.hand_run import HandRun
from tflearn.files.manifests import Manifests
from tflearn.replay import backend

pytestmark = pytest.mark.chaos

CHECKPOINT_STEPS = 500
BINDINGS = (
    'evaluate.evaluate.target_return=None',
    'train.StopConditions.num_train_steps=1_000_000',
    f'train.LearnerOptions.checkpoint_interval_steps={CHECKPOINT_STEPS}',
    'replay_server.replay_server.checkpoint_interval_secs=3.0',
)


def _pairs(run):
    root = run.run_dir.root
    return [
        (pair.train_step, pair.replay['replay_server'])
        for pair in Manifests(root, run.run_dir.manifests, 'reader', 0, read_only=True).whole()
        if pair.train_step and pair.replay.get('replay_server')
    ]


def _overwrite(path):
    """Damages a file in its middle, and leaves its size."""
    size = path.stat().st_size
    with path.open('r+b') as file:
        file.seek(size // 2)
        file.write(b'damaged!' * 8)


@pytest.mark.parametrize('damage', ['overwritten', 'deleted'])
@pytest.mark.parametrize('part, kind', [('learner', 'reverb'), ('replay', 'reverb'), ('replay', 'valkey')])
def test_the_newest_whole_pair_is_restored(tmp_path, promise, part, kind, damage):
    run = ChaosRun(tmp_path, 'dqn_cartpole', BINDINGS, [f'--replay_backend={kind}'])
    with run.started():
        wait_for(lambda: run.running, 'the first train step')
        wait_for(lambda: len({replay for _, replay in _pairs(run)}) > 1, 'two replay checkpoints')
        pid = run.status('train').get('pid')
        # Both die at once, with the launch, and start again from what is left.
        for job in ('launch', 'train', 'replay_server'):
            run.signal(job, signal.SIGKILL)
        run.wait(10.0)
        wait_for(lambda: not run.processes(), 'the end of all processes', 60.0)
        pairs = _pairs(run)
        step, replay = pairs[0]
        if part == 'learner':
            files = [run.run_dir.checkpoints / f'ckpt-{step}.data-00000-of-00001']
            expected = next(pair for pair in pairs if pair[0] != step)
        else:
            name = backend.VALKEY_FILE if kind == 'valkey' else 'chunks.tfrecord'
            files = [run.run_dir.replay_checkpoints / replay / name]
            expected = next(pair for pair in pairs if pair[1] != replay)
        for file in files:
            file.unlink() if damage == 'deleted' else _overwrite(file)
        run.start()
        secs = wait_for(lambda: run.running_after(pid), 'the learner')
        secs += wait_for(lambda: run.train_step > run.restored_step() + 100, 'more train steps')
        assert run.restored_step() == expected[0]
        if part == 'replay' or damage == 'deleted':
            text = run.run_dir.log('replay_server').read_text(errors='replace')
            assert 'continuing from manifest' in text.rpartition('=====')[2]
            assert f'replay: replay_server {expected[1]})' in text.rpartition('=====')[2]
    fault = f'the newest checkpoint of the {part}, over {kind}, is {damage}, and all jobs are killed'
    promise(fault, f'back to the pair before: {step - expected[0]} train steps', secs)


def test_a_port_that_is_taken_ends_the_replay_server_in_one_line(tmp_path, promise):
    with contextlib.ExitStack() as opened:
        run = HandRun(tmp_path, opened, 'dqn_cartpole', BINDINGS[:2])
        taken = opened.enter_context(socket.create_server(('', run.port)))
        server = run.start('replay_server')
        wait_for(lambda: server.poll() is not None, 'its end')
        assert server.poll() == 2
        line = run.text('replay_server').splitlines()[-1]
        assert f'got port {run.port}, on which no replay server can listen (Address already in use); need' in line
        taken.close()
        run.start('replay_server', name='again')
        secs = wait_for(lambda: run.status('replay_server').get('state') == 'running', 'the replay server')
    promise(
        'the port of the replay server is taken', 'nothing', f'refused in one line; free, it starts in {secs:.0f} s'
    )
