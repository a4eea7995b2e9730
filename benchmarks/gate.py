"""The gate in simulated worlds: how often it passes a candidate that is worse by the margin, and what it needs.

Of each world it draws logs with a look after each 500 decisions, and judges each look by the confidence sequences of
`tflearn.core.confidence_sequences`, as the gate does: a log whose probabilities are refuted is not judged any more, and
evidence for a candidate that is no stronger than that against the log does not count. All values are known exactly.

A world has few kinds of decisions (its context, action and reward), so that a log is drawn by their numbers, however
long it is: constant bets do not depend on the order between two looks.

- `worse`: the candidate is worse by the margin; the share of the logs in which it ever passes is printed. The worlds
  with wrong probabilities, drift and users that return are those where a test is misled.
- `equal`: the share that passes within 2.5 and 4 times the decisions n = (1.645 + 0.842)^2 Var(Y) / margin^2 of a test
  of fixed size (5%, power 80%) by the best Y_c, and the median, in n. Of sessions Y is the difference of weighted sums.

.venv/bin/python benchmarks/gate.py [--logs=2000] [--worlds NAME ...] [--json=FILE] [--seed=0]
"""

import argparse
import dataclasses
import itertools
import json
import math
import pathlib
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from tflearn.core import confidence_sequences as cs
from tflearn.core.confidence_sequences import Variable

ALPHA, SHARE = 0.05, 0.06  # the level; the margin as a share of the incumbent's value
LOOK, LONGEST, MANY = 500, 100_000, 10_000_000
_ONE = np.ones(1)


@dataclasses.dataclass(frozen=True)
class Units:
    """The kinds of units of a world, while it is as it is.

    Attributes:
      chances: of each kind, [J].
      variables: of the candidate's value less the incumbent's.
      refuters: groups of variables that refute the log; the bets of a group are averaged first.
      difference: the exact one.
      variance: of one unit in a test of fixed size.
    """

    chances: np.ndarray
    variables: Sequence[Variable]
    refuters: Sequence[Sequence[Variable]]
    difference: float
    variance: float


@dataclasses.dataclass(frozen=True)
class World:
    """A world with one candidate.

    Attributes:
      phases: what it is like at different times.
      margin: in the unit of the rewards, which are in [0, 1].
      when: the phase in which a decision is made, by its number.
      delay: the last decisions of a look, whose outcomes are not known yet and which are left out.
    """

    phases: Sequence[Units]
    margin: float
    when: Callable[[int], int] = lambda number: 0
    delay: int = 0


