"""tflearn data split: whole episodes, by time or by name, and which data sets may share episodes."""

import itertools
import pathlib

import numpy as np
import pytest

from tests.testing import forks
from tflearn.data import arrays, conversion, metadata, statistics
from tflearn.data.reader import Dataset, EpisodeReader
from tflearn.extensions.product.split import split

EPISODES, STEPS = 400, 3


@pytest.fixture(scope='module')
def data(tmp_path_factory):
    """Sessions of three steps by forty users; their names are random, their times are in the reversed order."""
    path = tmp_path_factory.mktemp('data') / 'data'
    names = np.random.default_rng(1).integers(0, 1 << 40, EPISODES)
    rows = np.repeat(np.arange(EPISODES), STEPS)
    arrays.from_arrays(
        path,
        observation={'user': (rows % 40).astype(np.int64)},
        action=np.zeros(len(rows), np.int64),
        reward=rows.astype(np.float32),
        episode=names[rows],
        policy_info={'episode': names[rows], 'time': (2.0 * EPISODES - 2 * rows) + np.tile([0, 1, 2], EPISODES)},
    )
    return path


def episodes(path, column):
    return [episode[column][0] for episode in EpisodeReader(Dataset([str(path)])).episodes()]


def parts(data, output, **settings):
    split(Dataset([str(data)]), output, **settings)
    return output / 'train', output / 'held_out'


def contents(folder):
    return {file.relative_to(folder): file.read_bytes() for file in sorted(folder.rglob('*')) if file.is_file()}


def test_the_program_holds_out_whole_sessions_by_a_hash_of_their_names(data, tmp_path):
    arguments = ('split', f'--data={data}', '--share=0.25')
    ended = forks.run('scripts', 'data', *arguments, f'--output={tmp_path}/a', timeout=120)
    assert ended.returncode == 0, ended.stderr
    train, held_out = (episodes(tmp_path / 'a' / part, 'reward') for part in ('train', 'held_out'))
    assert sorted(train + held_out) == list(range(EPISODES))
    assert 0.15 < len(held_out) / EPISODES < 0.35
    assert (
        f'held_out: {len(held_out)} episodes ({len(held_out) / EPISODES:.1%}), {3 * len(held_out)} st' in ended.stdout
    )
    again = forks.run('scripts', 'data', *arguments, f'--output={tmp_path}/b', timeout=120)
    assert again.returncode == 0
    assert contents(tmp_path / 'a') == contents(tmp_path / 'b')
    wrong = forks.run('scripts', 'data', 'split', f'--data={data}', f'--output={tmp_path}/c', timeout=120)
    assert (wrong.returncode, wrong.stderr.count('got --share=None; need a number')) == (2, 1), wrong.stderr
    assert 'share 0.25' in statistics.Statistics(Dataset([str(tmp_path / 'a/train')])).text()


def test_a_session_stays_on_its_side_when_others_come(data, tmp_path):
    _, held_out = parts(data, tmp_path / 'a', share=0.25)
    conversion.copy(Dataset([str(data)], max_episodes=100), tmp_path / 'few')
    _, of_few = parts(tmp_path / 'few', tmp_path / 'b', share=0.25)
    assert set(episodes(of_few, 'reward')) == {each for each in episodes(held_out, 'reward') if each < 100}


def test_by_time_all_that_is_held_out_ended_later(data, tmp_path):
    train, held_out = parts(data, tmp_path / 'a', share=0.1, by='time')
    assert sorted(episodes(held_out, 'reward')) == list(range(40))
    assert min(episodes(held_out, 'policy_info.time')) > max(episodes(train, 'policy_info.time'))


def test_by_a_column_all_of_a_user_are_on_one_side(data, tmp_path):
    train, held_out = parts(data, tmp_path / 'a', share=0.3, by='observation.user')
    assert not set(episodes(train, 'observation.user')) & set(episodes(held_out, 'observation.user'))


@pytest.mark.parametrize(
    ('settings', 'error'),
    [
        ({'share': 0.0}, 'got share=0.0; need a number above 0 and at most 1'),
        ({'share': 1.0}, 'got share=1 without earlier; need a share below 1, or an earlier split'),
        ({'share': 0.5, 'by': 'observation.shop'}, r"got by='observation.shop' for data without observation.shop"),
        ({'share': 1e-9}, 'got no episode for held_out, of 400'),
        (
            {'share': 0.2, 'by': 'time', 'earlier': pathlib.Path('a')},
            "got earlier=a with by='time'; need by='id' with it",
        ),
        ({'share': 0.2, 'by': 'time', 'rounds': 2}, "got rounds=2 with by='time'; need by='id' with it"),
    ],
)
def test_mistakes_are_refused(data, tmp_path, settings, error):
    with pytest.raises(ValueError, match=error):
        parts(data, tmp_path / 'a', **settings)
    assert not list(tmp_path.iterdir())


