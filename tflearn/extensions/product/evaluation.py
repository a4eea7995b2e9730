"""All estimates of a policy's value from one data set, as a table and as JSON."""

import dataclasses
import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Any

import numpy as np

from tflearn.core import confidence_sequences
from tflearn.core.errors import UserValueError
from tflearn.core.settings import Fraction, NonNegativeFloat, PositiveFloat, PositiveInt, Range, checked_dataclass
from tflearn.extensions.product import estimators, feature_importance, linear_models, row_weights, scaled_log
from tflearn.extensions.product.estimates import OF_FEATURES, Estimates, Evaluation, Importance
from tflearn.extensions.product.estimators import Episodes, Estimator
from tflearn.extensions.product.linear_models import MAX_INPUTS, by_choice, features_of
from tflearn.extensions.product.scaled_log import GateOptions, LoggedEpisodes

# Features of the states, of the actions taken in them, and of those that the evaluated policy takes.
_ValueFeatures = tuple[np.ndarray, np.ndarray, np.ndarray]
# Features of a state: each choice has parameters of its own, so many choices leave few; and of all choices together.
_PER_CHOICE, _MOST = 64, 1024
_FEW_EPISODES = 10.0  # of an effective sample size below which importance sampling is not to be trusted
# The share of one action from which a policy hardly looks at observations, also with an epsilon of 0.1.
_NEARLY_CONSTANT = 0.9


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
      greatest_weight: of a decision of a log that was subsampled; None is what the data set states. An interval of
        weighted decisions needs it.
      independent_slots: whether the steps of an episode are the slots of a slate, which the data's policy and the
        evaluated one choose independently of each other; the data set states it.
      seed: the seed of the features.
      baseline_action: the name of an action; a policy that always takes it is evaluated, too.
    """

    gamma: Fraction = 1.0
    horizon: PositiveInt | None = None
    num_features: PositiveInt = 256
    largest_ratio: NonNegativeFloat = 10.0
    estimate_behaviour: bool = False
    low: Annotated[float, Range()] | None = None
    high: Annotated[float, Range()] | None = None
    whole: bool = False
    greatest_weight: PositiveFloat | None = None
    independent_slots: bool = False
    seed: int = 0
    baseline_action: str | None = None


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
      even: the probabilities of the choices by even chance among those that are legal, [S, A]; None as `choices`.
      action_names: the names of the choices; () if there are none.
      weights: how many episodes of the world each one stands for, [E]; None: 1.
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
    even: np.ndarray | None = None
    action_names: Sequence[str] = ()
    weights: np.ndarray | None = None

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


def evaluate(
    steps: RecordedSteps,
    options: OpeOptions,
    bounds: tuple[Any, Any] = (-np.inf, np.inf),
    shuffled: Iterable[tuple[str, np.ndarray]] = (),
) -> Evaluation:
    """Returns all estimates that the data and the policy allow, and those of the baselines.

    Args:
      steps: the data.
      options: how the policy is evaluated.
      bounds: the least and the greatest of each number of the actions, [K], which are within them.
      shuffled: names of features, and the policy's probabilities of the choices without each, [S, A].

    Raises:
      ValueError: if there are fewer than two episodes, or none has a step, or there is no such
        baseline action.
    """
    if len(steps.lengths) < 2 or not steps.is_step.any():
        raise UserValueError(f'got {len(steps.lengths)} episodes; need at least two with steps')
    warnings: list[str] = []
    log = _Log(steps, options, bounds, warnings)
    behaviour = estimators.behaviour_value(log.of_ratios(np.zeros(len(steps.rewards))))
    found = {'behaviour policy (mean return)': float(behaviour(log.counts[np.newaxis])[0])}
    own = log.estimates(steps.log_target, log.expected)
    if steps.log_target is None:
        warnings.append('the policy always takes the same floats, so importance sampling is not possible')
    elif log.log_behaviour is not None:
        warnings += _weight_warnings(log, log.episodes(steps.log_target), own)
    warnings += _constant_warning(steps)
    intervals = {} if own.interval is None else {'the policy': own.interval}
    logged, _ = log.interval(None)
    if logged is not None:
        intervals['the behaviour policy'] = logged
    return Evaluation(
        found | own.estimates, intervals, own.no_interval, log.num_rewarded,
        own.effective_sample_size, log.num_episodes, int(steps.is_step.sum()), log.horizon,
        options.gamma, log.origin, tuple(warnings), _baselines(log), _importances(log, own, shuffled),
    )  # fmt: skip


def _weight_warnings(log: '_Log', episodes: Episodes, found: Estimates) -> list[str]:
    size = found.effective_sample_size or 0.0
    if size < _FEW_EPISODES:
        return [
            f'the effective sample size is {size:.1f} episodes: the policies differ too much, or '
            'episodes are too long, for importance sampling; do not trust it'
        ]
    if estimators.mean_weight_is_one(episodes, log.counts):
        return []
    weight = float(np.average(np.exp(episodes.log_weights[:, -1]), weights=log.counts))
    return [
        f'the mean weight of the episodes is {weight:.3g}, not 1: the policy takes actions that '
        f'the data never have, or the behaviour policy is not as {log.origin}; do not trust '
        'importance sampling, nor doubly robust'
    ]


def _constant_warning(steps: RecordedSteps) -> list[str]:
    """Returns a hint if the policy hardly ever takes another action than one, where others were legal."""
    if steps.choices is None or steps.even is None or not len(steps.action_names):
        return []
    could_choose = steps.is_step & ((steps.even > 0).sum(axis=1) > 1)
    if not could_choose.any():
        return []
    shares = steps.choices[could_choose].mean(axis=0)
    if shares.max() < _NEARLY_CONSTANT:
        return []
    name = steps.action_names[int(shares.argmax())]
    return [
        f'the policy takes the action {name!r} in {shares.max():.0%} of the decisions: it is nearly constant; '
        f'compare it with the best constant action, and with --baseline_action={name}'
    ]


class _Log:
    """The data, and what every policy that is judged by them has in common.

    Attributes:
      steps: the data.
      options: how policies are evaluated.
      num_episodes: the number of episodes.
      counts: how often each counts, its weight, [E].
      num_rewarded: the number of those whose rewards are not all 0.
      horizon: the number of steps of an episode that count.
      halves: the half, 0 or 1, of each episode's cluster, [E].
      log_behaviour: the behaviour policy's log-probabilities, [S]; None if they are unknown.
      origin: where they come from.
      expected: the features of what the evaluated policy does, see `_features`; None without any.
    """

    def __init__(
        self,
        steps: RecordedSteps,
        options: OpeOptions,
        bounds: tuple[Any, Any],
        warnings: list[str],
    ):
        self.steps, self.options, self.num_episodes = steps, options, len(steps.lengths)
        self.counts = np.ones(self.num_episodes) if steps.weights is None else steps.weights
        longest = int(steps.times[steps.is_step].max()) + 1
        self.horizon = min(options.horizon or longest, longest)
        self._counted = np.flatnonzero(steps.is_step & (steps.times < self.horizon))
        rewards = self._padded(steps.rewards)
        self._rewards, self.num_rewarded = rewards, int(np.count_nonzero(rewards.any(axis=1)))
        # Values are fitted to other episodes than those that they are for, and to none of the same
        # cluster.
        clusters = np.arange(self.num_episodes) if steps.clusters is None else steps.clusters
        names, index = np.unique(clusters, return_inverse=True)
        random = np.random.default_rng(options.seed)
        self.halves = (random.permutation(len(names)) % 2)[index]
        self._features = features = _features(steps, options, warnings)
        self.expected = None if features is None else features[2]
        of_rows = self.counts[steps.episodes]
        self.log_behaviour, self.origin = _log_behaviour(steps, features, options, bounds, warnings, of_rows)

    def _padded(self, values: np.ndarray) -> np.ndarray:
        places = self.steps.episodes[self._counted], self.steps.times[self._counted]
        return padded_array((self.num_episodes, self.horizon), places, values[self._counted])

    def of_ratios(self, log_ratios: np.ndarray) -> Episodes:
        """Returns the episodes with these log-ratios of the rows, [S]."""
        return Episodes(self._rewards, self._padded(log_ratios), self.options.gamma)

    def episodes(self, log_target: np.ndarray) -> Episodes:
        """Returns the episodes, and what a policy with these log-probabilities makes of them."""
        return self.of_ratios(log_target - self.log_behaviour)

    def estimates(
        self,
        log_target: np.ndarray | None,
        expected: np.ndarray | None,
        chosen_by_half: bool = False,
        note: str = '',
    ) -> Estimates:
        """Returns all estimates of one policy's value.

        Args:
          log_target: its log-probabilities of the actions, [S]; None if it has none.
          expected: the features of what it does in each row; None fits no values.
          chosen_by_half: whether what it does in each half of the episodes was chosen by the other
            half. No estimate is by values alone then that were fitted to what has chosen.
          note: see `Estimates`.
        """
        made: dict[str, Estimator] = {}
        doubt = 'the probabilities of the actions are not recorded'
        episodes = size = None
        if log_target is not None and self.log_behaviour is not None:
            episodes = self.episodes(log_target)
            size = estimators.effective_sample_size(episodes.log_weights[:, -1] + np.log(self.counts))
            made['importance sampling'] = estimators.importance_sampling(episodes)
            made['weighted IS'] = estimators.weighted_importance_sampling(episodes)
            made['per-decision IS'] = estimators.per_decision(episodes)
            made['weighted per-decision IS'] = estimators.weighted_per_decision(episodes)
            if self.options.independent_slots:
                made['independent slots'] = estimators.independent_slots(episodes)
                made['pseudo-inverse'] = estimators.pseudo_inverse(episodes)
            doubt = '' if self.origin == 'recorded' else doubt
        fitted = None
        if expected is not None:
            q_values, values, clipped = self._fitted(expected)
            # Column 1 is fitted to the half 1, column 2 to the half 0.
            fits = 2 - self.halves if chosen_by_half else np.zeros(self.num_episodes, np.int64)
            fitted = float(np.average(clipped[self.steps.starts, fits], weights=self.counts))
            if episodes is not None:
                other = (1 + self.halves)[self.steps.episodes]
                rows = np.arange(len(other))
                q, v = (self._padded(each[rows, other]) for each in (q_values, values))
                made['doubly robust'] = estimators.doubly_robust(episodes, q, v)
                if not chosen_by_half:
                    limit = self.options.largest_ratio
                    switch = estimators.doubly_robust(episodes, q, v, limit)
                    made['switch doubly robust'] = switch
        counts = self.counts[np.newaxis]
        found = {name: float(estimator(counts)[0]) for name, estimator in made.items()}
        if fitted is not None:
            found['fitted Q evaluation'] = fitted
        return Estimates(found, *self.interval(episodes, doubt), size, note)

    def interval(self, episodes: Episodes | None, doubt: str = '') -> tuple[tuple[float, float] | None, str]:
        """Returns an interval of a policy's value, and why there is none.

        Args:
          episodes: with the policy's ratios; None: of the behaviour policy.
          doubt: why there is none, whatever the data say; '' if there may be one.
        """
        given, zeros = self.options, np.zeros(self._rewards.shape)
        options = GateOptions(
            low=given.low, high=given.high, longest=self.horizon, whole=given.whole,
            gamma=given.gamma,
        )  # fmt: skip
        is_step = self._padded(np.ones(len(self.steps.rewards))) > 0
        ratios, clusters = zeros if episodes is None else episodes.log_ratios, self.steps.clusters
        try:
            shares = row_weights.shares(self.counts, given.greatest_weight, clusters is not None)
            log = LoggedEpisodes(self._rewards, is_step, ratios, zeros, clusters=clusters, shares=shares)
            scaled = scaled_log.scale(log, options)
        except UserValueError as error:  # such as no range
            return None, str(error)
        if scaled.outside:
            given_range = f'[{options.low:g}, {options.high:g}]'
            return None, f'{scaled.outside} rewards are outside of {given_range}; state their range'
        low, high = scaled.bounds(scaled.weights[0], confidence_sequences.likelihood_bound)
        if not doubt and low <= high:
            return (low, high), ''
        return None, doubt or 'the weights contradict each other: the logged probabilities are wrong'

    @functools.cached_property
    def _used(self) -> np.ndarray:
        """The rows that values are fitted to."""
        # A step at the end of the file of an episode has no next state, unless it terminated.
        steps, last = self.steps, np.cumsum(self.steps.lengths) - 1
        has_next = ~np.isin(np.arange(len(steps.rewards)), last)
        return np.flatnonzero(steps.is_step & ((steps.discounts == 0) | has_next))

    @functools.cached_property
    def _regression(self) -> linear_models.Regression:
        """Of the whole data, and of each half."""
        assert self._features is not None
        parts = np.stack([np.ones(self.num_episodes), self.halves, 1 - self.halves], axis=1)
        counts = parts * self.counts[:, np.newaxis]
        of_rows = counts[self.steps.episodes[self._used]]
        return linear_models.Regression(self._features[1][self._used], of_rows)

    def _fitted(self, expected: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Returns q [S, 3], v and v clipped of each row, fitted to all episodes and to each half."""
        steps, used, gamma = self.steps, self._used, self.options.gamma
        rows = linear_models.Rows(
            expected,
            used,
            np.minimum(used + 1, len(steps.rewards) - 1),
            steps.rewards[used],
            gamma * steps.discounts[used],
        )
        left = np.maximum(self.horizon - steps.times, 0)
        of_used, values, clipped = linear_models.fit(self._regression, rows, self.horizon, left, gamma)
        q_values = np.zeros(values.shape)
        q_values[used] = of_used
        return q_values, values, clipped

    def expected_of(self, choices: np.ndarray) -> np.ndarray | None:
        """Returns the features of a policy with these probabilities of the choices, [S, A]."""
        return None if self._features is None else by_choice(self._features[0], choices)


