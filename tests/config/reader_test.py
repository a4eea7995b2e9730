"""Reading gin files: includes, places, syntax errors."""

import pytest

from tflearn.config import files, reader


def test_reads_includes_in_place(tmp_path):
    (tmp_path / 'parts').mkdir()
    (tmp_path / 'parts' / 'a.gin').write_text('x = 1\n')
    (tmp_path / 'run.gin').write_text("y = 2\ninclude 'parts/a.gin'\nx = 3\n")
    statements = reader.read(tmp_path / 'run.gin', ['z = 4'])
    assert [(binding.written, binding.value, binding.place) for binding in statements.bindings] == [
        ('y', 2, f'{tmp_path}/run.gin:1'),
        ('x', 1, f'{tmp_path}/parts/a.gin:1'),
        ('x', 3, f'{tmp_path}/run.gin:3'),
        ('z', 4, '--gin_bindings'),
    ]


def test_packaged_files_are_included_from_anywhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / 'own.gin').write_text("include 'environments/cartpole.gin'\n")
    (binding, _) = reader.read(tmp_path / 'own.gin').bindings
    assert binding.place.startswith(str(files.folder() / 'environments' / 'cartpole.gin'))


NO_GIN = {
    'train.num_train_steps': 'expected',
    'train.num_train_steps = abc': "Failed to parse token 'abc'",
    'train.num_train_steps =': 'Unable to parse value',
    'a.b = (1,': 'EOF',
    '(': 'Unexpected token',
    'a.b:': 'Expected indentation',
    'a..b = 1': 'Malformatted',
    'a.b = 1 2': 'Expected newline',
    'a.b = {[]: 1}': 'unhashable type',
    'a.b = ' + '[' * 3000: '',
    'a.b = ' + '[' * 3000 + ']' * 3000: '',
}


@pytest.mark.parametrize('text', NO_GIN)
def test_rejects_what_is_not_gin(tmp_path, text):
    (tmp_path / 'run.gin').write_text(f'# A comment.\nx = 1\n{text}\n')
    with pytest.raises(ValueError, match='need one like module.function.parameter = value') as raised:
        reader.read(tmp_path / 'run.gin')
    assert str(raised.value).startswith(f'got {text!r} in {tmp_path}/run.gin:')
    assert NO_GIN[text] in str(raised.value)
    assert '\n' not in str(raised.value)
    with pytest.raises(ValueError, match='in --gin_bindings, which is no gin statement'):
        reader.read(None, [text])


@pytest.mark.parametrize('name', ['a' * 300, 'loop.gin', 'a/b', '\\x00'])
def test_rejects_includes_of_what_is_no_file(tmp_path, name):
    (tmp_path / 'loop.gin').symlink_to('loop.gin')
    (tmp_path / 'run.gin').write_text(f"include '{name}'\n")
    with pytest.raises(ValueError, match='(got gin_file=.*included in|which cannot be read)'):
        reader.read(tmp_path / 'run.gin')
    with pytest.raises(ValueError, match='which cannot be read'):
        reader.read(tmp_path / 'loop.gin')


def test_rejects_unreadable_files(tmp_path):
    run = tmp_path / 'run.gin'
    run.write_text("include 'missing.gin'\n")
    with pytest.raises(ValueError, match=rf"got gin_file='missing.gin'; need .* \(it is included in {run}:1\)"):
        reader.read(run)
    run.write_text("include 'run.gin'\n")
    with pytest.raises(ValueError, match='which includes itself'):
        reader.read(run)
    run.write_bytes(b'\xff\xfe')
    with pytest.raises(ValueError, match='which cannot be read'):
        reader.read(run)
    with pytest.raises(ValueError, match='which cannot be read'):
        reader.read(tmp_path)


def test_refuses_what_is_nested_too_deeply(tmp_path):
    (binding,) = reader.read(None, ['a.b = ' + '[' * 50 + ']' * 50]).bindings
    assert binding.value
    for value in ('[' * 100 + ']' * 100, '({1: ' * 30 + '0' + '},)' * 30):
        with pytest.raises(ValueError, match='got s/a.b in --gin_bindings, of many brackets; need at most 50 levels'):
            reader.read(None, [f's/a.b = {value}'])
    (tmp_path / 'run.gin').write_text(f'import a{".a" * 60}\n')
    with pytest.raises(ValueError, match=r'got the import of a\.a.*\.\.\. in .*run.gin:1; need a module that exists'):
        reader.read(tmp_path / 'run.gin')
