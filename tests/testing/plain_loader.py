"""A process that loads exported policies with TensorFlow alone, as a user's server does, without tflearn."""

import contextlib
import os
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping

import numpy as np

_PROGRAM = """
import sys
import numpy as np
import tensorflow as tf
for line in sys.stdin:
    command, path = line.rstrip().split(' ', 1)
    if command == 'load':
        model, state = tf.saved_model.load(path), None
    else:
        signature = model.signatures['serving_default']
        specs = signature.structured_input_signature[1]
        given = {name: tf.cast(value, specs[name].dtype) for name, value in np.load(path + '.in.npz').items()}
        if state is None and 'get_initial_state' in model.signatures:
            state = model.signatures['get_initial_state'](tf.constant(1))
        found = signature(**given, **{name: value for name, value in (state or {}).items() if name in specs})
        state = {name: found.get(name, value) for name, value in state.items()} if state else state
        np.savez(path + '.out.npz', **{name: value for name, value in found.items()})
    assert not {name.partition('.')[0] for name in sys.modules} & {'tflearn', 'tf_agents'}
    print('done', flush=True)
"""


class PlainLoader:
    """The process, and what it has loaded."""

    def __init__(self, folder: pathlib.Path):
        """Starts it, in a folder of its own."""
        self._files, self._log = folder / 'plain', folder / 'plain.log'
        with self._log.open('w') as log:
            self._process = subprocess.Popen(
                [sys.executable, '-c', _PROGRAM],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd=folder,
                env={**os.environ, 'TF_CPP_MIN_LOG_LEVEL': '2', 'CUDA_VISIBLE_DEVICES': '-1'},
                text=True,
            )

    def load(self, path: os.PathLike[str]) -> None:
        """Loads a policy, which begins with its initial state."""
        self._ask('load', path)

    def act(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Returns what the signature returns for inputs [1, ...] by name."""
        np.savez(f'{self._files}.in.npz', **inputs)
        self._ask('act', self._files)
        with np.load(f'{self._files}.out.npz') as found:
            return dict(found)

    def close(self) -> None:
        """Ends the process."""
        self._process.kill()
        self._process.communicate()

    def _ask(self, command: str, path: os.PathLike[str]) -> None:
        self._process.stdin.write(f'{command} {path}\n')
        self._process.stdin.flush()
        assert self._process.stdout.readline() == 'done\n', self._log.read_text()[-2000:]


@contextlib.contextmanager
def started() -> Iterator[PlainLoader]:
    """Starts one in a temporary folder, and ends it."""
    with tempfile.TemporaryDirectory() as folder, contextlib.closing(PlainLoader(pathlib.Path(folder))) as loader:
        yield loader
