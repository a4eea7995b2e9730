"""Versions are atomic, even if a process is killed or prunes at the same time."""

import os
import subprocess

import pytest

from tflearn.files import numbered, temporary
from tflearn.files.run_dir import read_json
from tflearn.policies import added_metadata, versions


def make_version(directory, name):
    path = directory / str(name)
    path.mkdir(parents=True)
    for file in ('saved_model.pb', 'metadata.json'):
        (path / file).write_text('{}')
    return path


def names(directory):
    return sorted(path.name for path in directory.iterdir())


def test_only_complete_versions_are_listed(tmp_path):
    assert versions.newest_version(tmp_path / 'missing') is None
    (tmp_path / 'file').touch()
    assert versions.newest_version(tmp_path / 'file') is None
    (tmp_path / 'file').unlink()
    assert versions.newest_version(tmp_path) is None
    for name in (0, 9, 80, '007', 'new', '.writing-90-1', '-5', '²'):
        make_version(tmp_path, name)
    (make_version(tmp_path, 100) / 'metadata.json').unlink()
    (make_version(tmp_path, 101) / 'saved_model.pb').unlink()
    (tmp_path / '102').write_text('a file')
    assert versions.versions(tmp_path) == [0, 9, 80]
    assert versions.newest_version(tmp_path) == 80


def test_publishing_renames_the_written_version(tmp_path):
    with numbered.writing(tmp_path / 'policy' / '5') as written:
        (written / 'saved_model.pb').write_text('')
        (written / 'metadata.json').write_text('{}')
        assert versions.newest_version(tmp_path / 'policy') is None
        versions.publish(written, tmp_path / 'policy' / '5')
    assert versions.newest_version(tmp_path / 'policy') == 5
    assert names(tmp_path / 'policy') == ['5', 'latest']
    assert (tmp_path / 'policy' / 'latest' / 'metadata.json').exists()


def test_publishing_never_overwrites(tmp_path):
    old = make_version(tmp_path, 5)
    (old / 'saved_model.pb').write_text('old')
    with pytest.raises(OSError), numbered.writing(old) as written:
        (written / 'saved_model.pb').write_text('new')
        versions.publish(written, old)
    assert names(tmp_path) == ['5']
    assert (old / 'saved_model.pb').read_text() == 'old'


def test_pruning_keeps_the_newest_the_spared_and_the_kept(tmp_path):
    for step in (1, 2, 3, 10, 20):
        make_version(tmp_path, step)
    make_version(tmp_path, 'mine')
    assert versions.keep(tmp_path / '2')
    versions.prune(tmp_path, keep_last=2, spare=3)
    assert names(tmp_path) == ['10', '2', '20', '3', 'mine']
    versions.unkeep(tmp_path / '2')
    versions.prune(tmp_path, keep_last=1)
    assert names(tmp_path) == ['20', 'mine']


def test_keeping_a_removed_version_returns_false(tmp_path):
    assert not versions.keep(tmp_path / '2')
    versions.unkeep(tmp_path / '2')


def test_version_marked_while_it_is_removed_is_restored(tmp_path):
    make_version(tmp_path, 2)
    versions.keep(tmp_path / '2')
    versions.remove(tmp_path / '2')
    assert versions.newest_version(tmp_path) == 2


def test_best_version_is_kept_and_linked(tmp_path):
    for step in (1, 2, 3, 4):
        make_version(tmp_path, step)
    assert versions.best_version(tmp_path) is None
    assert versions.point_best(tmp_path / '2')
    versions.prune(tmp_path, keep_last=1)
    versions.remove(tmp_path / '2')
    assert names(tmp_path) == ['2', '4', 'best']
    assert versions.best_version(tmp_path) == 2
    assert versions.point_best(tmp_path / '4')
    versions.prune(tmp_path, keep_last=1)
    assert names(tmp_path) == ['4', 'best']
    assert not versions.point_best(tmp_path / '5')
    assert versions.best_version(tmp_path) == 4


@pytest.mark.parametrize('best', [None, 1])
def test_version_removed_while_it_becomes_the_best_leaves_the_link_unchanged(tmp_path, monkeypatch, best):
    for step in (1, 2):
        make_version(tmp_path, step)
    if best:
        versions.point_best(tmp_path / str(best))
    point = versions._make_link

    def pruned_first(directory, name, step):
        if step == 2:
            versions.remove(directory / '2')
        point(directory, name, step)

    monkeypatch.setattr(versions, '_make_link', pruned_first)
    assert not versions.point_best(tmp_path / '2')
    assert versions.best_version(tmp_path) == best
    assert names(tmp_path) == ['1', 'best'] if best else ['1']


