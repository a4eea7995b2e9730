"""Limits of environment steps in the synchronous job: of the run, and of its collection."""

import threading

import pytest

from tests.testing import jobs, lanes
from tflearn.core.experience import BatchItems, Experience, Uniform
from tflearn.files.run_dir import read_json
from tflearn.jobs.collect_settings import CollectOptions
from tflearn.jobs.synchronous import synchronous


def run_synchronously(root, **arguments):
    """Runs the job with two environments; returns its directory."""
    run = jobs.SmallRun(root)
    given = {'run_dir': run.dir, 'stop': threading.Event(), **run.factories(), 'num_environments': 2}
    synchronous(**jobs.job_arguments(synchronous, given | arguments))
    return run.dir


@lanes.classic
@pytest.mark.parametrize(
    ('limits', 'env_steps'),
    [
        pytest.param({'max_env_steps': 80}, 80, marks=pytest.mark.slow),
        ({'max_env_steps': 60, 'collect_options': CollectOptions(max_env_steps=80)}, 60),
    ],
)
def test_max_env_steps_ends_a_run(tmp_path, limits, env_steps):
    run_dir = run_synchronously(tmp_path, num_train_steps=10**6, **limits)
    result = read_json(run_dir.train_result)
    assert result['reason'] == f'max_env_steps {env_steps} reached'
    assert env_steps <= result['env_steps'] < env_steps + 2


@pytest.mark.parametrize(
    ('ratio', 'num_train_steps', 'reason'),
    [
        (4.0, 10**6, 'CollectOptions.max_env_steps 80 reached, and the data are used up'),
        pytest.param(4.0, 10, 'num_train_steps 10 reached', marks=pytest.mark.slow),
        (None, 300, 'num_train_steps 300 reached'),
    ],
)
def test_training_goes_on_after_the_last_environment_step_as_far_as_the_data_allow(
    tmp_path, ratio, num_train_steps, reason
):
    replay = Uniform(min_size=50, samples_per_insert=ratio, max_size=2000)
    run_dir = run_synchronously(
        tmp_path,
        num_train_steps=num_train_steps,
        experience=Experience(replay=replay, batch=BatchItems(8)),
        collect_options=CollectOptions(max_env_steps=80),
    )
    result = read_json(run_dir.train_result)
    assert result['reason'] == reason
    assert result['env_steps'] in (80, 81) or num_train_steps == 10
    # In 30 steps beyond the first 50, of which some begin episodes, 4 draws each, in batches of 8.
    assert 10 <= result['train_step'] <= 16 or ratio is None


def test_a_limit_of_environment_steps_ends_no_run_whose_data_may_always_be_used_again(tmp_path):
    options, replay = CollectOptions(max_env_steps=80), Uniform(min_size=50)
    with pytest.raises(ValueError, match='got no stop condition'):
        run_synchronously(tmp_path, num_train_steps=None, experience=Experience(replay=replay), collect_options=options)
