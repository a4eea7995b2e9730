"""Complete runs that learn, as users start them, to the return that their task is solved at."""

import shutil
import subprocess
import sys

import pytest
from absl import logging

from tests.end_to_end.programs import CHECKOUT, Program
from tflearn.core.waiting import is_listening
from tflearn.environments import external_client
from tflearn.files.run_dir import RunDir, read_json
from tflearn.launch.local import free_port

EXTERNAL_SECS = 1_800.0
# Neither tflearn nor any other package can be imported there.
SIMULATOR = """
import sys
sys.path.insert(0, '.')
import external_simulator
external_simulator.main(sys.argv[1], 1_000_000)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ('run', 'target'),
    [
        ('impala_cartpole', 475),
        ('appo_cartpole', 475),
        ('impala_cartpole_hidden', 475),
        ('impala_reuse_cartpole', 475),
        ('impala_uncorrected_cartpole', 475),
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


@pytest.mark.slow
def test_simulators_in_other_processes_train_a_run_to_its_target(tmp_path):
    """They need only Python's standard library; the evaluate job has gymnasium's CartPole."""
    shutil.copy(external_client.__file__, tmp_path / 'client.py')
    shutil.copy(CHECKOUT / 'docs' / 'external_simulator.py', tmp_path)
    port, simulators = free_port(), []
    flags = ['--root_dir=run', '--gin_file=dqn_external_cartpole', '--num_collectors=1']
    binding = f'--gin_bindings=server.ExternalOptions.ports=({port},)'
    run_dir = RunDir(tmp_path / 'run')
    with Program('launch', *flags, binding, folder=tmp_path) as launch:
        try:
            launch.wait_for(lambda: is_listening(f'localhost:{port}', 1.0), 'the collector')
            for _ in range(2):
                command = [sys.executable, '-I', '-S', '-c', SIMULATOR, f'http://localhost:{port}']
                simulators.append(subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True))
            launch.wait_for(run_dir.done.exists, 'the end of the run', EXTERNAL_SECS)
            assert launch.end() == 0, launch.output
            returns = [[float(line) for line in each.communicate(timeout=60)[0].split()] for each in simulators]
        finally:
            for simulator in simulators:
                simulator.kill()
                simulator.wait(60)
    done, result = read_json(run_dir.done), read_json(run_dir.train_result)
    assert done['reason'].startswith('target_return 475 reached'), launch.output
    assert done['evaluation']['mean_return'] >= 475
    played = sum(map(sum, returns))
    logging.info('solved: %s, %s', done, result)
    assert 0.9 * played < result['env_steps'] <= played + 2 * 500, 'all steps come from the simulators'


@pytest.mark.slow
def test_conservative_values_learn_from_files(tmp_path):
    def run(job, *flags, name='discrete_cql_cartpole'):
        with Program(job, *flags, f'--gin_file={name}', folder=tmp_path) as program:
            assert program.end() == 0, program.output

    run('launch', '--root_dir=run', name='dqn_cartpole')
    recorded = ('--root_dir=run', '--output=data', '--episodes=300', '--epsilon=0.3')
    run('data', 'record', *recorded, name='dqn_cartpole')
    returns = {}
    for weight in (0.0, 1.0):
        root = f'--root_dir=weight_{weight}'
        binding = f'--gin_bindings=dqn.make_agent.conservative_weight={weight}'
        run('train_offline', root, '--data=data', binding)
        run('evaluate', root)
        returns[weight] = read_json(RunDir(tmp_path / f'weight_{weight}').done)['evaluation']['mean_return']
    assert returns[1.0] > 2 * returns[0.0]