def test_version_is_kept_until_both_markers_are_removed(tmp_path):
    for step in (1, 2):
        make_version(tmp_path, step)
    versions.keep(tmp_path / '1')
    versions.keep(tmp_path / '1', versions.IN_USE)
    versions.unkeep(tmp_path / '1', versions.IN_USE)
    versions.prune(tmp_path, keep_last=1)
    assert names(tmp_path) == ['1', '2']


def test_unpublished_version_is_removed_even_if_marked(tmp_path):
    with numbered.writing(tmp_path / '5') as written:
        versions.keep(written)
    assert names(tmp_path) == []


def test_only_leftovers_are_removed(tmp_path):
    ended = subprocess.Popen(['true'])
    ended.wait(30)
    machine = temporary.temporary(tmp_path / 'own').name.split('-')[-2]
    left = (f'.writing-6-{machine}-{ended.pid}', f'.removing-4-{machine}-{ended.pid}')
    for name in (5, *left, '.moved_aside-9-1', 'mine', '.mine'):
        make_version(tmp_path, name)
    (tmp_path / f'.writing-latest-{machine}-{ended.pid}').symlink_to('5')
    make_version(tmp_path, f'.writing-7-{machine}-{os.getpid()}')
    alive = make_version(tmp_path, f'.writing-8-{machine}-{os.getppid()}')
    temporary.remove_leftovers(tmp_path)
    assert names(tmp_path) == sorted([alive.name, '.mine', '.moved_aside-9-1', '5', 'mine'])
    temporary.remove_leftovers(tmp_path / 'missing')


def test_leftovers_of_another_machine_are_kept_for_a_day(tmp_path):
    ended = subprocess.Popen(['true'])
    ended.wait(30)  # its number does not identify a process of another machine
    make_version(tmp_path, 5)
    for machine in ('0123456789ab', 'ba9876543210'):
        for pid in (ended.pid, os.getpid()):
            path = make_version(tmp_path, f'.writing-6-{machine}-{pid}')
            (tmp_path / f'.writing-best-{machine}-{pid}').symlink_to('5')
            for old in (path, path / 'saved_model.pb', tmp_path / f'.writing-best-{machine}-{pid}'):
                os.utime(old, (0, 0), follow_symlinks=False)
            if machine.startswith('ba'):
                os.utime(path / 'metadata.json', (0, 0))
    temporary.remove_leftovers(tmp_path)
    assert names(tmp_path) == sorted(['5', *(f'.writing-6-0123456789ab-{pid}' for pid in (ended.pid, os.getpid()))])


def test_versions_of_lost_training_are_moved_aside_and_never_deleted(tmp_path):
    for step in (7, 8, 9, 10):
        make_version(tmp_path, step)
    versions.keep(tmp_path / '10')
    versions.keep(tmp_path / '8', versions.IN_USE)
    versions.point_best(tmp_path / '9')
    assert versions.drop_newer_than(tmp_path, 7) == [8, 9]
    make_version(tmp_path, 9)
    assert versions.drop_newer_than(tmp_path, 7) == [9]
    assert versions.versions(tmp_path) == [7, 10]
    assert (tmp_path / 'latest').resolve().name == '10'
    assert not (tmp_path / 'best').is_symlink()
    assert len(list(tmp_path.glob('.moved_aside-9-*/saved_model.pb'))) == 2
    assert versions.drop_newer_than(tmp_path / 'missing', 7) == []


def test_metadata_are_added_to_a_version_that_is_there(tmp_path):
    version = make_version(tmp_path, 5)
    (version / 'metadata.json').write_text('{"train_step": 5, "mean_return": 1.0}')
    assert added_metadata.add(version, evaluation={'mean_return': 2.0})
    assert read_json(version / 'metadata.json') == {
        'train_step': 5,
        'mean_return': 1.0,
        'evaluation': {'mean_return': 2.0},
    }
    assert names(version) == ['metadata.json', 'saved_model.pb']
    assert not added_metadata.add(tmp_path / '6', evaluation={})
    assert names(tmp_path) == ['5']
