"""What extensions bring is loaded by name; one that is not there is named in one line, with what installs it."""

import sys

import pytest

from tflearn.core import extensions
from tflearn.core.errors import UserImportError


@pytest.mark.parametrize('name', extensions._HOMES)
def test_each_name_stands_for_a_module(name):
    assert extensions.load(name).__name__ == extensions._HOMES[name][1]


def test_a_missing_extension_is_named_with_its_extra(monkeypatch):
    monkeypatch.setitem(extensions._HOMES, 'slurm', ('clusters', 'tflearn.nowhere.slurm'))
    with pytest.raises(UserImportError, match=r"got no extension clusters, which brings slurm; .*\[clusters\]'$"):
        extensions.load('slurm')
    assert extensions.find('slurm') is None


def test_a_missing_library_of_an_extension_has_its_own_message(monkeypatch):
    module = extensions._HOMES['kubernetes'][1]
    monkeypatch.delitem(sys.modules, module, raising=False)
    monkeypatch.setitem(sys.modules, 'yaml', None)
    with pytest.raises(ImportError, match='yaml'):
        extensions.load('kubernetes')