def _importances(log: _Log, own: Estimates, shuffled: Iterable[tuple[str, np.ndarray]]) -> dict[str, Importance]:
    """Returns what each feature is worth, the most first, by the last estimator that there is."""
    steps, rows, found = log.steps, np.arange(len(log.steps.rewards)), {}
    for name, choices in shuffled:
        with np.errstate(divide='ignore'):
            log_target = np.log(choices[rows, steps.actions[:, 0].astype(int)])
        without = log.estimates(log_target, log.expected_of(choices)).estimates
        lost = {each: own.estimates[each] - without[each] for each in OF_FEATURES if each in without}
        found[name] = Importance(lost, _importance_interval(log, log_target, choices, own.interval is not None))
    size = lambda item: abs([*item[1].estimates.values(), 0.0][-1])  # noqa: E731
    return dict(sorted(found.items(), key=size, reverse=True))


def _importance_interval(
    log: _Log, log_target: np.ndarray, choices: np.ndarray, is_defined: bool
) -> tuple[float, float] | None:
    """Returns the interval of a feature's importance; None unless the policy's own is defined, of single decisions.

    Of a log that was subsampled there is none: it needs the actions of all decisions that came.
    """
    steps, low, high = log.steps, log.options.low, log.options.high
    own, behaviour = steps.log_target, log.log_behaviour
    is_whole = is_defined and (log.counts == 1).all()
    if not is_whole or log.horizon > 1 or low is None or high is None or own is None or behaviour is None:
        return None
    counted = steps.is_step & (steps.times == 0)
    weights = np.exp(own - behaviour)[counted], np.exp(log_target - behaviour)[counted]
    differs = np.maximum(choices - steps.choices, 0).sum(axis=1)[counted]
    clusters = None if steps.clusters is None else steps.clusters[steps.episodes[counted]]
    rewards = (steps.rewards[counted] - low) / (high - low)
    ends = feature_importance.interval(weights, rewards, differs, clusters)
    return (high - low) * ends[0], (high - low) * ends[1]


