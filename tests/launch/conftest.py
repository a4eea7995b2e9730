"""Fixtures of the launch tests."""

import io
import pathlib

import pytest

import tflearn
from tests.launch.fake_run import topology
from tflearn.files.run_dir import RunDir
from tflearn.launch import local


@pytest.fixture
def run_dir(tmp_path: pathlib.Path) -> RunDir:
    return RunDir(tmp_path / 'run')


@pytest.fixture(autouse=True)
def python_path(monkeypatch):
    """The processes of the tests import the same tflearn as the tests themselves."""
    monkeypatch.setenv('PYTHONPATH', str(pathlib.Path(tflearn.__file__).parents[1]))


@pytest.fixture
def run(run_dir, capsys):
    """Runs fake jobs in this process. Returns the exit code, what was shown and what stderr got."""

    def run(**jobs):
        out = io.StringIO()
        its_topology = topology(run_dir, **jobs)
        with local.ready_warm_parent(its_topology) as warm_parent:
            code = local.run(its_topology, run_dir, out=out, warm_parent=warm_parent)
        return code, out.getvalue(), capsys.readouterr().err

    return run
