"""StepCounter: the value of the train step, and the number of calls of `agent.train` until it reaches another one."""

import tensorflow as tf


class StepCounter:
    """Reads the variable, since a call of `agent.train` need not add 1.

    TF-Agents' PPOAgent adds 1 for each of its epochs, and an optimizer adds 1 more where its `iterations` are the
    agent's train step.
    """

    def __init__(self, train_step: tf.Variable, increment: int | None = 1):
        """Starts at the variable's value.

        Args:
          increment: what a call is expected to add to it; None if that is not known before the first call.
        """
        self._train_step, self._increment = train_step, increment

    @property
    def step(self) -> int:
        """The train step now."""
        return int(self._train_step.numpy())

    def calls_before(self, step: int) -> int:
        """Returns how many calls there are before the one that reaches `step`; 0 if the next call does.

        As long as it is not known what a call adds, the result is at most 1.
        """
        missing = step - self.step
        if self._increment is None:
            return int(missing > 1)
        return max(0, -(-missing // self._increment) - 1)

    def observe(self, before: int, num_calls: int) -> None:
        """Records what `num_calls` calls have added since the step `before`."""
        gained = self.step - before
        if num_calls and gained > 0:
            self._increment = max(1, gained // num_calls)