def test_episodes_of_an_earlier_split_are_trained_on(data, tmp_path):
    old = tmp_path / 'old'
    conversion.copy(Dataset([str(data)], max_episodes=250), old)
    earlier = [episodes(part, 'reward') for part in parts(old, tmp_path / 'earlier', share=0.25)]
    train, held_out = parts(data, tmp_path / 'later', share=0.25, earlier=tmp_path / 'earlier', rounds=3)
    held = set(episodes(held_out, 'reward'))
    assert held and not held & {*earlier[0], *earlier[1]} and earlier[1]
    assert held == set(episodes(parts(data, tmp_path / 'alone', share=0.25)[1], 'reward')) - set(earlier[1])
    assert sorted([*episodes(train, 'reward'), *held]) == list(range(EPISODES))
    _, new = parts(data, tmp_path / 'new', share=1.0, earlier=tmp_path / 'earlier')
    assert set(episodes(new, 'reward')) == set(range(EPISODES)) - {*earlier[0], *earlier[1]}
    train, again = parts(data, tmp_path / 'once', share=0.25, earlier=tmp_path / 'earlier')
    assert set(episodes(again, 'reward')) == held
    new_train = tmp_path / 'once' / 'new_train'
    assert sorted(episodes(new_train, 'reward')) == sorted({*episodes(new, 'reward')} - held)
    assert {*episodes(new_train, 'reward')} < {*episodes(train, 'reward')}
    assert [*tmp_path.glob('*/new_train')] == [new_train], 'for one round, and what is trained on'
    ours, theirs, others = (metadata.lineage([path]) for path in (new_train, train, again))
    assert metadata.may_share_episodes(ours, theirs) and not metadata.may_share_episodes(ours, others)
    train, nothing = parts(old, tmp_path / 'nothing', share=1.0, earlier=tmp_path / 'earlier')
    assert len(episodes(train, 'reward')) == 250 and not nothing.exists()
    train = tmp_path / 'later' / 'train'
    # Nothing is new: the shares are those of the data alone. Earlier versions did not write how long.
    np.save(tmp_path / 'earlier' / 'seen.npy', np.load(tmp_path / 'earlier' / 'seen.npy')[0])
    _, again = parts(old, tmp_path / 'again', share=0.25, earlier=tmp_path / 'earlier')
    assert episodes(again, 'reward') == earlier[1]
    ours, theirs, others = (metadata.lineage([path]) for path in (train, held_out, tmp_path / 'alone/held_out'))
    assert not metadata.may_share_episodes(ours, theirs) and metadata.may_share_episodes(ours, others)


def test_an_episode_is_held_out_in_as_many_splits_as_stated_and_then_trained_on(data, tmp_path):
    held = [set()]
    for number, size in enumerate((150, 250, 330, EPISODES), 1):
        conversion.copy(Dataset([str(data)], max_episodes=size), tmp_path / f'log{number}')
        earlier = {'earlier': tmp_path / str(number - 1)} if number > 1 else {}
        train, held_out = parts(tmp_path / f'log{number}', tmp_path / str(number), share=0.25, rounds=2, **earlier)
        held.append(set(episodes(held_out, 'reward')))
        assert sorted([*episodes(train, 'reward'), *held[-1]]) == list(range(size))
    new = [now - before for before, now in itertools.pairwise(held)]
    assert all(new) and not set.intersection(*new[:2]) and len(set.union(*new)) == sum(map(len, new)), 'each once'
    assert held[1:] == [new[0], new[0] | new[1], new[1] | new[2], new[2] | new[3]]
    _, later = parts(data, tmp_path / 'later', share=1.0, rounds=2, earlier=tmp_path / '3')
    assert set(episodes(later, 'reward')) == set(range(330, EPISODES)), 'what was held out has judged'
    _, held_out = parts(data, tmp_path / 'both', share=0.25, rounds=2, earlier=tmp_path / 'later')
    assert set(episodes(held_out, 'reward')) == new[3], 'and the next one by those that the share takes'
    earlier, held = {}, []
    for share in (0.3, 0.1, 0.3):
        path = tmp_path / f'shares{len(held)}'
        held.append(set(episodes(parts(data, path, share=share, rounds=3, **earlier)[1], 'reward')))
        earlier = {'earlier': path}
    assert held[2] == held[1] < held[0], 'what was trained on in between judges no more'


