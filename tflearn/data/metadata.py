"""What a data set's description says of its origin: the environment, the versions, and each recording of episodes."""

import functools
import pathlib
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

import tflearn
from tflearn.core.types import EnvironmentFactory
from tflearn.data import columns
from tflearn.data.writer import EpisodeWriter

RECORDINGS = 'recordings'
_OPERATIVE = 'gin/operative'  # the text of a program's hooks that has what configured functions have used


def environment(make_environment: EnvironmentFactory, texts: Mapping[str, str]) -> dict[str, Any]:
    """Returns the name of the function that made the environment, and its settings.

    Args:
      make_environment: the function, which has been called.
      texts: what a program describes, see `Hooks.describe`.
    """
    function: Any = make_environment
    settings: list[str] = []
    while isinstance(function, functools.partial):
        settings = [*map(repr, function.args), *(f'{k}={v!r}' for k, v in function.keywords.items()), *settings]
        function = function.func
    name = getattr(function, '__qualname__', type(function).__qualname__)
    name = f'{getattr(function, "__module__", type(function).__module__)}.{name}'
    # Gin names a function by the last part of its module's path.
    prefix = '.'.join(name.split('.')[-2:]) + '.'
    for line in texts.get(_OPERATIVE, '').splitlines():
        if line.strip().startswith(prefix):
            settings.append(line.strip().removeprefix(prefix))
    return {'environment': f'{name}({", ".join(settings)})'}


def versions() -> dict[str, str]:
    """Returns the versions of the libraries that write the data."""
    return {'tflearn': tflearn.__version__, 'tensorflow': tf.__version__}


def add_recording(directory: pathlib.Path, facts: Mapping[str, Any], writer: EpisodeWriter) -> None:
    """Adds what a call has written to the description: `facts`, its episodes, steps and returns; nothing if none."""
    returns = writer.returns
    if not returns.count:
        return
    found = columns.read_metadata(directory)
    summary = {'mean': returns.total / returns.count, 'least': returns.least, 'greatest': returns.greatest}
    recording = {**facts, 'episodes': returns.count, 'returns': summary}
    columns.write_metadata(directory, {**found, RECORDINGS: [*found.get(RECORDINGS, []), recording]})
