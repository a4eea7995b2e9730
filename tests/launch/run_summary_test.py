"""The summary that is printed at the end of a run."""

import pathlib
import sys

import pytest

from tflearn.files.run_dir import RunDir
from tflearn.launch import reports

DONE = {
    'reason': 'target_return 475',
    'train_step': 12_000,
    'env_steps': 48_000,
    'seconds': 190.4,
    'policy': 'policies/greedy_policy/12000',
    'evaluation': {'train_step': 12_000, 'mean_return': 487.25, 'num_episodes': 20},
}
RESULT = 'target_return 475; train step 12,000, 48,000 env steps, 3 min 10 s; greedy mean return 487.2 over 20 episodes'


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A run directory below the working directory."""
    monkeypatch.chdir(tmp_path)
    return RunDir('runs/my run')


def test_done_lines_can_be_pasted(here, monkeypatch):
    monkeypatch.setattr(sys, 'executable', str(pathlib.Path.cwd() / '.venv' / 'bin' / 'python'))
    assert reports.done_lines(here, DONE) == [
        f'The run is done: {RESULT}.',
        "  learning curve   'runs/my run/learning_curve.png'",
        "  TensorBoard      'runs/my run/summaries'  "
        f"(to see it: {sys.executable} -m tensorboard.main --logdir='runs/my run/summaries')",
        "  checkpoints      'runs/my run/train/checkpoints'",
        "  policy           'runs/my run/policies/greedy_policy/12000'  (tf.saved_model.load)",
        "  jobs by hand     one terminal each, in any order; their commands: cat 'runs/my run/commands.txt'",
    ]


def test_finished_run_takes_one_line(here):
    assert reports.already_done_line(here, DONE) == (
        f"This run is already finished: {RESULT}. Its policy is in 'runs/my run/policies/greedy_policy/12000', its "
        "learning curve in 'runs/my run/learning_curve.png'; to continue, raise the stop condition that ended it; "
        'for a new run choose another --root_dir.'
    )


def test_marks_missing_metrics():
    assert reports.result({}) == (
        'no reason given; train step ?, ? env steps, 0 s; greedy mean return ? over ? episodes'
    )


def test_interrupted_run_names_what_is_kept(here):
    assert reports.interrupted_line(here, 'SIGINT') == (
        'The run was stopped by SIGINT; it had not learned anything yet. The same command continues from there.'
    )
    here.checkpoints.mkdir(parents=True)
    (here.checkpoints / 'checkpoint').touch()
    assert "what it learned is in 'runs/my run/train/checkpoints'." in reports.interrupted_line(here, 'SIGINT')


def test_paths_elsewhere_are_absolute(here, tmp_path):
    assert reports.quoted(tmp_path.parent / 'other') == str(tmp_path.parent / 'other')
