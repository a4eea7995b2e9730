"""The random state of the process, as part of a checkpoint."""

import json
import random
from typing import Any

import numpy as np
import tensorflow as tf


class RandomState(tf.Module):
    """Saves and restores Python's `random`, numpy's global state, and TensorFlow's global generator.

    A resumed run draws from these the numbers that it would have drawn. Other randomness is not restored: ops with a
    state in their kernel (`tf.random.uniform`, `tf.random.shuffle`, dropout, and the ops that most distributions sample
    with), which start again from the global seed; shuffles of `tf.data`; Reverb's selectors; environments; and other
    generators (`np.random.default_rng`), unless they are tracked too.
    """

    def __init__(self) -> None:
        """Tracks the present `tf.random.get_global_generator()`: set another one before, not after."""
        super().__init__(name='random_state')
        self.host = _HostState()
        self.generator = tf.random.get_global_generator()


class _HostState(tf.train.experimental.PythonState):
    """Python's and numpy's global states, as JSON."""

    def serialize(self) -> str:
        version, internal, gauss_next = random.getstate()
        numpy_state: Any = np.random.get_state()
        name, key, *rest = numpy_state
        return json.dumps({'python': [version, internal, gauss_next], 'numpy': [name, key.tolist(), *rest]})

    def deserialize(self, string_value: str) -> None:
        saved = json.loads(string_value)
        version, internal, gauss_next = saved['python']
        random.setstate((version, tuple(internal), gauss_next))
        np.random.set_state(tuple(saved['numpy']))
