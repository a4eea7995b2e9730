"""Finding gin files by path and by name, in a checkout and in an installed package."""

import importlib.util
import pathlib
import shutil

import pytest

from tflearn.config import files


@pytest.fixture(params=['gin', 'tflearn_gin'], ids=['checkout', 'installed'])
def module(request, tmp_path, monkeypatch):
    """The module among four packaged files, while the working directory is another one."""
    package, folder = tmp_path / 'tflearn' / 'config', tmp_path / request.param
    package.mkdir(parents=True)
    copy = shutil.copy(str(files.__file__), package)
    for name in ('dqn_cartpole', 'dqn_acrobot', 'algorithms/dqn', 'environments/cartpole'):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / f'{name}.gin').touch()
    (tmp_path / 'elsewhere').mkdir()
    monkeypatch.chdir(tmp_path / 'elsewhere')
    spec = importlib.util.spec_from_file_location('copied_gin_files', copy)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_lists_packaged_files(module):
    assert module.names() == ['algorithms/dqn', 'dqn_acrobot', 'dqn_cartpole', 'environments/cartpole']


@pytest.mark.parametrize('name', ['dqn_cartpole', 'dqn_cartpole.gin', 'algorithms/dqn', 'algorithms/dqn.gin'])
def test_packaged_files_are_found_by_name(module, name):
    expected = module.folder() / f'{name.removesuffix(".gin")}.gin'
    assert module.resolve(name) == expected
    assert expected.is_absolute()


def test_a_path_comes_first(module):
    for name in ('mine.gin', 'dqn_cartpole'):
        pathlib.Path(name).touch()
        assert module.resolve(name) == pathlib.Path.cwd() / name
        assert module.resolve(f'./{name}') == pathlib.Path.cwd() / name
        assert module.resolve(str(pathlib.Path.cwd() / name)) == pathlib.Path.cwd() / name


@pytest.mark.parametrize(
    ('own', 'name'),
    [('dqn_acrobot.gin', 'dqn_acrobot.gin'), ('dqn_acrobot.gin', 'dqn_acrobot'), ('mine.gin', 'mine.gin')],
)
def test_warns_of_two_files_with_one_name(module, caplog, own, name):
    path, packaged = pathlib.Path.cwd() / own, module.folder() / 'dqn_acrobot.gin'
    path.touch()
    taken = module.resolve(name)
    module.resolve(name)
    if own == 'mine.gin':
        assert not caplog.messages
    else:
        taken, other = (path, packaged) if name == own else (packaged, path)
        assert caplog.messages == [f'the gin file {name} is {taken}; {other} has the same name and is not used'], 'once'
    assert module.resolve(name) == taken


def test_a_path_may_begin_at_home(module, monkeypatch):
    monkeypatch.setenv('HOME', str(pathlib.Path.cwd()))
    pathlib.Path('mine.gin').touch()
    assert module.resolve('~/mine.gin') == pathlib.Path.cwd() / 'mine.gin'


def test_ignores_folders(module):
    pathlib.Path('dqn_acrobot').mkdir()
    assert module.resolve('dqn_acrobot') == module.folder() / 'dqn_acrobot.gin'


@pytest.mark.parametrize(
    ('name', 'advice'),
    [
        ('dqn_cartpol', 'did you mean dqn_cartpole or '),
        ('configs/dqn_acrobt.gin', 'did you mean dqn_acrobot or '),
        ('catpole', 'did you mean environments/cartpole or '),
        ('something_else_altogether', 'need the path of a file'),
        ('', 'need the path of a file'),
    ],
)
def test_missing_file_suggests_similar_names(module, name, advice):
    with pytest.raises(
        ValueError, match='need the path of a file, or the name of one of the 4 packaged ones'
    ) as raised:
        module.resolve(name)
    assert str(raised.value).startswith(f'got gin_file={name!r}; {advice}')
    assert str(raised.value).endswith(f'such as dqn_acrobot, dqn_cartpole; all of them are in {module.folder()}')
