"""The states of versions: one file, whole after every change, with its history."""

import json
import os
import threading

import pytest

from tflearn.policies import states, versions


@pytest.fixture
def directory(tmp_path):
    for number in range(1, 9):
        write_version(tmp_path / str(number))
    return tmp_path


def write_version(version):
    version.mkdir()
    (version / 'saved_model.pb').touch()
    (version / 'metadata.json').write_text('{}')


def promote(directory, version, state='stable', **settings):
    return states.promote(directory, version, state, 'a test', who='me', **settings)


def test_a_rollback_takes_the_canary_back_then_the_stable_version(directory):
    assert states.read(directory) is None
    for version in (1, 2, 3):
        promote(directory, version)
    assert promote(directory, 4, 'shadow').labels == {'stable': 3, 'shadow': 4}
    found = promote(directory, 4, 'canary', share=0.1)
    assert (found.labels, found.share, found.versions, found.on_trial) == (
        {'stable': 3, 'canary': 4},
        0.1,
        (3, 4, 2),
        4,
    )
    found = states.rollback(directory, 'slow', who='me')
    assert (found.labels, found.on_trial) == ({'stable': 3}, None)  # nothing was promoted since
    versions.remove(directory / '2')  # which its mark prevents
    assert states.rollback(directory, 'bad', who='me').labels == {'stable': 2}
    found = states.rollback(directory, 'worse', who='me')
    assert (found.labels, found.earlier) == ({'stable': 1}, ())
    with pytest.raises(ValueError, match='got no earlier stable version'):
        states.rollback(directory, 'again')
    assert [(entry['change'], entry['version']) for entry in found.history[-4:]] == [
        ('canary', 4), ('rollback', 4), ('rollback', 3), ('rollback', 2),
    ]  # fmt: skip
    assert 'me: rollback 3: bad' in found.text() and states.read(directory) == found


def test_a_rollback_of_one_version_leaves_others(directory):
    for version in (1, 2):
        promote(directory, version)
    assert states.rollback(directory, 'slow', only=1).stable == 2
    assert states.rollback(directory, 'slow', only=2).stable == 1
    assert promote(directory, 3).on_trial == 3


def test_a_user_without_a_name_may_change_them(directory, monkeypatch):
    monkeypatch.setattr(os, 'getuid', lambda: 54_321)  # as in a container that names its user by a number
    for name in ('LOGNAME', 'USER', 'LNAME', 'USERNAME'):
        monkeypatch.delenv(name, raising=False)
    assert states.promote(directory, 1, 'stable', 'a test').history[0]['who'].startswith('54321@')


def test_versions_with_a_state_are_not_pruned(directory):
    for version in (2, 3, 4, 5):
        promote(directory, version)
    versions.prune(directory, 1)
    assert versions.versions(directory) == [2, 3, 4, 5, 8]
    for version in (8, 5, 4, 8, 5):
        promote(directory, version)
    assert states.read(directory).earlier == (8, 4, 3, 2)


@pytest.mark.parametrize('state', ['stable', 'canary', 'shadow'])
def test_a_promoted_version_that_links_point_to_is_not_pruned(directory, state):
    if state != 'stable':
        promote(directory, 2)
    newest = directory / str(versions.newest_version(directory))
    versions.point_latest(directory)
    assert versions.point_best(newest)
    promote(directory, int(newest.name), state)
    assert (newest / versions.PROMOTED).exists()
    versions.point_best(directory / '3')
    for later in (9, 10):
        write_version(directory / str(later))
        versions.point_latest(directory)
    versions.prune(directory, 1)
    assert int(newest.name) in versions.versions(directory)


def test_the_same_keys_get_the_canary(directory):
    promote(directory, 1)
    found = promote(directory, 2, 'canary', share=0.2)
    keys = [f'user-{i}' for i in range(5_000)]
    arms = [found.arm(key) for key in keys]
    assert arms.count('canary') / len(keys) == pytest.approx(0.2, abs=0.02)
    larger = promote(directory, 2, 'canary', share=0.4)
    assert all(larger.arm(key) == 'canary' for key, arm in zip(keys, arms, strict=True) if arm == 'canary')
    other = promote(directory, 3, 'canary', share=0.2)
    assert [other.arm(key) for key in keys] != arms


@pytest.mark.parametrize(
    ('version', 'state', 'error'),
    [(9, 'stable', 'got the version 9, which is not in'), (1, 'canary', 'got the stable version 1 as canary')],
)
def test_mistakes_are_refused(directory, version, state, error):
    promote(directory, 1)
    before = (directory / states.FILE).read_text()
    with pytest.raises(ValueError, match=error):
        promote(directory, version, state, share=0.1)
    assert (directory / states.FILE).read_text() == before


def test_the_first_state_is_stable(directory):
    with pytest.raises(ValueError, match='got 1 as shadow of a policy without a stable version'):
        promote(directory, 1, 'shadow')
    with pytest.raises(ValueError, match=r'got no states.json'):
        states.rollback(directory, 'bad')


@pytest.mark.parametrize('damage', ['{}', '{"stable": "x"}', '{"stable": 1, "share": 2}', '[1]', '{"stable": 1,'])
def test_a_damaged_file_is_named(directory, damage):
    (directory / states.FILE).write_text(damage)
    with pytest.raises(ValueError, match=r'got a damaged file .*states.json'):
        states.read(directory)


def test_changes_at_the_same_time_are_all_kept_and_readers_see_whole_files(directory):
    promote(directory, 1)
    threads = [
        threading.Thread(target=lambda v=v: [promote(directory, v, 'shadow') for _ in range(20)]) for v in (2, 3, 4)
    ]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        assert json.loads((directory / states.FILE).read_text())['stable'] == 1
    assert len(states.read(directory).history) == 61
