"""Bindings of a TF-Agents program's gin file, which counts for the drop-in with one import changed."""

import os
import pathlib
import subprocess
import sys
import textwrap

import pytest
import tensorflow as tf
import tf_agents
from tf_agents.train import learner as peer

import gin
from tests.testing import lanes, ppo_agents, written_summaries
from tflearn.extensions.tf_agents import tf_agents_learner as learner
from tflearn.extensions.tf_agents import tf_agents_ppo_learner as ppo_learner
from tflearn.files.run_dir import RunDir

BINDINGS = """
    Learner.checkpoint_interval = 7
    Learner.max_checkpoints_to_keep = 2
    Learner.summary_interval = 3
"""


@pytest.fixture(autouse=True)
def _no_bindings():
    yield
    gin.clear_config()


@pytest.mark.parametrize('name', ['Learner', 'learner.Learner', 'tf_agents.train.learner.Learner'])
def test_bindings_of_the_learner_count(tmp_path, make_agent, make_dataset_fn, name):
    with gin.unlock_config():
        gin.parse_config(textwrap.dedent(BINDINGS).replace('Learner.', f'{name}.'))
    agent = make_agent()
    trained = learner.Learner(str(tmp_path), agent.train_step_counter, agent, make_dataset_fn())
    for _ in range(25):
        trained.run()
    run_dir = RunDir(tmp_path)
    assert {path.name for path in run_dir.checkpoints.glob('*.index')} == {'ckpt-14.index', 'ckpt-21.index'}
    trained.close()
    assert list(written_summaries.scalars(run_dir.checkpoints.parent)['train/loss']) == list(range(3, 25, 3))
    assert 'Learner.checkpoint_interval = 7' in gin.operative_config_str()


def test_an_argument_of_the_program_wins(tmp_path, make_agent, make_dataset_fn):
    with gin.unlock_config():
        gin.parse_config('Learner.checkpoint_interval = 7')
    agent = make_agent()
    trained = learner.Learner(str(tmp_path), agent.train_step_counter, agent, make_dataset_fn(), checkpoint_interval=2)
    trained.run()
    trained.run()
    assert RunDir(tmp_path).checkpoints.joinpath('ckpt-2.index').exists()


@pytest.mark.slow
def test_ppo_takes_the_bindings_of_both_learners(tmp_path):
    """What PPOLearner does not pass to its Learner is bound there, as in TF-Agents."""
    bindings = """
        PPOLearner.num_samples = 2
        PPOLearner.num_epochs = 3
        PPOLearner.checkpoint_interval = 4
        Learner.checkpoint_interval = 1
        Learner.max_checkpoints_to_keep = 1
    """
    with gin.unlock_config():
        gin.parse_config(textwrap.dedent(bindings))
    agent = ppo_agents.make()
    data = lambda: tf.data.Dataset.from_tensors((ppo_agents.trajectory(8), ())).repeat()  # noqa: E731
    trained = ppo_learner.PPOLearner(str(tmp_path), agent.train_step_counter, agent, data, data)
    for steps in (6, 12):
        trained.run()
        assert int(agent.train_step_counter) == steps
        names = {path.name for path in RunDir(tmp_path).checkpoints.glob('*.index')}
        assert names == {f'ckpt-{steps}.index'}


@pytest.mark.slow  # 30 s
@lanes.classic  # it is a program with Reverb
def test_the_dqn_program_of_tf_agents_with_one_import_changed(tmp_path):
    """And a gin file of bindings of its Learner."""
    theirs = pathlib.Path(tf_agents.__file__).parent / 'examples' / 'dqn' / 'dqn_train_eval.py'
    line, ours = 'from tf_agents.train import learner\n', learner.__name__.rpartition('.')
    program = theirs.read_text(encoding='utf-8')
    assert program.count(line) == 1
    changed = program.replace(line, f'from {ours[0]} import {ours[2]} as learner\n')
    (tmp_path / 'program.py').write_text(changed, encoding='utf-8')
    more = f"""
        Learner.run_optimizer_variable_init = False
        Learner.summary_root_dir = '{tmp_path}/summaries'
        train_eval.env_name = 'CartPole-v1'
        train_eval.initial_collect_steps = 200
    """
    (tmp_path / 'dqn.gin').write_text(textwrap.dedent(BINDINGS + more), encoding='utf-8')
    flags = ('--root_dir=run', '--gin_file=dqn.gin', '--num_iterations=25', '--eval_interval=0')
    environment = {**os.environ, 'PYTHONPATH': str(pathlib.Path(__file__).parents[3])}
    command = [sys.executable, 'program.py', *flags]
    subprocess.run(command, cwd=tmp_path, env=environment, timeout=400, check=True)
    checkpoints = RunDir(tmp_path / 'run').checkpoints
    assert {path.name for path in checkpoints.glob('*.index')} == {'ckpt-14.index', 'ckpt-21.index'}
    losses = written_summaries.scalars(tmp_path / 'summaries' / 'train')['train/loss']
    assert list(losses) == list(range(3, 25, 3))


def test_references_and_the_other_learner_are_ours():
    with gin.unlock_config():
        gin.parse_config('PPOLearner.num_epochs = 5\ntest/Learner.checkpoint_interval = 1')
    assert gin.query_parameter('tf_agents.train.ppo_learner.PPOLearner.num_epochs') == 5
    assert gin.get_configurable('PPOLearner') is ppo_learner.PPOLearner
    assert gin.get_configurable('Learner') is learner.Learner
    assert learner.Learner is not peer.Learner


@pytest.mark.parametrize('before', ['from tf_agents.train import learner, ppo_learner', 'import tf_agents.specs'])
def test_they_are_replaced_also_after_bindings_were_parsed_and_locked(before):
    program = f"""
        import gin
        {before}
        gin.parse_config('PPOLearner.num_epochs = 7', skip_unknown=True)
        gin.finalize()
        from tflearn.extensions.tf_agents import tf_agents_ppo_learner as learner
        print(gin.get_configurable('PPOLearner') is learner.PPOLearner, gin.config_is_locked(), gin.config_str())
    """
    command = [sys.executable, '-c', textwrap.dedent(program)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=200, check=True)
    assert ended.stdout.startswith('True True')
    assert ('PPOLearner.num_epochs = 7' in ended.stdout) == ('learner' in before)
