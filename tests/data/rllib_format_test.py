"""Samples of RLlib as episodes; the lines are as JsonWriter of ray 2 writes them."""

import json

import numpy as np
import pytest

from tflearn.data import columns
from tflearn.data.reader import Dataset, EpisodeReader
from tflearn.jobs import record


def rows(episode, steps, terminated=False, **changes):
    """Rows of an episode of CartPole's form; its observations count its steps."""
    steps = list(steps)
    ends = [terminated and i == len(steps) - 1 for i in range(len(steps))]
    batch = {
        't': steps,
        'eps_id': [episode] * len(steps),
        'agent_index': [0] * len(steps),
        'obs': [[float(episode), float(step)] for step in steps],
        'actions': [step % 2 for step in steps],
        'action_logp': [-0.5] * len(steps),
        'rewards': [1.0] * len(steps),
        'terminateds': ends,
        'truncateds': [False] * len(steps),
        'infos': [{}] * len(steps),
        'new_obs': [[float(episode), float(step + 1)] for step in steps],
    }
    return {**batch, **changes}


def joined(*batches):
    return {name: [row for batch in batches for row in batch[name]] for name in batches[0]}


def write(folder, *batches, name='output-2026-11-30_10-00-00_worker-1_0.json'):
    folder.mkdir(exist_ok=True)
    lines = [json.dumps({'type': 'SampleBatch', **batch}) + '\n' for batch in batches]
    (folder / name).write_text(''.join(lines))


def convert(folder, output):
    return record.convert([str(folder)], output, 'tflearn')


def test_pieces_of_episodes_are_joined(tmp_path):
    """Two environments' fragments, one policy's batch, and an episode that goes on in the next file."""
    first, second = rows(7, range(3)), rows(5, range(2))
    write(tmp_path / 'in', joined(first, second), rows(7, range(3, 5), terminated=True))
    alone = {'type': 'MultiAgentBatch', 'count': 2, 'policy_batches': {'default_policy': rows(5, range(2, 4))}}
    write(tmp_path / 'in', {**alone}, name='output-2026-11-30_10-00-00_worker-1_1.json')
    assert convert(tmp_path / 'in', tmp_path / 'out').startswith('2 episodes in')
    long, cut = EpisodeReader(Dataset([str(tmp_path / 'out')])).episodes()
    np.testing.assert_array_equal(long['observation'], [[7.0, step] for step in range(6)])
    np.testing.assert_array_equal(long['action'], [0, 1, 0, 1, 0, 0])
    np.testing.assert_array_equal(long['reward'], [1, 1, 1, 1, 1, 0])
    np.testing.assert_array_equal(long['discount'], [1, 1, 1, 1, 0, 1])
    np.testing.assert_array_equal(long['step_type'], [0, 1, 1, 1, 1, 2])
    np.testing.assert_array_equal(long['policy_info.log_probability'][:-1], np.float32([-0.5] * 5))
    np.testing.assert_array_equal(cut['observation'], [[5.0, step] for step in range(5)])
    np.testing.assert_array_equal(cut['discount'], np.ones(5))
    specs = columns.read_specs(tmp_path / 'out')
    assert (specs.action.dtype.name, specs.action.maximum, specs.observation.dtype.name) == ('int64', 1, 'float32')


def test_a_missing_piece_cuts_the_episode(tmp_path):
    picture = np.arange(48).reshape(1, 4, 4, 3).tolist()
    images = {'obs': picture * 2, 'new_obs': picture * 2, 'actions': [[0.5], [-1.0]]}
    write(tmp_path / 'in', rows(1, [0, 1], **images), rows(1, [4, 5], terminated=True, **images))
    convert(tmp_path / 'in', tmp_path / 'out')
    episodes = [*EpisodeReader(Dataset([str(tmp_path / 'out')])).episodes()]
    assert [episode['discount'].tolist() for episode in episodes] == [[1, 1, 1], [1, 0, 1]]
    assert episodes[0]['observation'].dtype == np.uint8 and episodes[0]['action'].dtype == np.float32


@pytest.mark.parametrize(
    ('change', 'message'),
    [
        (
            {'obs': 'BCJNGGhAmAAAAA=='},
            r'line 1, with compressed columns \(obs\): pickles.*output_compress_columns=\[\]',
        ),
        ({'new_obs': None}, 'got .*worker-1_0.json, line 1, with columns of'),
        ({'rewards': [1.0]}, 'with columns of .* rows; need arrays of numbers, of as many rows'),
        ({'obs': [[1.0], [1.0, 2.0]]}, 'is no batch of RLlib'),
        ({'type': 'MultiAgentBatch', 'policy_batches': {'a': {}, 'b': {}}}, 'with the rows of 2 policies; need'),
    ],
)
def test_mistakes_are_refused(tmp_path, change, message):
    write(tmp_path / 'in', rows(1, range(2), **change))
    with pytest.raises(ValueError, match=message):
        convert(tmp_path / 'in', tmp_path / 'out')
    assert not (tmp_path / 'out').exists()
