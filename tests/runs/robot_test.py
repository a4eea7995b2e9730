"""A robot in a run of processes: one job at a time has it, and Ctrl-C stops it at once."""

import signal
import time

from tests.end_to_end.programs import Program, pid
from tests.testing import lanes
from tflearn.files.run_dir import RunDir

RUN = """
from __gin__ import dynamic_registration
from tests.environments import example_environments
from tflearn.environments import robot

include 'dqn_cartpole.gin'

make_environment = @robot.make
robot.make.make_one = @example_environments.Robot
robot.make.turns = '{folder}/turns'
robot.make.episodes_per_turn = 2
example_environments.Robot.log = '{folder}/log'
"""
SMALL = (
    'networks.NetworkOptions.fc_layer_params = (8,)',
    'train.StopConditions.num_train_steps = 10_000_000',
    'train.Intervals.steps_per_call = 10',
    'train.Intervals.publish_interval_steps = 10',
    'train.Intervals.export_interval_steps = 10',
    'train.ExportOptions.policies = ("greedy_policy",)',
    'Uniform.min_size = 20',
    'BatchItems.per_replica = 8',
    'evaluate.num_episodes = 4',
    'evaluate.target_return = None',
)


@lanes.classic
def test_one_job_at_a_time_moves_it_and_ctrl_c_stops_it_first(tmp_path):
    log, run_dir = tmp_path / 'log', RunDir(tmp_path / 'run')
    (tmp_path / 'run.gin').write_text(RUN.format(folder=tmp_path))

    def num_evaluations():
        path = run_dir.evaluations
        return len(path.read_text().splitlines()) if path.exists() else 0

    flags = [f'--gin_bindings={binding}' for binding in SMALL]
    with Program('launch', '--root_dir=run', '--gin_file=run.gin', *flags, folder=tmp_path, forked=True) as launch:
        launch.wait_for(lambda: num_evaluations() >= 3, 'three evaluations')
        movers = {str(pid(run_dir, job)) for job in ('collect_0', 'evaluate')}
        stopped_at = time.time()
        launch.send(signal.SIGINT)
        launch.end()
    done = [line.split() for line in log.read_text().splitlines()]
    assert 'collides' not in {what for _, _, what in done}
    assert {process for _, process, _ in done} == movers, 'the learner and the replay server make none'
    moves = [(float(at), process) for at, process, what in done if what == 'moves']
    assert {process for _, process in moves} == movers
    assert moves[-1][0] - stopped_at < 1.0, 'it stops before anything is saved'
    assert done[-1][2] == 'closes'
