"""Simulated worlds of decisions, with a log, a candidate and an incumbent, whose values are known exactly.

A world has few kinds of decisions (its context, action and reward), so that a log is drawn by their numbers, however
long it is.
"""

import dataclasses
import itertools
import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from benchmarks.gate_sessions import sessions, slates
from benchmarks.gate_units import Units, subsampled, variance
from tflearn.core import confidence_sequences as cs
from tflearn.core.confidence_sequences import Variable

SHARE = 0.06  # the margin, as a share of the incumbent's value
LOOK = 500
_ONE = np.ones(1)


@dataclasses.dataclass(frozen=True)
class World:
    """A world with one candidate.

    Attributes:
      phases: what it is like at different times.
      margin: in the unit of the rewards, which are in [0, 1].
      when: the phase in which a decision is made, by its number.
      delay: the last decisions of a look, whose outcomes are not known yet and which are left out.
      limit: of the candidate's cost; it has to be proved too that this is within it.
      slack: how far an equal candidate is from what it must not be: the margin, or of a cost.
    """

    phases: Sequence[Units]
    margin: float
    when: Callable[[int], int] = lambda number: 0
    delay: int = 0
    limit: float = 0.0
    slack: float | None = None


def one_step(
    contexts: np.ndarray,
    logged: np.ndarray,
    candidate: np.ndarray,
    incumbent: np.ndarray,
    rewards: np.ndarray,
    chances: np.ndarray,
    true: np.ndarray | None = None,
    is_known: bool = True,
    bad: np.ndarray | None = None,
    costs: np.ndarray | None = None,
) -> Units:
    """Returns the kinds of single decisions.

    Args:
      contexts: their probabilities, [C].
      logged: the probabilities of actions that the log states, [C, A].
      candidate: those of the candidate, [C, A].
      incumbent: those of the incumbent, [C, A].
      rewards: the values that a reward may have, [R].
      chances: the probability of each, [C, A, R].
      true: the probabilities by which the log was made; None: as it states.
      is_known: whether the log states those of all actions.
      bad: the probability that a reward is not known, [C, A, R]; None: it never is.
      costs: what comes with each value of a reward, [R]; the variance is of it then. None: nothing.
    """
    values = (chances @ rewards) * contexts[:, np.newaxis]
    if bad is not None:
        rewards = np.append(rewards, np.nan)
        chances = np.append(chances * (1 - bad), (chances * bad).sum(axis=2, keepdims=True), axis=2)
    true = logged if true is None else true
    kinds = contexts[:, np.newaxis, np.newaxis] * true[:, :, np.newaxis] * chances
    context, action, reward = np.nonzero(kinds)
    mu = logged[context, action]
    weights = [(policy / np.where(logged > 0, logged, 1.0))[context, action] for policy in (candidate, incumbent)]
    known = cs.support(candidate[context], incumbent[context], logged[context])
    columns = *(each[:, np.newaxis] for each in weights), rewards[reward][:, np.newaxis], _ONE
    variables = cs.difference(*columns, known)
    of_costs = []
    if costs is not None:
        found = cs.value(columns[0], 1 - costs[reward][:, np.newaxis], _ONE, known)
        of_costs = [Variable(each.values - 1, each.bound + 1) for each in found]
    of_actions = [Variable((action == a) / mu - 1, 1.0) for a in np.unique(action)]
    all_chances = kinds[context, action, reward]
    return Units(
        all_chances / all_chances.sum(),
        variables if is_known else variables[:1],
        [*([each] for each in cs.refuters(*weights, known if is_known else None)), of_actions],
        float(((candidate - incumbent) * values).sum()),
        min(variance(all_chances, each.values) for each in of_costs or variables[1:]),
        float((candidate * values).sum()),
        [Variable(weights[0] * np.nan_to_num(of), 0.0) for of in (rewards[reward], 1 - rewards[reward])],
        of_costs,
    )


def greedy(actions: Sequence[int], num_actions: int, epsilon: float, none: Sequence[int] = ()) -> np.ndarray:
    """Returns the probabilities of a policy, [C, A]: an action of each context, and even ones but those in `none`."""
    even = np.ones(num_actions)
    even[list(none)] = 0.0
    return (1 - epsilon) * np.eye(num_actions)[list(actions)] + epsilon * even / even.sum()


