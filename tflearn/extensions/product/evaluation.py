"""All estimates of a policy's value from one data set, as a table and as JSON."""

import dataclasses
import functools
from typing import Annotated, Any

import numpy as np

from tflearn.core import confidence_sequences
from tflearn.core.errors import UserValueError
from tflearn.core.settings import Fraction, NonNegativeFloat, PositiveInt, Range, checked_dataclass
from tflearn.extensions.product import estimators, gate, linear_models
from tflearn.extensions.product.estimators import Episodes
from tflearn.extensions.product.gate import GateOptions, LoggedEpisodes
from tflearn.extensions.product.linear_models import MAX_INPUTS, by_choice, features_of

# Features of the states, of the actions taken in them, and of those that the evaluated policy takes.
_ValueFeatures = tuple[np.ndarray, np.ndarray, np.ndarray]
# Features of a state: each choice has parameters of its own, so many choices leave few; and of all choices together.
_PER_CHOICE, _MOST = 64, 1024
_FEW_EPISODES = 10.0  # of an effective sample size below which importance sampling is not to be trusted


@checked_dataclass(frozen=True)
class OpeOptions:
    """How a policy is evaluated on data.

    Attributes:
      gamma: the discount of the value; 1 is the return that `tflearn-evaluate` measures in an environment.
      horizon: the number of steps of an episode that count; None takes the longest recorded episode.
      num_features: the number of features of fitted Q evaluation and of an estimated behaviour policy. Choices divide
        them; each has at least 64 as long as that are not more than 1,024 in all.
      largest_ratio: of the probabilities of an action, for which switch doubly robust corrects its fitted value.
      estimate_behaviour: whether to estimate the behaviour policy even if its log-probabilities were recorded.
      low: the least reward; None is what the data set states. An interval needs the range.
      high: the greatest one.
      whole: whether the range is that of an episode's sum of rewards, see `gate.GateOptions`.
      seed: the seed of the features.
    """

    gamma: Fraction = 1.0
    horizon: PositiveInt | None = None
    num_features: PositiveInt = 256
    largest_ratio: NonNegativeFloat = 10.0
    estimate_behaviour: bool = False
    low: Annotated[float, Range()] | None = None
    high: Annotated[float, Range()] | None = None
    whole: bool = False
    seed: int = 0