def _baselines(log: _Log) -> dict[str, Estimates]:
    """Returns the estimates of policies that need no training, beside the behaviour policy."""
    even, names, given = log.steps.even, list(log.steps.action_names), log.options.baseline_action
    if even is None:
        if given is not None:
            raise UserValueError(f'got the baseline action {given!r}; need data with a single Discrete action')
        return {}
    if given is not None and given not in names:
        known = ', '.join(names)
        raise UserValueError(f'got the baseline action {given!r}; need one of {known:.200}')
    actions, rows = log.steps.actions[:, 0].astype(int), np.arange(len(even))
    with np.errstate(divide='ignore'):
        log_even = np.log(even[rows, actions])

    def log_always(action: np.ndarray) -> np.ndarray:
        """Returns the log-probabilities of a policy that takes an action of each row, if legal."""
        own = np.where(actions == action, 0.0, -np.inf)
        return np.where(even[rows, action] > 0, own, log_even)

    def always(action: np.ndarray, *more: Any) -> Estimates:
        is_legal = even[rows, action] > 0
        choices = np.where(is_legal[:, np.newaxis], np.eye(even.shape[1])[action], even)
        return log.estimates(log_always(action), log.expected_of(choices), *more)

    found = {'uniform': log.estimates(log_even, log.expected_of(even))}
    if log.log_behaviour is not None:
        best = _best_constants(log, np.unique(actions[log.steps.is_step]), log_always)
        first, second = (names[action] for action in best)
        note = f'{first!r} for one half of the data and {second!r} for the other, by the other half'
        found['best constant'] = always(best[log.halves[log.steps.episodes]], True, note)
    if given is not None:
        found[f'always {given}'] = always(np.full(len(rows), names.index(given)))
    return found


