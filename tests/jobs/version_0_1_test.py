"""A run that version 0.1 began, before its modules were moved and renamed, resumes."""

import functools
import pathlib
import shutil
import threading

from tflearn.agents import dqn
from tflearn.environments import gymnasium_env
from tflearn.experience import BatchItems, Experience, Uniform
from tflearn.jobs.policy_exports import ExportOptions
from tflearn.jobs.synchronous import synchronous
from tflearn.jobs.train_settings import Initial
from tflearn.learner.stop_conditions import StopConditions
from tflearn.run_dir import RunDir, read_json

CHECKPOINT = pathlib.Path(__file__).parent / 'version_0_1' / 'train' / 'checkpoints'


def test_a_run_of_version_0_1_resumes_from_its_checkpoint(tmp_path, caplog):
    run_dir = RunDir(tmp_path)
    shutil.copytree(CHECKPOINT, run_dir.checkpoints)
    synchronous(
        run_dir=run_dir,
        make_environment=functools.partial(gymnasium_env.make, 'CartPole-v1'),
        make_agent=functools.partial(dqn.make_agent, fc_layer_params=(4,), epsilon=0.2),
        experience=Experience(replay=Uniform(min_size=8, samples_per_insert=8.0, max_size=200), batch=BatchItems(8)),
        stop_conditions=StopConditions(30),
        num_environments=1,
        initial=Initial(seed=3),
        exports=ExportOptions(('greedy_policy',)),
        stop=threading.Event(),
    )
    assert f'train step 20, {run_dir.checkpoints}/ckpt-20' in caplog.text
    result = read_json(run_dir.train_result)
    assert result['train_step'] == 30
    assert result['env_steps'] > 30  # that the checkpoint counts already
