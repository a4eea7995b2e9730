"""Four replay servers, of which one is killed while the run trains, and the learner with it."""

import re
import signal
import threading

import pytest

from tests.chaos.chaos_run import ChaosRun, wait_for
from tflearn.files.run_dir import write_json
from tflearn.replay.backend import Shards

pytestmark = pytest.mark.chaos

BINDINGS = (
    'train.LearnerOptions.checkpoint_interval_steps=500',
    'train.StopConditions.num_train_steps=1_000_000',
    'train.Intervals.export_interval_steps=1000',
    'replay_server.replay_server.checkpoint_interval_secs=5.0',
    'evaluate.evaluate.target_return=None',
    'collect.num_environments=4',
)
NUM_SHARDS, NUM_COLLECTORS = 4, 3


def _name(shard):
    return f'replay_server_{shard}' if shard else 'replay_server'


def _used_shards():
    """The shards that collectors prefer."""
    shards = Shards(tuple(map(str, range(NUM_SHARDS))))
    return {int(shards.ranked(f'collect_{i}')[0]) for i in range(NUM_COLLECTORS)}


def test_a_killed_shard_loses_its_unsaved_tail_only(tmp_path, promise):
    flags = [f'--num_replay_servers={NUM_SHARDS}', f'--num_collectors={NUM_COLLECTORS}']
    run, pause = ChaosRun(tmp_path, 'dqn_cartpole', BINDINGS, flags), threading.Event()
    killed = max(_used_shards())  # not the first one, which has the weights too
    assert killed > 0

    def inserts(shard):
        return run.status(_name(shard)).get('inserts') or 0

    def saved():
        paths = run.run_dir.shard_checkpoints(killed).glob('*/DONE')
        return max((int(path.parent.name) for path in paths if path.parent.name.isdigit()), default=0)

    with run.started():
        wait_for(lambda: run.running and inserts(killed) > 0 and run.newest_checkpoint(), 'a saved learner')
        held, checkpoints = inserts(killed), saved()
        wait_for(lambda: saved() >= checkpoints + 2, 'a checkpoint of the shard that began after that')
        pause.wait(2.0)  # a tail that is not saved
        before = {shard: inserts(shard) for shard in range(NUM_SHARDS)}
        pids = {name: run.status(name).get('pid') for name in (*map(_name, range(NUM_SHARDS)), 'train')}
        step = run.newest_checkpoint()
        run.signal('train', signal.SIGKILL)
        run.signal(_name(killed), signal.SIGKILL)
        secs = wait_for(lambda: run.running_after(pids['train']), 'the restart of the learner')
        assert run.restored_step() >= step
        for shard in set(range(NUM_SHARDS)) - {killed}:
            assert run.status(_name(shard)).get('pid') == pids[_name(shard)], 'another shard goes on'
            assert inserts(shard) >= before[shard]
        wait_for(lambda: run.status(_name(killed))['pid'] != pids[_name(killed)], 'the shard')
        wait_for(lambda: run.status(_name(killed))['state'] == 'running', 'the shard')
        assert inserts(killed) >= held, 'what was saved is there again'
        log = run.run_dir.log('train').read_text(errors='replace')
        filled = int(re.findall(r'filled the mirror with (\d+) sequences', log)[-1])
        others = sum(count for shard, count in before.items() if shard != killed)
        # Rows at the end of an episode begin no sequence, but are counted as inserts.
        assert filled >= 0.8 * min(others + held, 100_000)
        tail = (before[killed] - held) / sum(before.values())
        begun = inserts(killed)
        wait_for(lambda: inserts(killed) > begun, 'its collectors, which return')
        write_json(run.run_dir.stop_request, {'reason': 'one shard is enough'})
        assert run.wait() == 0, run.output.read_text()[-3000:]
    promise('SIGKILL of one of four replay servers, and of train', f'its unsaved tail, {tail:.0%} of the replay', secs)
