"""StepCounter: the train step as its variable counts it, and the calls of `agent.train` until it reaches a value."""

import tensorflow as tf


class StepCounter:
    """Counts by the variable, since a call of `agent.train` need not add 1.

    TF-Agents' PPOAgent adds 1 for each of its epochs, and an optimizer adds 1 more where its `iterations` are the
    agent's train step.
    """

    def __init__(self, train_step: tf.Variable, increment: int | None = 1):
        """Begins where the variable is.

        Args:
          train_step: integer scalar.
          increment: what a call adds to it, as far as is known before the first one; None if it is not known.
        """
        self._train_step, self._increment = train_step, increment

    @property
    def step(self) -> int:
        """The train step now."""
        return int(self._train_step.numpy())

    def calls_before(self, step: int) -> int:
        """Returns how many calls there are before the one that reaches `step`; 0 if the next call does.

        As long as it is not known what a call adds, the answer is at most 1.
        """
        missing = step - self.step
        if self._increment is None:
            return int(missing > 1)
        return max(0, -(-missing // self._increment) - 1)

    def observe(self, before: int, num_calls: int) -> None:
        """Takes note of what a call adds.

        Args:
          before: the train step before the last calls.
          num_calls: of them.
        """
        gained = self.step - before
        if num_calls and gained > 0:
            self._increment = max(1, gained // num_calls)
