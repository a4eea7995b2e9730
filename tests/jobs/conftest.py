"""The fixtures of a small run, of a replay server and of a metadata server; and a check of all runs here."""

import os

import pytest
from tensorflow.python.autograph.pyct import transpiler

import tflearn
from tests.testing.jobs import small_run  # noqa: F401
from tests.testing.metadata import metadata  # noqa: F401
from tests.testing.replay import serve  # noqa: F401

PACKAGE = os.path.dirname(tflearn.__file__)
# Keras converts layers of a network of one's own as it is made.
CONVERTED_LATER = ('networks/encoder.py', 'core/layout.py')


@pytest.fixture(autouse=True)
def _no_source_is_read_again(monkeypatch):
    """AutoGraph converts no function of ours: it reads the source in its file, which may have been changed by then."""
    convert, converted = transpiler.PyToPy.transform_function, []

    def transform_function(self, function, context):
        file = function.__code__.co_filename
        if file.startswith(PACKAGE) and not file.endswith(CONVERTED_LATER):
            converted.append(f'{file}:{function.__code__.co_firstlineno}')
        return convert(self, function, context)

    monkeypatch.setattr(transpiler.PyToPy, 'transform_function', transform_function)
    yield
    assert not converted, f'got {converted}; need autograph=False, or do_not_convert'