def test_a_cluster_is_held_out_as_a_whole_and_once(tmp_path):
    """Whoever was judged by or trained on, however long ago, is trained on when he returns."""
    random, before = np.random.default_rng(0), set()
    for number in range(1, 4):
        users = np.unique(random.integers(0, 300, 200)) if number != 2 else np.arange(300, 400)
        user, action = np.repeat(users, 3), np.zeros(3 * len(users), np.int64)
        info = {'cluster': user, 'id': number * 1_000 + np.arange(len(user)), 'time': np.arange(len(user)) + 0.0}
        arrays.from_arrays(tmp_path / f'log{number}', {'x': user}, action, 0.0 * user, policy_info=info)
        earlier = {'earlier': tmp_path / str(number - 1)} if number > 1 else {}
        found = parts(tmp_path / f'log{number}', tmp_path / str(number), share=0.3, **earlier)
        trained, held_out = (set(episodes(part, 'policy_info.cluster')) for part in found)
        assert held_out and not trained & held_out and not held_out & before
        assert trained | held_out == set(users.tolist())
        before |= trained | held_out
    info['time'] = np.tile(np.arange(len(users)), 3) + 0.0
    arrays.from_arrays(tmp_path / 'mixed', {'x': user}, action, 0.0 * user, policy_info=info)
    with pytest.raises(ValueError, match=r"got by='time', which puts \d+ clusters in both parts; need by='id'"):
        parts(tmp_path / 'mixed', tmp_path / 'by_time', share=0.3, by='time')


def test_an_earlier_split_has_the_same_names(data, tmp_path):
    rows = np.arange(90)
    arrays.from_arrays(tmp_path / 'old', {'user': rows}, np.zeros(90, np.int64), rows)
    parts(tmp_path / 'old', tmp_path / 'earlier', share=0.5)
    with pytest.raises(ValueError, match='got .*/earlier/train without policy_info.episode; need a split of data'):
        parts(data, tmp_path / 'later', share=0.25, earlier=tmp_path / 'earlier')


def test_which_data_sets_may_share_episodes(data, tmp_path):
    train, held_out = parts(data, tmp_path / 'a', share=0.25)
    _, other = parts(data, tmp_path / 'b', share=0.5)
    conversion.copy(Dataset([str(train)]), tmp_path / 'copy')
    again, rest = parts(train, tmp_path / 'c', share=0.5)
    lineage = {
        path: metadata.lineage([path]) for path in (data, train, held_out, other, tmp_path / 'copy', again, rest)
    }
    shared = lambda one, two: metadata.may_share_episodes(lineage[one], lineage[two])  # noqa: E731
    assert shared(data, data) and shared(data, held_out) and shared(train, data)
    assert shared(train, other) and shared(tmp_path / 'copy', train) and shared(tmp_path / 'copy', data)
    assert shared(again, train) and shared(data, rest)
    assert not shared(train, held_out) and not shared(tmp_path / 'copy', held_out)
    assert not shared(again, rest) and not shared(again, held_out)


def test_equal_decisions_without_names_are_divided_by_chance(tmp_path):
    # Four kinds of decisions: whole kinds on one side would choose by action and reward.
    rng = np.random.default_rng(0)
    action = rng.integers(0, 2, 4_000)
    reward = (rng.random(4_000) < 0.3 + 0.4 * action).astype(np.float32)
    arrays.from_arrays(tmp_path / 'data', observation=np.zeros((4_000, 1), np.float32), action=action, reward=reward)
    for path in parts(tmp_path / 'data', tmp_path / 'parts', share=0.4):
        taken, clicked = (np.array(episodes(path, name)) for name in ('action', 'reward'))
        assert taken.mean() == pytest.approx(0.5, abs=0.05) and clicked.mean() == pytest.approx(0.5, abs=0.05)
        assert len(taken) == pytest.approx(1_600 if path.name == 'held_out' else 2_400, abs=120)
    earlier = tmp_path / 'parts'
    again = parts(tmp_path / 'data', tmp_path / 'again', share=0.4, earlier=earlier)
    assert [len(episodes(path, 'action')) for path in again] == [
        len(episodes(earlier / path.name, 'action')) for path in again
    ], 'nothing is new'
