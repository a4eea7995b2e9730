"""The real program with --data and --policy. What the first one runs is tested in tests/extensions/product/."""

import functools
import json
import re
import shutil

import pytest

from tests.data import data_sets
from tests.scripts.data_test import run
from tests.testing import example_policies
from tflearn.core.types import specs_of
from tflearn.environments import gymnasium_env
from tflearn.files.run_dir import RunDir, read_json, write_json
from tflearn.policies import versions
from tflearn.policies.exporter import PolicyExporter

BALANCES = (0.1, 0.2, 1.0, 1.0)  # 100 steps of CartPole, which is all there are
SHORT = '--gin_bindings=gymnasium_env.make.max_episode_steps = 100'


@pytest.fixture(scope='module')
def finished(tmp_path_factory):
    """A finished run of CartPole, of two versions: the second, which is the newest, falls."""
    run_dir = RunDir(tmp_path_factory.mktemp('finished') / 'run')
    specs = specs_of(functools.partial(gymnasium_env.make, 'CartPole-v1'))
    linear = example_policies.Linear(specs.observation, specs.action)
    exporter = PolicyExporter(linear.policy, run_dir.greedy_policy)
    for step, weights in ((3, BALANCES), (9, (0.0,) * 4)):
        linear.set(weights)
        exporter.export(step, {'env_steps': step})
    shutil.copytree(run_dir.greedy_policy, run_dir.policy('raw_policy'), symlinks=True)
    versions.point_best(run_dir.greedy_policy / '3')
    write_json(run_dir.done, {'reason': 'it ended', 'train_step': 9, 'policy': 'policies/greedy_policy/9'})
    return run_dir


def test_evaluates_a_policy_of_a_finished_run_by_several_processes(finished):
    flags = (f'--root_dir={finished.root}', '--gin_file=dqn_cartpole', SHORT)
    again = run('evaluate', *flags)
    assert (again.returncode, again.stdout) == (0, '')
    assert 'nothing to do, unless' in again.stderr
    assert '--policy=best evaluates a policy of it again' in again.stderr
    for number, episodes, processes in ((1, 5, 2), (2, 2, 1)):
        more = ('--num_environments=2', f'--episodes={episodes}', f'--num_processes={processes}')
        ended = run('evaluate', *flags, '--policy=best', *more)
        assert ended.returncode == 0, ended.stderr
        result, where = ended.stdout.splitlines()
        start = f'{finished.greedy_policy / "3"}, train step 3: mean return 100.00 of {episodes} episodes (95%'
        assert result.startswith(start)
        written = finished.policy_evaluations / f'greedy_policy-3-{number}.json'
        assert where == f'written to {written}'
        assert json.loads(written.read_text())['returns'] == [100.0] * episodes
    assert not finished.evaluations.exists()


def test_processes_share_the_episodes_of_each_version_of_a_run(finished, tmp_path):
    shutil.copytree(finished.root, tmp_path / 'run', symlinks=True)
    run_dir = RunDir(tmp_path / 'run')
    run_dir.done.unlink()
    write_json(run_dir.train_result, {'reason': 'it ended', 'train_step': 9, 'env_steps': 9, 'seconds': 1.0})
    bindings = (
        'from tflearn.jobs import evaluate_settings',
        'evaluate.options = @evaluate_settings.EvaluateOptions()',
        'evaluate_settings.EvaluateOptions.follow = "each"',
        'evaluate.num_processes = 3',
        'evaluate.num_episodes = 7',
        'evaluate.num_environments = 2',
        'evaluate.target_return = None',
    )
    flags = [f'--gin_bindings={binding}' for binding in bindings]
    ended = run('evaluate', f'--root_dir={run_dir.root}', '--gin_file=dqn_cartpole', SHORT, *flags)
    assert ended.returncode == 0, ended.stderr
    first, second = (json.loads(line) for line in run_dir.evaluations.read_text().splitlines())
    assert (first['train_step'], first['returns']) == (3, [100.0] * 7)
    assert (second['train_step'], second['num_episodes']) == (9, 7)
    assert second['mean_return'] == sum(second['returns']) / 7 < 20
    assert len(set(second['returns'])) > 1, 'and not of one seed'
    assert read_json(run_dir.done)['best_policy'] == 'policies/greedy_policy/3'
    assert 'of the evaluation failed' not in ended.stderr


def test_evaluates_copied_policies_of_another_run_at_once(finished, tmp_path):
    shutil.copytree(finished.policies, tmp_path / 'copy' / 'policies', symlinks=True)
    flags = (f'--root_dir={tmp_path / "other"}', '--gin_file=dqn_cartpole', SHORT, '--episodes=4')
    ended = run('evaluate', *flags, f'--policy={tmp_path / "copy"}', '--sampled', f'--output={tmp_path / "found.json"}')
    assert ended.returncode == 0, ended.stderr
    found = json.loads((tmp_path / 'found.json').read_text())
    assert (found['path'], found['train_step']) == (str(tmp_path / 'copy' / 'policies' / 'raw_policy' / '3'), 3)
    assert (found['sampled'], found['returns']) == (True, [100.0] * 4)
    assert 'gymnasium_env.make(' in found['environment'] and "name = 'CartPole-v1'" in found['environment']
    wrong = run('evaluate', *flags, f'--policy={tmp_path / "nowhere"}', '--num_processes=2')
    assert wrong.returncode == 2
    assert wrong.stderr.splitlines()[-1].startswith(
        f'tflearn-evaluate: error: got no policy at {tmp_path / "nowhere"}, which does not exist; need the directory'
    )


@pytest.mark.slow
@pytest.mark.extensions
def test_evaluates_on_data(tmp_path):
    flags = (f'--root_dir={tmp_path / "run"}', '--gin_file=dqn_cartpole')
    trained = run('synchronous', *flags, '--gin_bindings=train.StopConditions.num_train_steps=10')
    assert trained.returncode == 0, trained.stderr
    recorded = run(
        'data', 'record', *flags, f'--output={tmp_path / "data"}', '--episodes=40', '--policy=random',
        '--log_probabilities',
    )  # fmt: skip
    assert recorded.returncode == 0, recorded.stderr
    ended = run(
        'evaluate', flags[0], f'--data={tmp_path / "data"}', f'--output={tmp_path / "found.json"}', '--horizon=4',
        '--policy=raw_policy',
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    assert re.search(r'^weighted IS +4  \[4, 4\]$', ended.stdout, re.MULTILINE)
    assert json.loads((tmp_path / 'found.json').read_text())['behaviour'] == 'recorded'


@pytest.mark.extensions
def test_data_of_another_kind_is_refused(tmp_path):
    data_sets.write(tmp_path / 'data')
    ended = run('evaluate', f'--root_dir={tmp_path}', f'--data={tmp_path / "data"}')
    assert ended.returncode == 2
    assert 'tflearn-evaluate: error: got no policy in' in ended.stderr
