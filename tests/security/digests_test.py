"""Digests find every change of a model's files, and signatures every record that somebody else made."""

import pytest

from tflearn.security import digests

KEY = '0123456789abcdef-a-key'


@pytest.fixture
def model(tmp_path):
    path = tmp_path / '100'
    (path / 'variables').mkdir(parents=True)
    for name in ('saved_model.pb', 'variables/variables.index', 'metadata.json'):
        (path / name).write_text(name)
    digests.record(path, ('metadata.json',))
    return path


def test_accepts_what_was_recorded_and_what_may_change(model):
    digests.check(model)
    (model / 'metadata.json').write_text('changed by an evaluation')
    (model / 'KEPT').touch()
    digests.check(model)
    digests.record(model, ('metadata.json',))
    digests.check(model)


def test_names_the_file_that_differs_is_missing_or_was_added(model):
    for name in ('saved_model.pb', 'variables/variables.index'):
        before = (model / name).read_text()
        (model / name).write_text(before.upper())
        with pytest.raises(ValueError, match=f'got another file {model / name} than was exported'):
            digests.check(model)
        (model / name).unlink()
        with pytest.raises(ValueError, match=f'got {model} without {name}'):
            digests.check(model)
        (model / name).write_text(before)
    for name in ('saved_model.cpb', 'variables/more'):
        (model / name).touch()
        with pytest.raises(ValueError, match=f'got the file {model / name}, which was not exported'):
            digests.check(model)
        (model / name).unlink()
    digests.check(model)


def test_an_older_model_is_accepted_unless_a_key_is_set(model, monkeypatch):
    (model / digests.RECORD).unlink()
    digests.check(model)
    monkeypatch.setenv(digests.KEY_VARIABLE, 'env:A_KEY')
    monkeypatch.setenv('A_KEY', KEY)
    with pytest.raises(ValueError, match=f'got {model} without {digests.RECORD}; need a signed one'):
        digests.check(model)


def test_signatures(model, monkeypatch, tmp_path):
    (tmp_path / 'key').write_text(KEY)
    monkeypatch.setenv(digests.KEY_VARIABLE, str(tmp_path / 'key'))
    with pytest.raises(ValueError, match='without a signature by the key'):
        digests.check(model)
    digests.record(model, ('metadata.json',))
    digests.check(model)
    (tmp_path / 'key').write_text(KEY.upper())
    with pytest.raises(ValueError, match='without a signature by the key'):
        digests.check(model)
    monkeypatch.delenv(digests.KEY_VARIABLE)
    digests.check(model)


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
        digests.check(model)


@pytest.mark.parametrize('kind', ['folder', 'loop', 'null byte'])
def test_what_cannot_be_read_is_named(model, kind):
    file = model / 'saved_model.pb'
    file.unlink()
    if kind == 'folder':
        file.mkdir()
    elif kind == 'loop':
        file.symlink_to(file.name)
    else:
        (model / digests.RECORD).write_text('{"sha256": {"a\\u0000b": "0"}}')
    with pytest.raises(ValueError, match=f'got the file .* of {model}, which cannot be read .*; remove the version'):
        digests.check(model)