def clicks(rates: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the values of clicks and their probabilities, of rates [C, A]."""
    return np.array([0.0, 1.0]), np.stack([1 - rates, rates], axis=-1)


def shop(
    rate: float,
    num_actions: int,
    epsilon: float,
    difference: float,
    *,
    share: float = 0.5,
    other: float = 0.5,
    explored: float | None = None,
    **options: Any,
) -> Units:
    """Returns clicks where the candidate differs in a share of the contexts.

    Args:
      rate: of the incumbent's action.
      num_actions: A; the actions that neither prefers are one kind, with the rate `other` times `rate`.
      epsilon: of both policies, and of the log.
      difference: the candidate's value less the incumbent's.
      share: of the contexts in which the candidate takes another action.
      other: see `num_actions`.
      explored: the true share of random actions, where the log states another.
      **options: of `one_step`.
    """
    changed = rate + difference / (share * (1 - epsilon))
    rates = rate * np.array([[1.0, other, other], [1.0, changed / rate, other]])
    assert 0 <= changed <= 1, changed

    def policy(actions: Sequence[int], epsilon: float) -> np.ndarray:
        even = np.array([1.0, 1.0, num_actions - 2.0]) / num_actions
        return (1 - epsilon) * np.eye(3)[list(actions)] + epsilon * even

    log = policy((0, 0), epsilon)
    true = None if explored is None else policy((0, 0), explored)
    pair = policy((0, 1), epsilon), log
    return one_step(np.array([1 - share, share]), log, *pair, *clicks(rates), true=true, **options)


def unsupported(share: float, difference: float, is_good: bool = False) -> Units:
    """Returns clicks of 20% where the candidate takes, in a share of the contexts, what the log never does."""
    rate, epsilon, never = 0.2, 0.1, 4
    contexts = np.array([share, (1 - share) / 2, (1 - share) / 2])
    rates = np.full((3, 5), rate / 2)
    rates[:, 0] = rate
    rates[:, never] = 1.0 if is_good else 0.0
    gained = share * (1 - epsilon) * (rates[0, never] - rate)
    rates[2, 1] = rate + (difference - gained) / (contexts[2] * (1 - epsilon))
    assert 0 <= rates[2, 1] <= 1
    log = greedy((0, 0, 0), 5, epsilon, (never,))
    pair = greedy((never, 0, 1), 5, epsilon), greedy((0, 0, 0), 5, epsilon)
    return one_step(contexts, log, *pair, *clicks(rates))


def _lognormal(deviation: float = 2.0, most: float = 100.0, size: int = 200) -> np.ndarray:
    """Returns quantiles of lognormal costs, as shares of the range, which ends at `most` medians."""
    normal = statistics.NormalDist()
    quantiles = np.array([normal.inv_cdf((i + 0.5) / size) for i in range(size)])
    return np.minimum(np.exp(deviation * quantiles) / most, 1.0)


def costs(difference: float, epsilon: float = 0.1) -> Units:
    """Returns lognormal costs within a range; rarely an action of the candidate costs all of it."""
    drawn = 1 - _lognormal()
    values = np.unique(np.r_[drawn, 0.0])
    usual = np.bincount(np.searchsorted(values, drawn), minlength=len(values)) / len(drawn)
    ruin = np.eye(len(values))[0]
    loss = -difference / ((1 - epsilon) * float(usual @ values))
    chances = np.stack([usual, (1 - loss) * usual + loss * ruin, usual])[np.newaxis]
    log = greedy((0,), 3, epsilon)
    return one_step(_ONE, log, greedy((1,), 3, epsilon), log, values, chances)


def complaints(cost: float, epsilon: float = 0.1) -> Units:
    """Returns clicks, half as many more by the candidate's action, and complaints of so many of its decisions."""
    usual, clicked = 0.05, np.array([[0.2, 0.3, 0.2]])
    own = (cost - epsilon * 2 * usual / 3) / (1 - epsilon + epsilon / 3)
    share = np.array([[usual, own, usual]])
    _, both = clicks(clicked)
    chances = np.concatenate([both * (1 - share[..., np.newaxis]), both * share[..., np.newaxis]], axis=2)
    log = greedy((0,), 3, epsilon)
    return one_step(
        _ONE, log, greedy((1,), 3, epsilon), log, np.array([0.0, 1.0, 0.0, 1.0]), chances,
        costs=np.array([0.0, 0.0, 1.0, 1.0]),
    )  # fmt: skip


def tempered(
    difference: float,
    temperature: float = 2.0,
    num_actions: int = 6,
    stated: Callable[[np.ndarray], np.ndarray] | None = None,
) -> Units:
    """Returns clicks of policies that draw by logits, which a temperature divides.

    Args:
      difference: the candidate's value less the incumbent's, which made the log.
      temperature: of both.
      num_actions: A.
      stated: what the log states of its probabilities [C, A]; None: the truth.
    """
    rng = np.random.default_rng(5)
    logits, others = rng.normal(0, 1.5, (2, 4, num_actions))

    def policy(values: np.ndarray) -> np.ndarray:
        shares = np.exp(values / temperature)
        return shares / shares.sum(axis=1, keepdims=True)

    candidate, incumbent = policy(others), policy(logits)
    rates = rng.uniform(0.1, 0.3, logits.shape)
    lean = candidate - incumbent
    gained = lambda extra: float(((rates + extra * lean) * lean).sum()) / 4  # noqa: E731
    slope = float((lean * lean).sum()) / 4
    rates = rates + (difference - gained(0.0)) / slope * lean
    assert rates.min() >= 0 and rates.max() <= 1
    log = stated(incumbent) if stated else incumbent
    pair = candidate, incumbent
    return one_step(np.full(4, 0.25), log, *pair, *clicks(rates), true=incumbent, is_known=stated is None)


def items(difference: float, epsilon: float = 0.2, num_new: int = 0) -> Units:
    """Returns clicks on items, a set of two to four articles that each request brings; an action is a place in it.

    Args:
      difference: the candidate's value less the incumbent's, which made the log.
      epsilon: of both, among the items that are there.
      num_new: sets of four in which the candidate prefers an item that was never shown, and that nobody clicks.
    """
    rng = np.random.default_rng(6)
    sets = [rng.permutation(6)[:size] for size in (2, 3, 4, 4) for _ in range(3)]
    likes, opinions = rng.uniform(0.15, 0.25, (3, 6)), rng.normal(size=(2, 3, 6))  # of three kinds of readers
    shape = 3 * len(sets), 4
    rates, candidate, incumbent = (np.zeros(shape) for _ in range(3))
    for row, (reader, articles) in enumerate(itertools.product(range(3), sets)):
        count, is_new = len(articles), row % len(sets) >= len(sets) - num_new
        known = count - is_new  # the last one is new
        rates[row, :known] = likes[reader, articles[:known]]
        best = [int(each[reader, articles[:known]].argmax()) for each in opinions]
        for policy, place, size in ((candidate, count - 1 if is_new else best[0], count), (incumbent, best[1], known)):
            policy[row, :size] = epsilon / size
            policy[row, place] += 1 - epsilon
    lean = (candidate - incumbent) * (incumbent > 0)
    contexts = np.full(len(rates), 1 / len(rates))
    gained, slope = (float(contexts @ (each * (candidate - incumbent)).sum(axis=1)) for each in (rates, lean))
    rates += (difference - gained) / slope * lean
    assert rates.min() >= 0 and rates.max() <= 1
    return one_step(contexts, incumbent, candidate, incumbent, *clicks(rates))


def numbers(difference: float, epsilon: float = 0.2, num_centres: int = 8, bandwidth: float = 0.15) -> Units:
    """Returns sales at prices from 0 to 1, which both policies draw around a centre (`tflearn.agents.smoothing`).

    The densities are the same between neighbouring ends of windows, so that these parts of the range are the actions.

    Args:
      difference: the candidate's value less the incumbent's, which made the log.
      epsilon: of both, from the whole range.
      num_centres: K.
      bandwidth: h.
    """
    centres = (np.arange(num_centres) + 0.5) / num_centres
    windows = np.clip([centres - bandwidth, centres + bandwidth], 0, 1).round(9)
    edges = np.unique(windows)
    sizes, middles = np.diff(edges), (edges[1:] + edges[:-1]) / 2

    def policy(chosen: Sequence[int]) -> np.ndarray:
        low, high = windows[:, list(chosen), np.newaxis]
        return (1 - epsilon) * ((low < middles) & (middles < high)) * sizes / (high - low) + epsilon * sizes

    candidate, incumbent = policy((1, 2, 5, 6)), policy((2, 2, 1, 5))
    contexts = np.full(4, 0.25)
    rates = 0.2 + 0.05 * np.sin(4 * middles + np.arange(4)[:, np.newaxis])
    lean = (candidate - incumbent) / sizes
    gained, slope = (float(contexts @ (each * (candidate - incumbent)).sum(axis=1)) for each in (rates, lean))
    rates += (difference - gained) / slope * lean
    assert rates.min() >= 0 and rates.max() <= 1
    return one_step(contexts, incumbent, candidate, incumbent, *clicks(rates))


def users(difference: float, visits: int = 8) -> Units:
    """Returns clusters: users who come once, and regulars with many visits, who like the candidate."""
    rate, epsilon, regulars = 0.2, 0.2, 0.2
    liked = 2 * rate  # of the candidate's action, by a regular
    new = rate + (difference / (1 - epsilon) - regulars * (liked - rate)) / (1 - regulars)
    assert new >= 0
    parts = []
    for weight, rates, number in ((1 - regulars, (rate, new), 1), (regulars, (rate, liked), visits)):
        log = greedy((0,), 2, epsilon)
        single = one_step(_ONE, log, greedy((1,), 2, epsilon), log, *clicks(np.array([rates])))
        parts.append((weight, single, number))
    chances, values, variables = [], [], parts[0][1].variables
    refuters = [each for group in parts[0][1].refuters for each in group]
    for weight, single, number in parts:
        # The users of one kind by how often each kind of decision was among their visits.
        for counts in _compositions(number, len(single.chances)):
            many = math.factorial(number) / math.prod(map(math.factorial, counts))
            chances.append(weight * many * float(np.prod(single.chances**counts)))
            values.append(np.array(counts) / number)
    shares = np.array(values)
    mean = lambda each: Variable(shares @ each.values, each.bound)  # noqa: E731
    found = [mean(each) for each in variables]
    all_chances = np.array(chances)
    return Units(
        all_chances / all_chances.sum(),
        found,
        [[mean(each)] for each in refuters],
        (1 - epsilon) * ((1 - regulars) * (new - rate) + regulars * (liked - rate)),
        min(variance(all_chances, each.values) for each in found[1:]),
        sum(weight * single.value for weight, single, _ in parts),
        [mean(each) for each in parts[0][1].ends],
    )


def _compositions(total: int, parts: int) -> Iterator[tuple[int, ...]]:
    if parts == 1:
        yield (total,)
        return
    for first in range(total + 1):
        for rest in _compositions(total - first, parts - 1):
            yield (first, *rest)


def _shop(
    rate: float, num_actions: int, epsilon: float, share: float = SHARE, **options: Any
) -> Callable[[int], World]:
    """Returns the world of a difference in margins."""
    margin = share * rate
    return lambda sign: World([shop(rate, num_actions, epsilon, sign * margin, **options)], margin)


def _wrong(factor: float, rate: float) -> Callable[[int], World]:
    """The log states 10% of random actions, which are `factor` times as many."""
    margin = SHARE * rate if rate < 0.5 else 0.01
    return lambda sign: World([shop(rate, 5, 0.1, sign * margin, explored=0.1 * factor)], margin)


def _drift(sign: int) -> World:
    """Rates and the difference rise and fall; on average, from the begin on, the difference is not above -margin."""
    margin = SHARE * 0.2
    sizes = (1.8, 1.0, 0.2, 1.0) if sign else (0.0, 0.0, 0.0, 0.0)
    phases = [shop(rate, 5, 0.1, -size * margin) for rate, size in zip((0.2, 0.3, 0.2, 0.1), sizes, strict=True)]
    return World(phases, margin, lambda number: number // 2_000 % 4)


def _rounds(sign: int) -> World:
    """The logging policy explores less or more, and prefers another action, in each round of 4,000 decisions."""
    rate, margin = 0.2, SHARE * 0.2
    phases = []
    for epsilon, preferred in ((0.3, 0), (0.05, 0), (0.1, 2), (0.2, 1)):
        rates = rate * np.array([[1.0, 0.5, 0.9], [1.0, 1.0 + sign * SHARE / (0.5 * 0.9), 0.9]])
        log = greedy((preferred, preferred), 3, epsilon)
        pair = greedy((0, 1), 3, 0.1), greedy((0, 0), 3, 0.1)
        phases.append(one_step(np.full(2, 0.5), log, *pair, *clicks(rates)))
    return World(phases, margin, lambda number: number // 4_000 % 4)


def _simple(make: Callable[..., Units], margin: float, *options: Any, **more: Any) -> Callable[[int], World]:
    return lambda sign: World([make(*options, sign * margin, **more)], margin)


def _misstated(stated: Callable[[np.ndarray], np.ndarray]) -> Callable[[int], World]:
    return lambda sign: World([tempered(sign * SHARE * 0.2, stated=stated)], SHARE * 0.2)


def _bad_outcomes(share: float) -> Callable[[int], World]:
    """A share of the failures of what the candidate prefers are not known, and as many successes of the other."""
    rates = lambda sign: np.array([[0.2, 0.2 + sign * SHARE * 0.2 / 0.9]])  # noqa: E731
    log = greedy((0,), 2, 0.1)

    def make(sign: int) -> World:
        of = rates(sign)
        bad = np.zeros((1, 2, 2))
        bad[0, 1, 0] = share / (1 - of[0, 1])
        bad[0, 0, 1] = share / of[0, 0]
        return World([one_step(_ONE, log, greedy((1,), 2, 0.1), log, *clicks(of), bad=bad)], SHARE * 0.2)

    return make


def _limited(beyond: float) -> Callable[[int], World]:
    """The candidate is better, but for complaints: so much above their limit, or a sixth below it."""
    limit = 0.06
    cost = lambda sign: limit * (1 + beyond if sign else 5 / 6)  # noqa: E731
    return lambda sign: World([complaints(cost(sign))], SHARE * 0.2, limit=limit, slack=limit / 6)


def _good(sign: int) -> World:
    """What was never tried is good; the rest of the candidate is as bad as can be where it is to be worse."""
    return World([unsupported(0.05, sign * SHARE * 0.2, True)], SHARE * 0.2)


_MEAN_COST = float(_lognormal().mean())


def _failures(margin: float) -> Callable[[int], World]:
    """Rewards are 1 but for failures of 1% of the incumbent's decisions."""
    return lambda sign: World([shop(0.99, 3, 0.1, sign * margin, share=1.0, other=0.99)], margin)


def subsample(make: Callable[[int], World], kept: float, rare: int, least: float = 0.0) -> Callable[[int], World]:
    """Returns the world whose log drops a part of its decisions, see `subsampled`."""
    return lambda sign: World([subsampled(each, kept, rare, least) for each in make(sign).phases], make(sign).margin)


def _costs(sign: int) -> World:
    margin = SHARE * _MEAN_COST
    return World([costs(sign * margin)], margin)


# Name -> the world by the candidate's difference in margins: -1 and 0.
WORLDS: dict[str, Callable[[int], World]] = {
    'clicks 20%': _shop(0.2, 10, 0.1),
    'clicks 5%': _shop(0.05, 10, 0.1),
    'clicks 1%': _shop(0.01, 5, 0.1),
    'clicks 0.3%': _shop(0.003, 3, 0.1),
    'clicks 0.3% against none': lambda sign: World([shop(0.003, 3, 0.1, sign * 0.0027, share=1.0)], 0.0027),
    'failures 1%': _failures(SHARE * 0.01),
    'failures 1%, margin 1%': _failures(0.01),
    'heavy costs': _costs,
    '2 actions': _shop(0.2, 2, 0.1),
    '100 actions': _shop(0.2, 100, 0.1),
    '1,000 actions': _shop(0.2, 1_000, 0.3),
    'unsupported 1%, bad': _simple(unsupported, SHARE * 0.2, 0.01),
    'unsupported 5%, bad': _simple(unsupported, SHARE * 0.2, 0.05),
    'unsupported 10%, bad': _simple(unsupported, SHARE * 0.2, 0.1),
    'unsupported 20%, bad': _simple(unsupported, SHARE * 0.2, 0.2),
    'unsupported 5%, good': _good,
    'probabilities 10% too low': _wrong(1.1, 0.2),
    'probabilities 25% too low': _wrong(1.25, 0.2),
    'probabilities 50% too low': _wrong(1.5, 0.2),
    'probabilities 50% too high': _wrong(0.5, 0.2),
    'failures 1%, probabilities 10% too low': _wrong(1.1, 0.99),
    'failures 1%, probabilities 50% too low': _wrong(1.5, 0.99),
    'failures 1%, probabilities 50% too high': _wrong(0.5, 0.99),
    'users who return': _simple(users, SHARE * 0.2),
    'drift': _drift,
    'another logger each round': _rounds,
    'delays': lambda sign: dataclasses.replace(_shop(0.2, 5, 0.1)(sign), delay=2_000),
    'sessions of 3': _simple(sessions, SHARE * 0.5 / 3, 3),
    'sessions of 6': _simple(sessions, SHARE * 0.5 / 6, 6),
    'temperature 2': _simple(tempered, SHARE * 0.2),
    'exploration 0.1%': _shop(0.2, 2, 0.001),
    'exploration 1%': _shop(0.2, 2, 0.01),
    'exploration 30%': _shop(0.05, 10, 0.3),
    'probabilities of other actions unknown': _shop(0.2, 5, 0.1, is_known=False),
    'probabilities of another version': _misstated(lambda p: np.roll(p, 1, axis=0)),
    'probabilities of a version that differs little': _misstated(lambda p: p**0.8 / (p**0.8).sum(1, keepdims=True)),
    'probabilities too coarse': _misstated(lambda p: np.maximum(p.round(1), 0.1)),
    'probabilities too coarse, two digits': _misstated(lambda p: np.maximum(p.round(2), 0.01)),
    'probabilities too large, clipped at 10%': _misstated(lambda p: np.maximum(p, 0.1)),
    'probabilities too small, clipped at 20%': _misstated(lambda p: np.minimum(p, 0.2)),
    'bad outcomes 0.2%': _bad_outcomes(0.002),
    'bad outcomes 10%': _bad_outcomes(0.1),
    'items that vary': _simple(items, SHARE * 0.2),
    'items that vary, new ones 8%, bad': _simple(items, SHARE * 0.2, num_new=1),
    'slates of 2': _simple(slates, SHARE * 0.18, 'slots'),
    'slates of 3': _simple(slates, SHARE * 0.16, 'slots', slots=3),
    'slates of 2, to the first click': _simple(slates, SHARE * 0.16, 'stop'),
    'slates of 2, one reward': _simple(slates, SHARE * 0.32, 'slate'),
    'better, at the limit of a cost': _limited(0.0),
    'better, 6% beyond the limit of a cost': _limited(SHARE),
    'smoothed numbers': _simple(numbers, SHARE * 0.2),
    'clicks 5%, and a tenth of all else': subsample(_shop(0.05, 10, 0.1), 0.1, 1),
    'failures 1%, margin 1%, and a tenth of all else': subsample(_failures(0.01), 0.1, 0),
}
SUBSAMPLED = [name for name in WORLDS if name.endswith(' of all else')]
# Wrong probabilities, and what needs far more than 4 n.
ONLY_WORSE = [name for name in WORLDS if ' too ' in name or ' version' in name or name == SUBSAMPLED[1]]


def numbers_by_phase(world: World, begin: int, end: int) -> Iterator[tuple[int, int]]:
    """Yields the phases of decisions begin..end, and their numbers, in pieces of the phases' own length."""
    if len(world.phases) == 1:
        if end > begin:
            yield 0, end - begin
        return
    at = begin
    while at < end:
        piece = min(LOOK - at % LOOK, end - at)
        yield world.when(at), piece
        at += piece
