"""Digests find every change of a model's files, and signatures every record that somebody else made."""

import errno
import json

import pytest

from tflearn.files import digests

KEY = '0123456789abcdef-a-key'


def check(model):
    with digests.checked(model) as copy:
        return {file.relative_to(copy).as_posix(): file.read_text() for file in copy.rglob('*') if file.is_file()}


@pytest.fixture
def model(tmp_path):
    path = tmp_path / '100'
    (path / 'variables').mkdir(parents=True)
    for name in ('saved_model.pb', 'variables/variables.index', 'metadata.json'):
        (path / name).write_text(name)
    digests.record(path, ('metadata.json',))
    return path


def test_accepts_what_was_recorded_and_what_may_change(model):
    check(model)
    (model / 'metadata.json').write_text('changed by an evaluation')
    (model / 'KEPT').touch()
    check(model)
    digests.record(model, ('metadata.json',))
    check(model)


def test_names_the_file_that_differs_is_missing_or_was_added(model):
    for name in ('saved_model.pb', 'variables/variables.index'):
        before = (model / name).read_text()
        (model / name).write_text(before.upper())
        with pytest.raises(ValueError, match=f'got another file {model / name} than was exported'):
            check(model)
        (model / name).unlink()
        with pytest.raises(ValueError, match=f'got {model} without {name}'):
            check(model)
        (model / name).write_text(before)
    for name in ('saved_model.cpb', 'variables/more'):
        (model / name).touch()
        with pytest.raises(ValueError, match=f'got the file {model / name}, which was not exported'):
            check(model)
        (model / name).unlink()
    check(model)


def test_an_older_model_is_accepted_unless_a_key_is_set(model, monkeypatch, caplog):
    caplog.set_level('INFO')
    check(model.with_name('200'))  # pruned meanwhile, which is not a model of another program
    assert not caplog.text
    (model / digests.RECORD).unlink()
    check(model)
    monkeypatch.setenv(digests.KEY_VARIABLE, 'env:A_KEY')
    monkeypatch.setenv('A_KEY', KEY)
    with pytest.raises(ValueError, match=f'got {model} without {digests.RECORD}; need a signed one'):
        check(model)


def test_signatures(model, monkeypatch, tmp_path):
    (tmp_path / 'key').write_text(KEY)
    monkeypatch.setenv(digests.KEY_VARIABLE, str(tmp_path / 'key'))
    with pytest.raises(ValueError, match='without a signature by the key'):
        check(model)
    digests.record(model, ('metadata.json',))
    check(model)
    (tmp_path / 'key').write_text(KEY.upper())
    with pytest.raises(ValueError, match='without a signature by the key'):
        check(model)
    monkeypatch.delenv(digests.KEY_VARIABLE)
    check(model)


@pytest.mark.parametrize(
    'text', ['{', '[]', '{}', '{"sha256": []}', 'null', '[' * 5000, '{"sha256": {}, "hmac_sha256": "\\ud800"}', None]
)
def test_a_damaged_record_is_named(model, text):
    if text is None:
        (model / digests.RECORD).unlink()
        (model / digests.RECORD).mkdir()
    else:
        (model / digests.RECORD).write_text(text)
    with pytest.raises(ValueError, match=f'got a damaged {model / digests.RECORD}'):
        check(model)


@pytest.mark.parametrize('kind', ['folder', 'loop'])
def test_what_cannot_be_read_is_named(model, kind):
    file = model / 'saved_model.pb'
    file.unlink()
    if kind == 'folder':
        file.mkdir()
    else:
        file.symlink_to(file.name)
    with pytest.raises(ValueError, match=f'got the file .* of {model}, which cannot be read .*; remove the version'):
        check(model)


def test_what_is_checked_is_what_is_loaded(model):
    """A file that is exchanged after the check, or between two reads of it, is not in the copy."""
    named = check(model)
    with digests.checked(model) as copy:
        (model / 'saved_model.pb').write_text('exchanged')
        (model / 'variables/more').touch()
        assert {name: (copy / name).read_text() for name in named} == named
        assert copy.stat().st_uid == copy.parent.stat().st_uid and copy.parent.stat().st_mode & 0o077 == 0
    assert not copy.exists()


def test_a_record_names_files_of_its_model_only(model):
    (model.parent / 'outside').write_text('saved_model.pb')
    record = json.loads((model / digests.RECORD).read_text())
    for name in ('../outside', str(model.parent / 'outside'), 'variables/../../outside', 'a\0b'):
        changed = {'sha256': {**record['sha256'], name: record['sha256']['saved_model.pb']}}
        (model / digests.RECORD).write_text(json.dumps(changed))
        with pytest.raises(ValueError, match='got a damaged .*digests.json'):
            check(model)


def test_a_full_disk_is_no_damage(model, monkeypatch):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, 'No space left on device')

    monkeypatch.setattr('pathlib.Path.mkdir', lambda *_, **__: None)
    monkeypatch.setattr('pathlib.Path.open', full)
    with pytest.raises(OSError, match='got no room for a private copy of .*set TMPDIR'):
        digests._copied(model, 'saved_model.pb', model.parent)