@dataclasses.dataclass(frozen=True)
class RecordedSteps:
    """The rows of all episodes, one after the other, with the boundary row of each. S is their number.

    Attributes:
      lengths: the number of rows of each episode, [E].
      observations: the numbers of each observation, [S, I].
      is_step: whether an action was taken in the row and had its effect, [S].
      rewards: [S].
      discounts: 0 where the episode terminated, [S].
      actions: the numbers of each action, as the environment clips them, [S, K]; of a single Discrete action the
        choice, counted from 0.
      log_behaviour: the recorded log-probabilities of the actions, [S]; None if there are none.
      log_target: those under the evaluated policy, [S]; None if it has none.
      choices: the evaluated policy's probabilities of the choices, [S, A]; None if the action is not a single Discrete
        one.
      samples: actions of the evaluated policy, [M, S, K]; empty if there are choices.
      clusters: whose episodes these are, such as hashes of users, [E]; None: each is of another one.
    """

    lengths: np.ndarray
    observations: np.ndarray
    is_step: np.ndarray
    rewards: np.ndarray
    discounts: np.ndarray
    actions: np.ndarray
    log_behaviour: np.ndarray | None
    log_target: np.ndarray | None
    choices: np.ndarray | None
    samples: np.ndarray
    clusters: np.ndarray | None = None

    @property
    def starts(self) -> np.ndarray:
        """The first row of each episode, [E]."""
        return np.cumsum(self.lengths) - self.lengths

    @property
    def times(self) -> np.ndarray:
        """The number of each row in its episode, [S]."""
        return np.arange(len(self.rewards)) - np.repeat(self.starts, self.lengths)

    @property
    def episodes(self) -> np.ndarray:
        """The number of each row's episode, [S]."""
        return np.repeat(np.arange(len(self.lengths)), self.lengths)


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """Estimates of a policy's value.

    Attributes:
      estimates: by the estimator's name; those that are not possible are missing, NaN is one that is not defined.
      intervals: of the value of 'the policy' and of 'the behaviour policy', 95%, by empirical likelihood, whatever the
        estimator; missing if not defined.
      no_interval: why one is missing; '' if none is.
      num_rewarded: the number of episodes whose rewards are not all 0.
      effective_sample_size: how many episodes of the evaluated policy the data are worth; None without ratios.
      num_episodes: the number of episodes.
      num_steps: the number of steps.
      horizon: the number of steps of an episode that count.
      gamma: the discount.
      behaviour: 'recorded', 'estimated' or 'unknown'.
      warnings: what is missing, and what is not to be trusted.
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

    def text(self) -> str:
        """Returns the table."""
        lines = [
            f'{self.num_episodes} episodes, {self.num_steps} steps, behaviour policy {self.behaviour}; '
            f'value: sum of rewards over {self.horizon} steps, gamma {self.gamma:g}',
            f'{"estimator":32}{"value":>12}',
            *(f'{name:32}{value:12.4g}' for name, value in self.estimates.items()),
        ]
        lines += [f'95% interval of {whose}: [{low:.4g}, {high:.4g}]' for whose, (low, high) in self.intervals.items()]
        if self.no_interval:
            lines.append(f'interval not defined: {self.no_interval}')
        of = f'{self.num_rewarded} rewarded episodes of {self.num_episodes}'
        size = self.effective_sample_size
        lines.append(of if size is None else f'{of}, effective sample size {size:.1f}')
        return '\n'.join([*lines, *(f'warning: {warning}' for warning in self.warnings)])

    def json(self) -> dict[str, Any]:
        """Returns the same for a JSON file; what is not defined is None."""
        found: dict[str, Any] = estimators.finite(dataclasses.asdict(self))
        return found


def evaluate(steps: RecordedSteps, options: OpeOptions, bounds: tuple[Any, Any] = (-np.inf, np.inf)) -> Evaluation:
    """Returns all estimates that the data and the policy allow.

    Args:
      steps: the data.
      options: how the policy is evaluated.
      bounds: the least and the greatest of each number of the actions, [K], which are within them.

    Raises:
      ValueError: if there are fewer than two episodes, or none has a step.
    """
    if len(steps.lengths) < 2 or not steps.is_step.any():
        raise UserValueError(f'got {len(steps.lengths)} episodes; need at least two with steps')
    warnings: list[str] = []
    longest = int(steps.times[steps.is_step].max()) + 1
    horizon = min(options.horizon or longest, longest)
    counted = np.flatnonzero(steps.is_step & (steps.times < horizon))
    features = _features(steps, options, warnings)
    log_behaviour, origin = _log_behaviour(steps, features, options, bounds, warnings)
    log_ratios = None
    if steps.log_target is None:
        warnings.append('the policy always takes the same floats, so importance sampling is not possible')
    elif log_behaviour is not None:
        log_ratios = steps.log_target - log_behaviour
    padded = functools.partial(
        padded_array, (len(steps.lengths), horizon), (steps.episodes[counted], steps.times[counted])
    )
    ratios = np.zeros(len(counted)) if log_ratios is None else log_ratios[counted]
    episodes = Episodes(padded(steps.rewards[counted]), padded(ratios), options.gamma)
    made = {'behaviour policy (mean return)': estimators.behaviour_value(episodes)}
    size = None
    if log_ratios is not None:
        size = estimators.effective_sample_size(episodes.log_weights[:, -1])
        made['importance sampling'] = estimators.importance_sampling(episodes)
        made['weighted IS'] = estimators.weighted_importance_sampling(episodes)
        made['per-decision IS'] = estimators.per_decision(episodes)
        made['weighted per-decision IS'] = estimators.weighted_per_decision(episodes)
    fitted = None
    if features is not None:
        fitted, q_values, values = _fitted(steps, features, horizon, options)
        if log_ratios is not None:
            of_steps = padded(q_values[counted]), padded(values[counted])
            made['doubly robust'] = estimators.doubly_robust(episodes, *of_steps)
            made['switch doubly robust'] = estimators.doubly_robust(episodes, *of_steps, options.largest_ratio)
    ones = np.ones((1, len(steps.lengths)))
    found = {name: float(estimator(ones)[0]) for name, estimator in made.items()}
    if fitted is not None:
        found['fitted Q evaluation'] = fitted
    if size is not None and size < _FEW_EPISODES:
        warnings.append(
            f'the effective sample size is {size:.1f} episodes: the policies differ too much, or episodes are too '
            'long, for importance sampling; do not trust it'
        )
    elif size is not None and not estimators.mean_weight_is_one(episodes):
        weight = float(np.exp(episodes.log_weights[:, -1]).mean())
        warnings.append(
            f'the mean weight of the episodes is {weight:.3g}, not 1: the policy takes actions that the data never '
            f'have, or the behaviour policy is not as {origin}; do not trust importance sampling, nor doubly robust'
        )
    ranged = GateOptions(low=options.low, high=options.high, longest=horizon, whole=options.whole, gamma=options.gamma)
    log = LoggedEpisodes(
        episodes.rewards, padded(np.ones(len(counted))) > 0, episodes.log_ratios, padded(np.zeros(len(counted))),
        clusters=steps.clusters,
    )  # fmt: skip
    unsure = log_ratios is None or origin != 'recorded'
    intervals, why = _intervals(log, ranged, 'the probabilities of the actions are not recorded' if unsure else '')
    return Evaluation(
        found, intervals, why, int(np.count_nonzero(episodes.rewards.any(axis=1))), size, len(steps.lengths),
        int(steps.is_step.sum()), horizon, options.gamma, origin, tuple(warnings),
    )  # fmt: skip


def _intervals(log: LoggedEpisodes, options: GateOptions, doubt: str) -> tuple[dict[str, tuple[float, float]], str]:
    """Returns `Evaluation.intervals` and `Evaluation.no_interval`; with a doubt none of the evaluated policy."""
    try:
        scaled = gate.scale(log, options)
    except UserValueError as error:  # such as no range
        return {}, str(error)
    if scaled.outside:
        return {}, f'{scaled.outside} rewards are outside of [{options.low:g}, {options.high:g}]; state their range'
    found = {
        whose: scaled.bounds(weights, confidence_sequences.likelihood_bound)
        for whose, weights in zip(('the policy', 'the behaviour policy'), scaled.weights, strict=True)
    }
    low, high = found['the policy']
    if not doubt and low <= high:
        return found, ''
    del found['the policy']
    return found, doubt or 'the weights contradict each other: the logged probabilities are wrong'


def padded_array(shape: tuple[int, int], places: tuple[np.ndarray, np.ndarray], values: np.ndarray) -> np.ndarray:
    """Returns an array [E, T] with the values at these places, 0 where an episode has ended."""
    array = np.zeros(shape)
    array[places] = values
    return array


def _features(steps: RecordedSteps, options: OpeOptions, warnings: list[str]) -> _ValueFeatures | None:
    num_inputs = steps.observations.shape[1]
    if num_inputs > MAX_INPUTS:
        warnings.append(f'observations have {num_inputs} numbers, more than {MAX_INPUTS}: no values are fitted to them')
        return None
    if steps.choices is not None:
        num_choices = steps.choices.shape[1]
        size = max(num_inputs + 1, options.num_features // num_choices, min(_PER_CHOICE, _MOST // num_choices))
        states = features_of(steps.observations, size, options.seed)(steps.observations)
        taken = by_choice(states, np.eye(num_choices)[steps.actions[:, 0].astype(int)])
        return states, taken, by_choice(states, steps.choices)
    both = np.concatenate([steps.observations, steps.actions], axis=1)
    make = features_of(both, max(both.shape[1] + 1, options.num_features), options.seed)
    sampled = [make(np.concatenate([steps.observations, actions], axis=1)) for actions in steps.samples]
    of_state = features_of(steps.observations, max(num_inputs + 1, options.num_features), options.seed)
    return of_state(steps.observations), make(both), np.mean(sampled, axis=0)


def _log_behaviour(
    steps: RecordedSteps,
    features: _ValueFeatures | None,
    options: OpeOptions,
    bounds: tuple[Any, Any],
    warnings: list[str],
) -> tuple[np.ndarray | None, str]:
    """Returns the behaviour policy's log-probabilities [S], and where they come from."""
    if steps.log_behaviour is not None and not options.estimate_behaviour:
        return steps.log_behaviour, 'recorded'
    if features is None:
        warnings.append('the data have no log-probabilities of the behaviour policy; record them')
        return None, 'unknown'
    estimated = np.zeros(len(steps.rewards))
    states, actions = features[0][steps.is_step], steps.actions[steps.is_step]
    if steps.choices is not None:
        choices = actions[:, 0].astype(int)
        found = linear_models.log_probabilities_of_choices(states, choices, steps.choices.shape[1])
    else:
        found = linear_models.log_densities(states, actions, bounds)
    estimated[steps.is_step] = found
    return estimated, 'estimated'


