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


@pytest.mark.slow
def test_conservative_values_learn_from_files(tmp_path):
    def run(job, *flags):
        with Program(job, *flags, '--gin_file=dqn_cartpole', folder=tmp_path) as program:
            assert program.end() == 0, program.output

    run('launch', '--root_dir=run')
    run('data', 'record', '--root_dir=run', '--output=data', '--episodes=300', '--epsilon=0.3')
    returns = {}
    for weight in (0.0, 1.0):
        root = f'--root_dir=weight_{weight}'
        run('train_offline', root, '--data=data', f'--gin_bindings=dqn.make_agent.conservative_weight={weight}')
        run('evaluate', root)
        returns[weight] = read_json(RunDir(tmp_path / f'weight_{weight}').done)['evaluation']['mean_return']
    assert returns[1.0] > 2 * returns[0.0]
