"""What an evaluation found of a policy and of the baselines: a table, and the same for a JSON file."""

import dataclasses
from typing import Any

from tflearn.extensions.product import estimators

OF_FEATURES = ('importance sampling', 'doubly robust')  # the estimators of a feature's importance


@dataclasses.dataclass(frozen=True)
class Estimates:
    """What the data say of one policy.

    Attributes:
      estimates: by the estimator's name; those that are not possible are missing, NaN is one that
        is not defined.
      interval: of the value, 95%, by empirical likelihood, whatever the estimator; None if it is
        not defined.
      no_interval: why it is not defined; '' if it is.
      effective_sample_size: how many episodes of the policy the data are worth; None without
        ratios.
      note: how the policy was chosen; '' if it was given.
    """

    estimates: dict[str, float]
    interval: tuple[float, float] | None
    no_interval: str
    effective_sample_size: float | None
    note: str = ''

    def line(self, name: str) -> str:
        """Returns the interval, and what it rests on."""
        found = f'interval of {name} not defined'
        if self.interval:
            found = f'95% interval of {name}: [{self.interval[0]:.4g}, {self.interval[1]:.4g}]'
        if self.effective_sample_size is not None:
            found += f', effective sample size {self.effective_sample_size:.1f}'
        return f'{found} ({self.note})' if self.note else found


@dataclasses.dataclass(frozen=True)
class Importance:
    """What the policy's value loses if one feature is shuffled, see `feature_importance`.

    Attributes:
      estimates: by the estimator's name: the policy's less that without the feature.
      interval: 95%, by empirical likelihood, whatever the estimator; None if it is not defined.
    """

    estimates: dict[str, float]
    interval: tuple[float, float] | None

    def line(self, name: str) -> str:
        """Returns a row of the table."""
        found = (self.estimates.get(each) for each in OF_FEATURES)
        cells = ''.join(f'{"" if value is None else format(value, ".4g"):>20}' for value in found)
        between = 'not defined' if self.interval is None else f'[{self.interval[0]:.4g}, {self.interval[1]:.4g}]'
        return f'{name:32}{cells}  {between}'


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """Estimates of a policy's value.

    Attributes:
      estimates: see `Estimates`; with the behaviour policy's mean return.
      intervals: of the value of 'the policy' and of 'the behaviour policy', see `Estimates`;
        missing if not defined.
      no_interval: why one is missing; '' if none is.
      num_rewarded: the number of episodes whose rewards are not all 0.
      effective_sample_size: how many episodes of the evaluated policy the data are worth; None
        without ratios.
      num_episodes: the number of episodes.
      num_steps: the number of steps.
      horizon: the number of steps of an episode that count.
      gamma: the discount.
      behaviour: 'recorded', 'estimated' or 'unknown'.
      warnings: what is missing, and what is not to be trusted.
      baselines: what the data say of policies that need no training, by their names; {} unless the
        action is a single Discrete one.
      features: what each feature is worth to the policy, by its name, the most first; {} if it was
        not asked for.
      policy: the path of the policy's version.
    """

    estimates: dict[str, float]
    intervals: dict[str, tuple[float, float]]
    no_interval: str
    num_rewarded: int
    effective_sample_size: float | None
    num_episodes: int
    num_steps: int
    horizon: int
    gamma: float
    behaviour: str
    warnings: tuple[str, ...]
    baselines: dict[str, Estimates] = dataclasses.field(default_factory=dict)
    features: dict[str, Importance] = dataclasses.field(default_factory=dict)
    policy: str = ''

    def text(self) -> str:
        """Returns the table."""
        widths = {name: max(12, len(name) + 2) for name in self.baselines}
        lines = [
            *([f'policy {self.policy}'] if self.policy else []),
            f'{self.num_episodes} episodes, {self.num_steps} steps, behaviour policy '
            f'{self.behaviour}; value: sum of rewards over {self.horizon} steps, '
            f'gamma {self.gamma:g}',
            f'{"estimator":32}{"value":>12}' + ''.join(f'{name:>{width}}' for name, width in widths.items()),
        ]
        for name, value in self.estimates.items():
            found = {each: of.estimates.get(name) for each, of in self.baselines.items()}
            cells = (f'{"" if of is None else format(of, ".4g"):>{widths[each]}}' for each, of in found.items())
            lines.append(f'{name:32}{value:12.4g}{"".join(cells)}'.rstrip())
        lines += [f'95% interval of {whose}: [{low:.4g}, {high:.4g}]' for whose, (low, high) in self.intervals.items()]
        if self.no_interval:
            lines.append(f'interval not defined: {self.no_interval}')
        lines += [each.line(name) for name, each in self.baselines.items()]
        of = f'{self.num_rewarded} rewarded episodes of {self.num_episodes}'
        size = self.effective_sample_size
        lines.append(of if size is None else f'{of}, effective sample size {size:.1f}')
        if self.features:
            names = ''.join(f'{name:>20}' for name in OF_FEATURES)
            lines.append(f'{"loss if the feature is shuffled":32}{names}  95% interval')
        lines += [each.line(name) for name, each in self.features.items()]
        return '\n'.join([*lines, *(f'warning: {warning}' for warning in self.warnings)])

    def json(self) -> dict[str, Any]:
        """Returns the same for a JSON file; what is not defined is None."""
        found: dict[str, Any] = estimators.finite(dataclasses.asdict(self))
        return found