def _fitted(
    steps: RecordedSteps, features: _ValueFeatures, horizon: int, options: OpeOptions
) -> tuple[float, np.ndarray, np.ndarray]:
    """Returns the estimate of fitted Q evaluation; for each row q [S] and v [S], fitted to other episodes."""
    # A step at the end of the file of an episode has no next state, unless it terminated.
    last = np.cumsum(steps.lengths) - 1
    used = np.flatnonzero(steps.is_step & ((steps.discounts == 0) | ~np.isin(np.arange(len(steps.rewards)), last)))
    _, taken, expected = features
    rows = linear_models.Rows(
        taken[used],
        expected,
        used,
        np.minimum(used + 1, len(steps.rewards) - 1),
        steps.rewards[used],
        options.gamma * steps.discounts[used],
    )
    num_episodes = len(steps.lengths)
    # Values are fitted to other episodes than those that they are for, and to none of the same cluster.
    clusters = np.arange(num_episodes) if steps.clusters is None else steps.clusters
    names, index = np.unique(clusters, return_inverse=True)
    halves = (np.random.default_rng(options.seed).permutation(len(names)) % 2)[index]
    counts = np.stack([np.ones(num_episodes), halves, 1 - halves], axis=1)  # the whole data; each half
    q_values, values, clipped = linear_models.fit(
        rows, counts[steps.episodes[used]], horizon, np.maximum(horizon - steps.times, 0), options.gamma
    )
    other = 1 + halves[steps.episodes]  # column 1 is fitted to the episodes with 1, column 2 to the others
    q_of_rows = np.zeros(len(steps.rewards))
    q_of_rows[used] = np.take_along_axis(q_values, other[used, np.newaxis], axis=1)[:, 0]
    return (
        float(clipped[steps.starts, 0].mean()),
        q_of_rows,
        np.take_along_axis(values, other[:, np.newaxis], axis=1)[:, 0],
    )
