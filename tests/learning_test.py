"""Complete runs that learn, as users start them, to the return that their task is solved at."""

import dataclasses
import json
import shutil
import subprocess
import sys

import pytest
from absl import logging

from benchmarks import learning, offline, offline_report
from tests.end_to_end.programs import CHECKOUT, Program
from tflearn.config import files, job_config
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


def test_bindings_of_the_learning_benchmark_are_valid():
    bindings = [*(f'{name}=1' for name in learning.SEEDS), *learning.QUICK_BINDINGS]
    jobs = [f'tflearn.jobs.{job}' for job in ('replay_server', 'train', 'evaluate', 'collect')]
    job_config.check(files.resolve('dqn_cartpole'), bindings, jobs)


@pytest.mark.parametrize('task', offline.TASKS)
def test_bindings_of_the_offline_benchmark_are_valid(task):
    jobs = [f'tflearn.jobs.{job}' for job in ('replay_server', 'train', 'evaluate', 'collect')]
    behaviour = [*offline.TASKS[task].behaviour, 'train.ExportOptions.keep_last=10_000']
    for gin_file, *bindings in (behaviour, *offline.TASKS[task].agents.values()):
        seeds = (f'{name}=1' for name in learning.SEEDS)
        job_config.check(files.resolve(gin_file), [*bindings, *offline.TASKS[task].evaluation, *seeds], jobs)


def rows(agent, returns, level='medium'):
    facts = {'random_return': 0.0, 'expert_return': 200.0, 'data_return': 80.0, 'train_secs': 2.0}
    return [
        {'task': 'cartpole', 'level': level, 'agent': agent, 'mean_return': float(each), **facts} for each in returns
    ]


def test_the_offline_benchmark_reports_what_was_run():
    found = [
        *rows('BC', [100, 110, 90, 105]),
        *rows('IQL', [150, 151, 149, 154]),
        *rows('CQL', [130]),
        *rows('BC', [191], 'expert'),
    ]
    lines = offline_report.table(found, seeds=4).splitlines()
    assert '| cartpole | medium | 80.0 | IQL | 151.0 | 149.0 to 154.0 (87.5%) | 76 | 4 | 2 |' in lines
    assert '| cartpole | medium | 80.0 | CQL | 130.0 | too few seeds | 65 | **1 of 4** | 2 |' in lines
    judged = offline_report.verdicts(found).splitlines()
    assert 'cartpole: IQL beside BC on medium data: better, p 0.029 (level 2.9%)' in judged
    assert 'cartpole: CQL beside BC on medium data: too few seeds to tell' in judged
    assert 'cartpole: BC has a score of 95.5 on expert data; within 5%: True' in judged


def test_a_cell_of_the_offline_benchmark_is_found_again(tmp_path):
    cell = offline.Cell('cartpole', 'medium', 'BC', 1, 20, ('bc_cartpole', 'a.b=1'))
    row = {**dataclasses.asdict(cell), 'mean_return': 3.0}
    (tmp_path / 'results.jsonl').write_text(json.dumps(row) + '\n{"task": "cartp')
    assert list(offline._results(tmp_path)) == [cell]
    other = dataclasses.replace(cell, episodes=30)
    assert other.folder(tmp_path) != cell.folder(tmp_path) == dataclasses.replace(cell).folder(tmp_path)


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
        bindings = (f'dqn.make_agent.conservative_weight={weight}', 'dqn.make_agent.reward_scale=1.0')
        run('train_offline', root, '--data=data', *(f'--gin_bindings={binding}' for binding in bindings))
        run('evaluate', root)
        returns[weight] = read_json(RunDir(tmp_path / f'weight_{weight}').done)['evaluation']['mean_return']
    assert returns[1.0] > 2 * returns[0.0]