def _best_constants(log: _Log, actions: np.ndarray, log_always: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """Returns for each half of the episodes the action that is the best one in the other half, [2].

    Chosen and judged by the same episodes it would be too good: the best of many is lucky, too.
    """
    others = np.stack([log.halves == 1, log.halves == 0])
    scores = []
    for action in actions.tolist():
        episodes = log.episodes(log_always(np.full(len(log.steps.rewards), action)))
        values = estimators.weighted_importance_sampling(episodes)(others * log.counts)
        weights = episodes.log_weights[:, -1] + np.log(log.counts)
        sizes = [estimators.effective_sample_size(weights[other]) for other in others]
        # An action of few episodes is chosen only if no other has more.
        scores.append([(min(size, _FEW_EPISODES), value) for size, value in zip(sizes, values, strict=True)])
    best = (max(range(len(actions)), key=lambda i: scores[i][half]) for half in (0, 1))
    return actions[list(best)]


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
    counts: np.ndarray,
) -> tuple[np.ndarray | None, str]:
    """Returns the behaviour policy's log-probabilities [S], and where they come from; rows count so often, [S]."""
    if steps.log_behaviour is not None and not options.estimate_behaviour:
        return steps.log_behaviour, 'recorded'
    if features is None:
        warnings.append('the data have no log-probabilities of the behaviour policy; record them')
        return None, 'unknown'
    estimated = np.zeros(len(steps.rewards))
    states, actions, counts = (each[steps.is_step] for each in (features[0], steps.actions, counts))
    if steps.choices is not None:
        choices = actions[:, 0].astype(int)
        found = linear_models.log_probabilities_of_choices(states, choices, steps.choices.shape[1], counts)
    else:
        found = linear_models.log_densities(states, actions, bounds, counts)
    estimated[steps.is_step] = found
    return estimated, 'estimated'
