"""StopConditions: when training is over."""

import dataclasses

from tflearn.errors import UserValueError


@dataclasses.dataclass(frozen=True)
class StopConditions:
    """When training is over; None is no limit.

    Attributes:
      num_train_steps: train steps of the run.
      max_env_steps: environment steps of the run, over all collectors.
      max_secs: seconds of training, over all sessions of the run. Time for compiling, in the first call of the learner,
        does not count; waits for data do.
    """

    num_train_steps: int
    max_env_steps: int | None = None
    max_secs: float | None = None

    def __post_init__(self) -> None:
        for name, value in dataclasses.asdict(self).items():
            if value is not None and value <= 0:
                raise UserValueError(f'got {name}={value}; need a number above 0')

    def reached(self, train_step: int, env_steps: int, secs: float) -> str | None:
        """Names the limit that is reached; None while there is none."""
        if train_step >= self.num_train_steps:
            return f'num_train_steps {self.num_train_steps} reached'
        if self.max_env_steps is not None and env_steps >= self.max_env_steps:
            return f'max_env_steps {self.max_env_steps} reached'
        if self.max_secs is not None and secs >= self.max_secs:
            return f'max_secs {self.max_secs:.0f} reached'
        return None
