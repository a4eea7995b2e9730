"""Loops of ten rounds in a small world: how often do they ever promote a policy that is worse by more than the margin?

Each round logs decisions of what serves, with 30% random ones, and joins them with their outcomes by the loop's own
join: what comes after the window, or is not known when the round ends, has no reward. Half of the decisions
(`--held_out`) train a candidate, the other half (of `--held_out_rounds` rounds) judge it by
`tflearn.extensions.product.gate`, with the round's share of the level, against what serves and against the best version
so far, as `tflearn promote` does; the latter also through what serves, by those that train it, unless what is held out
judges for several rounds. A candidate that is not decided is judged further by all decisions of the next round, which
trains another one once it is. All values are known exactly.

- `learned`: the candidate has the highest estimated rewards; in every other round it is one of `worse`.
- `worse`: the candidate is worse than what serves by the margin and a hundredth of it, in every round.
- `ratchet`: it is worse by half of the margin, which may pass; many of them in a row must not.

In each of them rates of clicks drift from round to round, and clicks of what serves come later than those of others.

.venv/bin/python -m benchmarks.gate_loops [--loops=100] [--rounds=10] [--decisions=20000] [--seed=0] [--json=FILE]
"""

import collections
import dataclasses
import pathlib
import sys
import time
from collections.abc import Sequence

import numpy as np

from benchmarks import command_line
from tflearn.core import confidence_sequences
from tflearn.extensions.product import gate, steps
from tflearn.extensions.product.log_report import Report
from tflearn.extensions.product.outcomes import OutcomeOptions, Outcomes
from tflearn.extensions.product.scaled_log import GateOptions, LoggedEpisodes, Through

CONTEXTS, ACTIONS, EPSILON, WINDOW_SECS = 4, 3, 0.3, 300.0
MARGIN, DRIFT = 0.04, 0.02
ALONE = 'ratchet, not compared with the best'
# How much worse candidates are than what serves, in margins.
KINDS = {'learned': 1.01, 'worse': 1.01, 'ratchet': 0.5, ALONE: 0.5}
_ROWS = np.dtype([(name, 'u8' if name == 'id' else 'f8') for name in ('id', 'time', 'reward')] + [
    ('bad', '?'), ('activated', '?'), ('has_outcome', '?'), ('row', 'i8'), ('action', 'i8'), ('context', 'i8')
])  # fmt: skip
_OUTCOMES = Outcomes(OutcomeOptions([]), Report(), [], {}).dtype