def one_step(
    contexts: np.ndarray,
    logged: np.ndarray,
    candidate: np.ndarray,
    incumbent: np.ndarray,
    rewards: np.ndarray,
    chances: np.ndarray,
    true: np.ndarray | None = None,
    is_known: bool = True,
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
    """
    true = logged if true is None else true
    kinds = contexts[:, np.newaxis, np.newaxis] * true[:, :, np.newaxis] * chances
    context, action, reward = np.nonzero(kinds)
    mu = logged[context, action]
    weights = [(policy / np.where(logged > 0, logged, 1.0))[context, action] for policy in (candidate, incumbent)]
    known = cs.support(candidate[context], incumbent[context], logged[context])
    columns = *(each[:, np.newaxis] for each in weights), rewards[reward][:, np.newaxis], _ONE
    variables = cs.difference(*columns, known)
    values = (chances @ rewards) * contexts[:, np.newaxis]
    of_actions = [Variable((action == a) / mu - 1, 1.0) for a in np.unique(action)]
    all_chances = kinds[context, action, reward]
    return Units(
        all_chances / all_chances.sum(),
        variables if is_known else variables[:1],
        [*([each] for each in cs.refuters(*weights, known if is_known else None)), of_actions],
        float(((candidate - incumbent) * values).sum()),
        min(_variance(all_chances, each.values) for each in variables[1:]),
    )


def _variance(chances: np.ndarray, values: np.ndarray) -> float:
    return float(chances @ values**2 - (chances @ values) ** 2)


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


def tempered(difference: float, temperature: float = 2.0, num_actions: int = 6) -> Units:
    """Returns clicks of policies that draw by logits, which a temperature divides."""
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
    return one_step(np.full(4, 0.25), incumbent, candidate, incumbent, *clicks(rates))


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
        min(_variance(all_chances, each.values) for each in found[1:]),
    )


def _compositions(total: int, parts: int) -> Iterator[tuple[int, ...]]:
    if parts == 1:
        yield (total,)
        return
    for first in range(total + 1):
        for rest in _compositions(total - first, parts - 1):
            yield (first, *rest)


def sessions(length: int, difference: float, epsilon: float = 0.5, rate: float = 0.5) -> Units:
    """Returns sessions of two actions, whose reward at the end depends on the first; the candidate differs in that."""
    changed = rate + difference * length / (1 - epsilon)
    taken = np.array(list(itertools.product((0, 1), repeat=length)))
    log = np.array([1 - epsilon / 2, epsilon / 2])
    ratios = np.ones(taken.shape)
    ratios[:, 0] = (log[::-1] / log)[taken[:, 0]]
    rates = np.where(taken[:, 0] == 1, changed, rate)
    rewards = np.zeros((2 * len(taken), length))
    rewards[len(taken) :, -1] = 1.0
    chances = np.tile(log[taken].prod(axis=1), 2) * np.r_[1 - rates, rates]
    ones = np.ones(rewards.shape)
    weights = np.tile(ratios.cumprod(axis=1), (2, 1))
    variables = cs.difference(weights, ones, rewards, np.ones(length), None)
    plain = ((weights - 1) * rewards).mean(axis=1)
    refuters = [[Variable(weights[:, -1] - 1, 1.0)]]
    return Units(chances, variables, refuters, float(chances @ plain), _variance(chances, plain))


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


def _simple(make: Callable[..., Units], margin: float, *options: Any) -> Callable[[int], World]:
    return lambda sign: World([make(*options, sign * margin)], margin)


def _good(sign: int) -> World:
    """What was never tried is good; the rest of the candidate is as bad as can be where it is to be worse."""
    return World([unsupported(0.05, sign * SHARE * 0.2, True)], SHARE * 0.2)


_MEAN_COST = float(_lognormal().mean())


def _failures(margin: float) -> Callable[[int], World]:
    """Rewards are 1 but for failures of 1% of the incumbent's decisions."""
    return lambda sign: World([shop(0.99, 3, 0.1, sign * margin, share=1.0, other=0.99)], margin)


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
}
ONLY_WORSE = [name for name in WORLDS if ' too ' in name]


