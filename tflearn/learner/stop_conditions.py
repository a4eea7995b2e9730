"""StopConditions: when training ends; DataStopConditions: when it ends for data that are given beforehand."""

import dataclasses

from tflearn.errors import UserValueError


@dataclasses.dataclass(frozen=True)
class StopConditions:
    """When training ends: as soon as one of these is reached; None is no condition.

    Attributes:
      num_train_steps: the run's train steps.
      max_env_steps: the run's environment steps, over all collectors.
      max_secs: seconds of training, over all sessions of the run. Compiling, in the learner's first call, does not
        count; waits for data do.
    """

    num_train_steps: int
    max_env_steps: int | None = None
    max_secs: float | None = None

    def __post_init__(self) -> None:
        for name, value in dataclasses.asdict(self).items():
            if value is not None and value <= 0:
                raise UserValueError(f'got {name}={value}; need a number above 0')

    def reached(self, train_step: int, env_steps: int, secs: float) -> str | None:
        """Returns the condition that is reached, for the log; None if there is none."""
        if train_step >= self.num_train_steps:
            return f'num_train_steps {self.num_train_steps} reached'
        if self.max_env_steps is not None and env_steps >= self.max_env_steps:
            return f'max_env_steps {self.max_env_steps} reached'
        if self.max_secs is not None and secs >= self.max_secs:
            return f'max_secs {self.max_secs:.0f} reached'
        return None


@dataclasses.dataclass(frozen=True)
class DataStopConditions:
    """When training on a data set ends, besides `StopConditions`; None is no condition.

    Attributes:
      max_epochs: passes over the data; of several weighted data sets over the one that is passed first.
      patience: validations in a row whose loss is not less than the least one so far.
      min_improvement: by how much a loss has to be less than that to count as less.
    """

    max_epochs: int | None = None
    patience: int | None = None
    min_improvement: float = 0.0

    def __post_init__(self) -> None:
        for name in ('max_epochs', 'patience'):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UserValueError(f'got DataStopConditions.{name}={value}; need at least 1, or None')
        if not self.min_improvement >= 0:
            raise UserValueError(f'got DataStopConditions.min_improvement={self.min_improvement}; need 0 or more')