@dataclasses.dataclass
class World:
    """Clicks of a shop: `rates` of being clicked ever, and mean seconds until then, each [C, A]."""

    rng: np.random.Generator
    rates: np.ndarray
    delays: np.ndarray

    def values(self) -> np.ndarray:
        """Returns the probability of a click within the window, [C, A]."""
        return self.rates * (1 - np.exp(-WINDOW_SECS / self.delays))

    def value(self, policy: np.ndarray) -> float:
        """Returns the expected reward of a policy as it is served, of probabilities [C, A]."""
        return float((served(policy) * self.values()).sum() / CONTEXTS)

    def drift(self) -> None:
        """Changes the rates a little."""
        self.rates = np.clip(self.rates + self.rng.normal(0, DRIFT, self.rates.shape), 0.05, 0.6)

    def log(self, policy: np.ndarray, begin: float, count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Returns decisions of a policy, one a second, the probabilities of all actions, and their outcomes."""
        rows = np.zeros(count, _ROWS)
        rows['id'] = rows['row'] = np.arange(count) + int(begin)
        rows['activated'] = True
        rows['time'], rows['context'] = begin + np.arange(count), self.rng.integers(0, CONTEXTS, count)
        all_of = served(policy)[rows['context']]
        sums = all_of.cumsum(axis=1)
        rows['action'] = np.minimum((self.rng.random((count, 1)) >= sums).sum(axis=1), ACTIONS - 1)
        clicked = self.rng.random(count) < self.rates[rows['context'], rows['action']]
        outcomes = np.zeros(clicked.sum(), _OUTCOMES)
        late = self.rng.exponential(self.delays[rows['context'], rows['action']])
        outcomes['id'], outcomes['time'] = rows['id'][clicked], (rows['time'] + late)[clicked]
        outcomes['reward'], outcomes['double'] = 1.0, rows['id'][clicked]
        return rows, all_of, outcomes


def served(policy: np.ndarray) -> np.ndarray:
    """Returns the probabilities with random actions among them."""
    return (1 - EPSILON) * policy + EPSILON / ACTIONS


def joined(rows: np.ndarray, outcomes: np.ndarray, until: float) -> np.ndarray:
    """Returns the decisions whose windows are closed, with their rewards."""
    options = OutcomeOptions([], window_secs=WINDOW_SECS, default_reward=0.0, until=until)
    join = Outcomes(options, Report(), [pathlib.Path(__file__)], {})
    (decisions,) = join.watched([rows.copy()])
    found = join.join(decisions, outcomes)
    return found[~found['bad']]


def log_of(rows: np.ndarray, logged: np.ndarray, candidate: np.ndarray, incumbent: np.ndarray) -> LoggedEpisodes:
    """Returns what the gate takes, as `promotion.logged_episodes` does; `logged` are probabilities [N, A]."""
    action, both = rows['action'][:, np.newaxis], [served(each)[rows['context']] for each in (candidate, incumbent)]
    taken = [np.log(np.take_along_axis(each, action, axis=1)) for each in (*both, logged)]
    return LoggedEpisodes(
        rows['reward'][:, np.newaxis],
        np.ones((len(rows), 1), bool),
        taken[0] - taken[2],
        taken[1] - taken[2],
        known=confidence_sequences.support(*both, logged),
        actions=action,
        log_behaviour=taken[2],
        log_even=np.full((len(rows), 1), -np.log(ACTIONS)),
    )


@dataclasses.dataclass
class Candidate:
    """A policy of the round `number`, and the parts of the log that judge it, with the probabilities of all actions.

    `new_train` are the round's decisions that are not held out; None compares the candidate with the best version
    directly.
    """

    number: int
    policy: np.ndarray
    level: float
    parts: tuple[tuple[np.ndarray, np.ndarray], ...]
    new_train: tuple[np.ndarray, np.ndarray] | None = None

    def seen(self, rows: np.ndarray, logged: np.ndarray) -> 'Candidate':
        """Returns the candidate with more decisions."""
        return dataclasses.replace(self, parts=(*self.parts, (rows, logged)))

    def judge(self, serving: np.ndarray, best: np.ndarray, compares_best: bool) -> tuple[str, bool, int | None]:
        """Returns the outcome, whether it is proved to be better than the best one so far, and what is needed."""
        options = GateOptions(margin=MARGIN, level=self.level, low=0.0, high=1.0)
        (rows, logged), through = all_of(self.parts), None
        if best is not serving and self.new_train:
            first, *rest = self.parts
            later = log_of(*all_of(rest), self.policy, best) if rest else None
            others = log_of(*self.new_train, serving, best)
            through = Through(log_of(*first, self.policy, serving), others, later)
        verdict = gate.judge(log_of(rows, logged, self.policy, best), options, through)
        is_better = verdict.difference.low > 0
        if best is not serving and (verdict.passes or not compares_best):
            verdict = gate.judge(log_of(rows, logged, self.policy, serving), options)
        return verdict.outcome, is_better, verdict.needed


def all_of(parts: Sequence[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, ...]:
    """Returns several parts of a log as one."""
    return tuple(np.concatenate(each) for each in zip(*parts, strict=True))


def worse_by(world: World, policy: np.ndarray, loss: float) -> np.ndarray:
    """Returns a policy that takes the worst action in a share of the decisions, so that it loses exactly so much."""
    worst = np.eye(ACTIONS)[world.values().argmin(axis=1)]
    share = loss / (world.value(policy) - world.value(worst))
    return (1 - share) * policy + share * worst if 0 <= share <= 1 else policy


def run(kind: str, seed: int, rounds: int, decisions: int, settings: steps.Gate) -> collections.Counter[str]:
    """Returns how often candidates of a loop were promoted, and how often these were worse by more than the margin."""
    kept = collections.deque[tuple[np.ndarray, np.ndarray]](maxlen=settings.held_out_rounds)
    others = collections.deque[bool](maxlen=settings.held_out_rounds)  # whether one waited
    rng = np.random.default_rng([seed, list(KINDS).index(kind)])
    shape = CONTEXTS, ACTIONS
    world = World(rng, rng.uniform(0.1, 0.4, shape), WINDOW_SECS * rng.uniform(0.1, 1.5, shape))
    serving = np.eye(ACTIONS)[(world.values() + rng.normal(0, 0.05, shape)).argmax(axis=1)]
    best, before, found = serving, [serving], collections.Counter[str]()
    rows, logged, outcomes = np.zeros(0, _ROWS), np.zeros((0, ACTIONS)), np.zeros(0, _OUTCOMES)
    totals = np.zeros((2, *shape))
    waiting: Candidate | None = None
    for number in range(1, rounds + 1):
        world.drift()
        new = world.log(serving, 1.0 + (number - 1) * decisions, decisions)
        rows, logged, outcomes = (np.concatenate(both) for both in zip((rows, logged, outcomes), new, strict=True))
        closed = joined(rows, outcomes, 1.0 + number * decisions)
        mine, rows = np.isin(rows['id'], closed['id']), rows[len(closed) :]
        probabilities, logged = logged[mine], logged[len(closed) :]
        held_out = closed['id'] * np.uint64(2654435761) % np.uint64(1 << 32) < int(settings.held_out * (1 << 32))
        kept.append((closed[held_out], probabilities[held_out]))
        others.append(waiting is not None)
        train = closed[~held_out]
        np.add.at(totals, (0, train['context'], train['action']), train['reward'])
        np.add.at(totals, (1, train['context'], train['action']), 1.0)
        judged = [waiting.seen(closed, probabilities)] if waiting else []
        while True:
            if not judged:  # the next one
                policy = worse_by(world, serving, KINDS[kind] * MARGIN)
                if kind == 'learned' and number % 2:
                    policy = np.eye(ACTIONS)[(totals[0] / np.maximum(totals[1], 1)).argmax(axis=1)]
                new_train = (train, probabilities[~held_out]) if kept.maxlen == 1 else None
                level = settings.level_of(number, sum(others))
                judged.append(Candidate(number, policy, level, tuple(kept), new_train))
            candidate = judged.pop()
            outcome, is_better, needed = candidate.judge(serving, best, kind != ALONE)
            left = candidate.number + settings.max_rounds - 1 - number
            waiting = candidate if needed is not None and needed <= left * decisions else None
            if outcome == 'passes':
                value = world.value(candidate.policy)
                loss = world.value(serving) - value, world.value(best) - value
                most = max(map(world.value, before)) - value
                found.update(promoted=1, serving=loss[0] > MARGIN, best=loss[1] > MARGIN, ever=most > MARGIN)
                found['later'] += candidate.number < number
                serving, best = candidate.policy, candidate.policy if is_better else best
                before.append(serving)
            if waiting or candidate.number == number:
                break
    return found


def main() -> None:
    """Runs the loops that the file does not have, and prints how many of all did what."""
    parser = command_line.parser(__doc__, 'keeps what came of each loop; a further call continues')
    parser.add_argument('--loops', type=int, default=100, help='of each kind')
    parser.add_argument('--rounds', type=int, default=10)
    parser.add_argument('--decisions', type=int, default=20_000, help='of a round')
    parser.add_argument('--held_out', type=float, default=0.5, help='the share for the gate')
    parser.add_argument('--held_out_rounds', type=int, default=1, help='in which what is held out judges')
    parser.add_argument('--kinds', nargs='+', choices=KINDS, default=list(KINDS))
    parser.add_argument('--seed', type=int, default=0)
    options = parser.parse_args()
    settings = steps.Gate(held_out=options.held_out, held_out_rounds=options.held_out_rounds)
    rolling = f', {settings.held_out} held out for {settings.held_out_rounds}' if settings.held_out_rounds > 1 else ''
    found: dict[str, dict[str, int]] = command_line.kept(options.json)
    print(f'{options.loops} loops of {options.rounds} rounds of {options.decisions} decisions, margin {MARGIN}')
    print('| candidates | promoted | loops that promote what is worse by more than the margin than what serves '
          '| than the best so far | than any before |\n|---|---|---|---|---|')  # fmt: skip
    for kind in options.kinds:
        of = []
        for seed in range(options.seed, options.seed + options.loops):
            key = f'{kind}, {options.rounds} rounds of {options.decisions}{rolling}, seed {seed}'
            if key not in found:
                begun = time.monotonic()
                its = run(kind, seed, options.rounds, options.decisions, settings)
                found[key] = {name: int(n) for name, n in its.items()}
                command_line.write(options.json, found)
                print(f'{key}: {time.monotonic() - begun:.1f} s', file=sys.stderr)
            of.append(found[key])
        worse = (sum(each.get(name, 0) > 0 for each in of) for name in ('serving', 'best', 'ever'))
        print(f'| {kind} | {sum(each.get("promoted", 0) for each in of)} | {" | ".join(map(str, worse))} |', flush=True)


if __name__ == '__main__':
    main()
