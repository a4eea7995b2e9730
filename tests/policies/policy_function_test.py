"""An exported policy as a function of plain observations."""

import numpy as np
import pytest

from tests.testing import example_policies
from tflearn.files.run_dir import RunDir
from tflearn.policies import loader, versions
from tflearn.policies.exporter import PolicyExporter
from tflearn.policies.policy_function import load_policy

ROWS = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)


@pytest.fixture(scope='module')
def run_dir(tmp_path_factory):
    """Three versions of a greedy policy, of which the second is the best."""
    run_dir = RunDir(tmp_path_factory.mktemp('run'))
    policy = example_policies.greedy()
    exporter = PolicyExporter(policy, run_dir.greedy_policy)
    for step in (1, 2, 3):
        example_policies.reweigh(policy, step)
        exporter.export(step, {'env_steps': 10 * step})
    assert versions.point_best(run_dir.greedy_policy / '2')
    return run_dir


def test_a_path_is_a_version_a_directory_of_versions_or_a_run(run_dir):
    for path, train_step in (
        (run_dir.greedy_policy / '1', 1),
        (str(run_dir.greedy_policy / 'best'), 2),
        (run_dir.greedy_policy, 3),
        (run_dir.root, 2),
    ):
        policy = load_policy(path)
        assert policy.train_step == train_step
        assert policy.metadata['env_steps'] == 10 * train_step
        assert policy.path == run_dir.greedy_policy / str(train_step)


def test_the_newest_version_of_a_run_without_evaluations(tmp_path):
    exporter = PolicyExporter(example_policies.random(), RunDir(tmp_path).greedy_policy)
    for step in (1, 2):
        exporter.export(step, {})
    assert load_policy(tmp_path).train_step == 2


@pytest.mark.parametrize(('name', 'text'), [('none', ', which does not exist'), ('.', '')])
def test_where_no_policy_is(tmp_path, name, text):
    with pytest.raises(FileNotFoundError, match=f'got no policy at {(tmp_path / name).resolve()}{text}; need the dir'):
        load_policy(tmp_path / name)


def test_one_observation_and_a_batch(run_dir):
    policy = load_policy(run_dir.root)
    actions = policy(ROWS)
    assert (actions.shape, actions.dtype) == ((3,), np.int64)
    assert [policy(row) for row in ROWS] == actions.tolist()
    assert np.shape(policy(ROWS[0])) == ()
    assert policy(ROWS.astype(np.float64).tolist()).tolist() == actions.tolist(), 'converted'


@pytest.mark.parametrize(
    ('observation', 'error', 'message'),
    [
        (np.zeros(5), ValueError, r'got an observation of shapes \[\[5\]\]; need \[\[4\]\], or a batch'),
        (np.zeros((1, 1, 4)), ValueError, r'\[\[1, 1, 4\]\]; need \[\[4\]\]'),
        (['a', 'b', 'c', 'd'], TypeError, 'got <U1 as observation; need float32'),
        ([0.0, np.nan, 0.0, 0.0], ValueError, 'got an observation with NaN or infinity'),
        ([[0.0] * 4, [0.0, 0.0, 0.0, -np.inf]], ValueError, 'got an observation with NaN or infinity'),
    ],
)
def test_observations_of_another_kind(run_dir, observation, error, message):
    with pytest.raises(error, match=message):
        load_policy(run_dir.root)(observation)


def test_numbers_that_are_not_finite_are_taken_if_they_are_meant(run_dir):
    assert np.shape(load_policy(run_dir.root, allow_nonfinite=True)([0.0, np.nan, 0.0, np.inf])) == ()


def test_nested_observations(tmp_path):
    PolicyExporter(example_policies.nested(), tmp_path).export(1, {})
    policy = load_policy(tmp_path)
    one = {'position': [0.5, -0.5], 'speeds': (np.zeros(2), [1])}
    batch = {'position': np.zeros((2, 2)), 'speeds': (np.zeros((2, 2)), np.zeros((2, 1)))}
    assert np.shape(policy(one)) == ()
    assert policy(batch).shape == (2,)
    for wrong, message in (
        (one['position'], r"got list of 2 as observation; need a dict with the keys \['position', 'speeds'\]"),
        ({'position': one['position']}, r"got a dict with the keys \['position'\] as observation"),
        ({**one, 'speeds': (np.zeros(2),)}, r"got tuple of 1 as observation\['speeds'\]; need a tuple of 2"),
    ):
        with pytest.raises(TypeError, match=message):
            policy(wrong)
    with pytest.raises(ValueError, match=r'\[\[2\], \[2, 2\], \[2, 1\]\]; need \[\[2\], \[2\], \[1\]\]'):
        policy({**batch, 'position': one['position']})


def test_whole_numbers_stay_what_they_are(tmp_path):
    exporter = PolicyExporter(example_policies.of_bytes(), tmp_path)
    exporter.export(1, {})
    policy = load_policy(tmp_path)
    assert policy([0, 127, 255]) == policy(np.array([0, 127, 255], np.uint8))
    for wrong in ([0, 127, 256], [0, -1, 255], [0.0, 127.0, 255.0]):
        with pytest.raises(TypeError, match='as observation; need uint8'):
            policy(wrong)


def test_a_policy_with_memory_remembers_until_it_is_reset(tmp_path):
    recurrent = example_policies.recurrent()
    example_policies.reweigh(recurrent)
    PolicyExporter(recurrent, tmp_path).export(1, {})
    policy, loaded = load_policy(tmp_path), loader.load(tmp_path / '1')
    rows = np.random.default_rng(1).normal(size=(20, 2, 4), scale=3.0).astype(np.float32)
    state, expected = loaded.initial_state(2), []
    for row in rows:
        step = example_policies.time_step(recurrent, 2)._replace(observation=row)
        action, state = loaded.action(step, state)
        expected.append(action.tolist())
    for _ in range(2):
        policy.reset()
        assert [policy(row).tolist() for row in rows] == expected
    with pytest.raises(ValueError, match=r'got 1 observations after 2; .* call reset\(\)'):
        policy(rows[0, :1])
    policy.reset()
    assert policy(rows[0, :1]).shape == (1,)