def passing(world: World, looks: np.ndarray, num_logs: int, seed: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """Returns at which look each log passes, inf if at none; and at which it is refuted."""
    rng = np.random.default_rng(seed)
    shift = world.margin
    factors = [np.concatenate([each.log_factors(shift) for each in of.variables], axis=1) for of in world.phases]
    lost = np.any([np.concatenate([each.is_lost(shift) for each in of.variables]) for of in world.phases], axis=0)
    groups = [
        [np.concatenate([each.log_factors(0.0) for each in group], axis=1) for group in of.refuters]
        for of in world.phases
    ]
    lost_groups = [np.concatenate([each.is_lost(0.0) for each in group]) for group in world.phases[0].refuters]
    wealth = np.zeros((num_logs, factors[0].shape[1]))
    against = [np.zeros((num_logs, each.shape[1])) for each in groups[0]]
    passed, refuted = np.full(num_logs, np.inf), np.full(num_logs, np.inf)
    before = 0
    for look in looks.tolist():
        end = look - world.delay
        for phase, count in _counts(world, before, end):
            drawn = rng.multinomial(count, world.phases[phase].chances, num_logs).astype(float)
            wealth += drawn @ factors[phase]
            for total, group in zip(against, groups[phase], strict=True):
                total += drawn @ group
        before = max(before, end)
        means = [_log_mean(total, which) for total, which in zip(against, lost_groups, strict=True)]
        doubt = _log_mean(np.stack(means, axis=1), np.zeros(len(means), bool))
        evidence = _log_mean(wealth, lost) - np.maximum(doubt, 0.0)
        open_logs = np.isinf(passed) & np.isinf(refuted)
        refuted[open_logs & (doubt >= -math.log(ALPHA))] = look
        passed[open_logs & np.isinf(refuted) & (evidence >= -math.log(ALPHA))] = look
        if not (np.isinf(passed) & np.isinf(refuted)).any():
            break
    return passed, refuted


def _counts(world: World, begin: int, end: int) -> Iterator[tuple[int, int]]:
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


def _log_mean(logs: np.ndarray, lost: np.ndarray) -> np.ndarray:
    """Returns the log of the mean of exponentials over the last axis, in which some are lost."""
    kept = logs[:, ~lost]
    most = kept.max(axis=1, keepdims=True)
    return most[:, 0] + np.log(np.exp(kept - most).sum(axis=1)) - math.log(logs.shape[1])


def judged(name: str, num_logs: int, seed: int) -> dict[str, Any]:
    """Returns the figures of one world."""
    make, index = WORLDS[name], list(WORLDS).index(name)
    worse = make(-1)
    found: dict[str, Any] = {'difference': [of.difference for of in worse.phases], 'margin': worse.margin}
    passed, refuted = passing(worse, np.arange(LOOK, LONGEST + 1, LOOK), num_logs, [seed, index, 0])
    found['worse'] = {'passes': int(np.isfinite(passed).sum()), 'refuted': int(np.isfinite(refuted).sum())}
    if name in ONLY_WORSE:
        return found
    equal = make(0)
    needed = 6.1845 * float(np.mean([of.variance for of in equal.phases])) / equal.margin**2
    found['needed'] = needed
    means = [[float(of.chances @ each.values) for each in of.variables] for of in equal.phases]
    if needed > MANY or max(np.mean(means, axis=0)) <= -equal.margin:
        return found  # "not decided" is right: too few decisions, or no support for more than the margin
    looks = np.unique(np.round(np.linspace(0.05, 4.0, 80) * needed).astype(int))
    if len(equal.phases) > 1:  # at most so many decisions are drawn one piece after the other
        looks = looks[looks <= 2_000_000]
    passed, refuted = passing(equal, looks, num_logs, [seed, index, 1])
    found['equal'] = {
        'within 2.5': float((passed <= 2.5 * needed).mean()),
        'within 4': float(np.isfinite(passed).mean()),
        'median': float(np.median(passed) / needed),
        'refuted': int(np.isfinite(refuted).sum()),
    }
    return found


def main() -> None:
    """Runs the benchmark and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--logs', type=int, default=2_000, help='logs of each world')
    parser.add_argument('--worlds', nargs='+', choices=WORLDS, default=list(WORLDS))
    parser.add_argument('--json', type=pathlib.Path, help='a file for the numbers')
    parser.add_argument('--seed', type=int, default=0)
    options = parser.parse_args()
    print(f'{options.logs} logs of each world, level {ALPHA:.0%}, seed {options.seed}')
    print('| world | worse: passes | log refuted | n | equal: within 2.5 n | within 4 n | median [n] |')
    print('|---|---|---|---|---|---|---|')
    rows = {}
    for name in options.worlds:
        begun = time.monotonic()
        rows[name] = row = judged(name, options.logs, options.seed)
        cells = [f'{row["worse"]["passes"] / options.logs:.1%}', f'{row["worse"]["refuted"] / options.logs:.1%}']
        cells.append(f'{row["needed"]:,.0f}' if 'needed' in row else '')
        equal = row.get('equal')
        if equal:
            cells += [f'{equal["within 2.5"]:.0%}', f'{equal["within 4"]:.0%}', f'{equal["median"]:.2f}']
        else:
            cells += ['', '', '']
        print(f'| {name} | {" | ".join(cells)} |', flush=True)
        print(f'{name}: {time.monotonic() - begun:.1f} s', file=sys.stderr)
    if options.json:
        facts = {'logs': options.logs, 'level': ALPHA, 'seed': options.seed}
        options.json.write_text(json.dumps({**facts, 'worlds': rows}, indent=2) + '\n')


if __name__ == '__main__':
    main()
