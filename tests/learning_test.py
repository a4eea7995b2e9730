"""Complete runs that learn, as users start them, to the return that their task is solved at."""

import pytest

from benchmarks import learning
from tests.end_to_end.programs import Program
from tflearn.config import files, preview
from tflearn.run_dir import RunDir, read_json


@pytest.mark.slow
@pytest.mark.parametrize(
    ('run', 'target'),
    [
        ('impala_cartpole', 475),
        ('appo_cartpole', 475),
        ('impala_cartpole_hidden', 475),
        ('impala_reuse_cartpole', 475),
        ('ppo_cartpole', 475),
        ('a2c_cartpole', 475),
        ('reinforce_cartpole', 475),
        ('ppo_pendulum', -200),
    ],
)
def test_it_is_solved(run, target, tmp_path):
    with Program('launch', '--root_dir=run', f'--gin_file={run}', folder=tmp_path) as launch:
        assert launch.end() == 0, launch.output
    done = read_json(RunDir(tmp_path / 'run').done)
    assert done['reason'].startswith(f'target_return {target} reached'), launch.output
    assert done['evaluation']['mean_return'] >= target


def test_bindings_of_the_learning_benchmark_are_valid():
    bindings = [*(f'{name}=1' for name in learning.SEEDS), *learning.QUICK_BINDINGS]
    jobs = [f'tflearn.jobs.{job}' for job in ('replay_server', 'train', 'evaluate', 'collect')]
    preview.check(files.resolve('dqn_cartpole'), bindings, jobs)
