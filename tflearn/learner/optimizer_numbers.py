"""OptimizerNumbers: what the program gave its Keras optimizers, so that a change counts after a restore.

Keras keeps a learning rate in a variable, which a checkpoint restores whatever the program says.
"""

import json
from collections.abc import Iterator
from typing import Any

import tensorflow as tf
from absl import logging

_SCHEDULE = tf.keras.optimizers.schedules.LearningRateSchedule
_NAMES = ('learning_rate', 'momentum', 'rho', 'beta_1', 'beta_2', 'decay')  # legacy ones have all in variables
_KINDS = (tf.keras.optimizers.Optimizer, tf.keras.optimizers.legacy.Optimizer)


class OptimizerNumbers(tf.train.experimental.PythonState):
    """The program's learning rates, and what else a Keras optimizer has as a number in a variable; in the checkpoint.

    A number that the training itself changed, in a trigger for example, is restored as it was.
    """

    def __init__(self, agent: Any):
        """Reads the numbers before a checkpoint is restored."""
        self._variables = dict(_variables(agent))
        self._now = {name: float(variable.numpy()) for name, variable in self._variables.items()}
        self._saved: dict[str, float] | None = None

    def serialize(self) -> str:
        """Returns the program's numbers as JSON."""
        return json.dumps(self._now)

    def deserialize(self, string_value: str) -> None:
        """Takes those of the program that wrote the checkpoint."""
        self._saved = json.loads(string_value)

    def keep(self) -> None:
        """Assigns the program's numbers that differ from those of the program before, after a restore."""
        for name, variable in self._variables.items():
            restored, now = float(variable.numpy()), self._now[name]
            before = restored if self._saved is None else self._saved.get(name, restored)
            if now not in (before, restored):
                variable.assign(now)
                logging.info('%s is %.6g, as the program says; the checkpoint has %.6g', name, now, restored)


def _variables(agent: Any) -> Iterator[tuple[str, tf.Variable]]:
    optimizers = [part for part in tf.train.TrackableView(agent).descendants() if isinstance(part, _KINDS)]
    for number, optimizer in enumerate(optimizers):
        for name in _NAMES:
            variable = getattr(optimizer, name, None)
            is_schedule = isinstance(getattr(optimizer, f'_{name}', None), _SCHEDULE)  # computed at each step
            if isinstance(variable, tf.Variable) and not is_schedule:
                yield f'{name} of optimizer {number} ({type(optimizer).__name__})', variable
