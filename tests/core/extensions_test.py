"""What extensions bring is loaded by name; one that is not there is named in one line, with what installs it."""

import sys

import pytest

import tflearn
from tests.testing import without_extensions
from tflearn.core import extensions
from tflearn.core.errors import UserImportError


@pytest.mark.parametrize('name', extensions._MODULES)
def test_each_name_stands_for_a_module(name):
    assert extensions.load(name).__name__ == f'tflearn.extensions.{extensions._MODULES[name]}'


def test_a_missing_extension_is_named_with_its_extra():
    with without_extensions.hidden():
        with pytest.raises(UserImportError, match=r'^got no extension clusters, .*clusters\.slurm; .*\[clusters\]'):
            extensions.load('slurm')
        assert extensions.find('slurm') is None
        with pytest.raises(UserImportError, match='^got no extension experiments, which brings'):
            tflearn.compare  # noqa: B018
    assert extensions.find('slurm') is extensions.load('slurm')


def test_a_missing_library_of_an_extension_has_its_own_message(monkeypatch):
    monkeypatch.delitem(sys.modules, 'tflearn.extensions.clusters.kubernetes', raising=False)
    monkeypatch.setitem(sys.modules, 'yaml', None)
    with pytest.raises(ImportError, match=r'^got no yaml, which --backend=kubernetes needs; .*\(the extra clusters\)'):
        extensions.load('kubernetes')
