"""Bindings of a TF-Agents program's gin file, which counts for the drop-in with one import changed."""

import subprocess
import sys
import textwrap

import pytest
from tf_agents.train import learner as peer

import gin
from tests.testing import written_summaries
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
