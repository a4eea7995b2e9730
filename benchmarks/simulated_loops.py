"""The news page and the compiler of `product_loop` in one process: what does the gate cost, over many seeds?

The worlds, their drift, the verdicts, their levels and what waits are those of `product_loop`; there is no server and
no program, and a least-squares fit of a round's data stands for the agent, so that a loop takes seconds. Each round
trains on the decisions of the round before and on what is not held out of its own, as `tflearn loop` does with a
server's files. Compared are greedy policies by their regret with the sessions of the next round, with and without gate.

.venv/bin/python -m benchmarks.simulated_loops [--world=news] [--seeds=5] [--rounds=10] [--json=FILE]
"""

import collections
import dataclasses
import itertools
import sys
import time
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from benchmarks import command_line, product_worlds
from tflearn.core import confidence_sequences
from tflearn.extensions.product import gate, steps
from tflearn.extensions.product.scaled_log import GateOptions, LoggedEpisodes, Through
from tflearn.extensions.tasks import inlining, recommender

EPSILON, NUM_JUDGED, RIDGE = 0.3, 2_000, 1.0


@dataclasses.dataclass
class Log:
    """Sessions: what was seen of each, the choices [N, T], their log-probabilities [N, T], and the returns [N].

    `seen` are arrays [N, ...], and `served` the greedy choices of what has logged, [N, T].
    """

    seen: tuple[np.ndarray, ...]
    actions: np.ndarray
    log_behaviour: np.ndarray
    served: np.ndarray
    returns: np.ndarray

    def where(self, index: np.ndarray) -> 'Log':
        """Returns a part."""
        arrays = (getattr(self, each.name)[index] for each in dataclasses.fields(self)[1:])
        return Log(tuple(each[index] for each in self.seen), *arrays)


def joined(logs: list[Log]) -> Log:
    """Returns several logs as one."""
    arrays = (np.concatenate([getattr(log, each.name) for log in logs]) for each in dataclasses.fields(Log)[1:])
    return Log(tuple(map(np.concatenate, zip(*(log.seen for log in logs), strict=True))), *arrays)


Policy = Callable[[tuple[np.ndarray, ...]], np.ndarray]  # what was seen -> greedy choices [N, T]


class World(Protocol):
    """A world of `product_loop`, with a learner."""

    choices: int
    steps: int
    margin: float
    reward_range: tuple[float, float]

    def log(self, random: np.random.Generator, number: int, sessions: int, policy: Policy | None) -> Log:
        """Plays sessions of a round with a policy and random choices; None draws all of them."""

    def train(self, log: Log) -> Policy:
        """Fits a policy."""

    def regret(self, policy: Policy, number: int) -> float:
        """Returns how much less the greedy choices earn than the best, with the sessions of a round."""


def explored(random: np.random.Generator, greedy: np.ndarray, choices: int, epsilon: float) -> np.ndarray:
    """Returns the choices, some of which are random."""
    drawn = random.integers(0, choices, greedy.shape)
    return np.where(random.random(greedy.shape) < epsilon, drawn, greedy)


def log_probability(actions: np.ndarray, greedy: np.ndarray, choices: int, epsilon: float = EPSILON) -> np.ndarray:
    """Returns those of a greedy policy as it is served."""
    return np.log((1 - epsilon) * (actions == greedy) + epsilon / choices)


def least_squares(features: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """Returns the coefficients."""
    return np.linalg.solve(features.T @ features + RIDGE * np.eye(features.shape[1]), features.T @ targets)


class News:
    """One of 10 candidates of `num_items`; the learner fits the product of reader and item."""

    choices, steps, margin = 10, product_worlds.News.steps, product_worlds.News.margin
    reward_range = -1.5, 1.5

    def __init__(self, num_items: int = 200, drift: float = 0.15):
        """Takes the number of items, and the drift in a round [radians]."""
        self._items, self._drift = recommender.embeddings(num_items), drift

    @staticmethod
    def on_path(table: np.ndarray, actions: np.ndarray) -> np.ndarray:
        """Returns the greedy choices in what a session has come to."""
        del actions
        return table

    def _readers(self, random: np.random.Generator, number: int, count: int) -> tuple[np.ndarray, ...]:
        tastes = random.normal(size=(count, self._items.shape[1]))
        tastes /= np.linalg.norm(tastes, axis=1, keepdims=True)
        candidates = np.argsort(random.random((count, len(self._items))), axis=1)[:, : self.choices]
        return tastes, recommender.turned(tastes, self._drift * (number - 1)), candidates

    def log(self, random: np.random.Generator, number: int, sessions: int, policy: Policy | None) -> Log:
        """See `World`."""
        tastes, *seen = self._readers(random, number, sessions)
        greedy = policy(tuple(seen)) if policy else np.zeros((sessions, 1), int)
        epsilon = EPSILON if policy else 1.0
        actions = explored(random, greedy, self.choices, epsilon)
        items = self._items[np.take_along_axis(seen[1], actions, axis=1)[:, 0]]
        rewards = (items * tastes).sum(axis=1) + 0.1 * random.normal(size=sessions)
        return Log(tuple(seen), actions, log_probability(actions, greedy, self.choices, epsilon), greedy, rewards)

    def train(self, log: Log) -> Policy:
        """See `World`."""
        users, candidates = log.seen
        items = self._items[np.take_along_axis(candidates, log.actions, axis=1)[:, 0]]
        features = (users[:, :, np.newaxis] * items[:, np.newaxis]).reshape(len(users), -1)
        product = least_squares(features, log.returns).reshape(users.shape[1], -1)

        def policy(seen: tuple[np.ndarray, ...]) -> np.ndarray:
            scores = np.einsum('nf,nkf->nk', seen[0] @ product, self._items[seen[1]])
            return scores.argmax(axis=1)[:, np.newaxis]

        return policy

    def regret(self, policy: Policy, number: int) -> float:
        """See `World`."""
        tastes, *seen = self._readers(np.random.default_rng(12345 + number), number, NUM_JUDGED)
        values = np.einsum('nf,nkf->nk', tastes, self._items[seen[1]])
        found = np.take_along_axis(values, policy(tuple(seen)), axis=1)[:, 0]
        return float((values.max(axis=1) - found).mean())


class Inlining:
    """Programs of two calls, each of which may be inlined; the functions grow from round to round.

    What is seen of a session is what each of its histories of choices shows: after none, 0 and 1.
    """

    choices, steps, margin = 2, product_worlds.Inlining.steps, product_worlds.Inlining.margin
    worst = -10.0
    reward_range = worst, 100.0
    _FUNCTIONS, _SIZE, _DRIFT, _POOL = 6, 2.5, 0.15, 5_000

    def __init__(self) -> None:
        """Has drawn no program yet."""
        self._pools: dict[int, Any] = {}

    def _pool(self, number: int) -> Any:
        """Returns the programs of a round, of which sessions are drawn."""
        if number not in self._pools:
            self._pools[number] = self._programs(np.random.default_rng(12345 + number), number, self._POOL)
        return self._pools[number]

    def _programs(
        self, random: np.random.Generator, number: int, count: int
    ) -> tuple[tuple[np.ndarray, ...], np.ndarray]:
        """Returns the features of the first call, and of the second one by the first choice; and all returns."""
        program = inlining.Inlining(self._FUNCTIONS, self.steps, self._SIZE + self._DRIFT * (number - 1))
        shown, returns = [], np.zeros((count, 2, 2))
        for i, seed in enumerate(random.integers(1 << 31, size=count)):
            rows = []
            for first, second in itertools.product((0, 1), repeat=2):
                begin, _ = program.reset(seed=int(seed))
                after, *_ = program.step(first)
                returns[i, first, second] = max(program.step(second)[1], self.worst)
                if not second:
                    rows += [_numbers(begin), _numbers(after)][first:]
            shown.append(rows)
        features = np.array(shown)
        return (features[:, 0], features[:, 1], features[:, 2]), returns

    def log(self, random: np.random.Generator, number: int, sessions: int, policy: Policy | None) -> Log:
        """See `World`."""
        index, (seen, returns) = random.integers(0, self._POOL, sessions), self._pool(number)
        seen, returns, every = tuple(each[index] for each in seen), returns[index], np.arange(sessions)
        epsilon = EPSILON if policy else 1.0
        table = policy(seen) if policy else np.zeros((sessions, 3), int)  # of the first call; the second by the first
        first = explored(random, table[:, :1], 2, epsilon)
        second = explored(random, np.take_along_axis(table, 1 + first, axis=1), 2, epsilon)
        actions = np.hstack([first, second])
        log_behaviour = log_probability(actions, self.on_path(table, actions), 2, epsilon)
        return Log(
            seen, actions, log_behaviour, self.on_path(table, actions), returns[every, actions[:, 0], actions[:, 1]]
        )

    @staticmethod
    def on_path(table: np.ndarray, actions: np.ndarray) -> np.ndarray:
        """Returns the greedy choices in what a session has come to."""
        return np.hstack([table[:, :1], np.take_along_axis(table, 1 + actions[:, :1], axis=1)])

    def train(self, log: Log) -> Policy:
        """See `World`: values of each choice by the returns that followed."""
        first, second = log.actions.T
        every = np.arange(len(first))
        after = np.stack(log.seen[1:], axis=1)[every, first]
        values = [least_squares(after[second == a], log.returns[second == a]) for a in (0, 1)]
        begin = [least_squares(log.seen[0][first == a], log.returns[first == a]) for a in (0, 1)]

        def policy(seen: tuple[np.ndarray, ...]) -> np.ndarray:
            better = lambda rows, of: (rows @ of[1] > rows @ of[0]).astype(int)  # noqa: E731
            return np.stack([better(seen[0], begin), *(better(rows, values) for rows in seen[1:])], axis=1)

        return policy

    def regret(self, policy: Policy, number: int) -> float:
        """See `World`."""
        seen, returns = self._pool(number)
        table = policy(seen)
        first = table[:, 0]
        found = returns[np.arange(len(first)), first, np.take_along_axis(table, 1 + first[:, np.newaxis], axis=1)[:, 0]]
        return float((returns.max(axis=(1, 2)) - found).mean())


def _numbers(observation: dict[str, np.ndarray]) -> np.ndarray:
    """Returns the logarithms of what is shown of a call, their products, and 1."""
    of = {name: float(value) for name, value in observation.items()}
    single = float(of['callee_users'] == 1)
    body = of['cost_estimate'] * max(0.0, 1 - 0.15 * of['constant_args'])
    growth = body - of['call_argument_setup'] - single * of['cost_estimate']
    sizes = [of[name] for name in ('cost_estimate', 'callee_users', 'call_argument_setup')]
    logs = [np.sign(size) * np.log1p(abs(size)) for size in (*sizes, growth)]
    base = np.array([1.0, single, of['constant_args'], *logs])
    return np.concatenate([base, np.outer(base, base)[np.triu_indices(len(base), 1)][len(base) - 1 :]])


@dataclasses.dataclass
class Candidate:
    """A policy of the round `number`, and what judges it; `new_train` are the sessions of its round that do not."""

    number: int
    policy: Policy
    level: float
    evidence: list[Log]
    new_train: Log | None = None


def verdict(world: Any, candidate: Candidate, incumbent: Policy, serving: Policy) -> gate.Verdict:
    """Returns what `tflearn promote` would say."""
    first, *rest = candidate.evidence
    through = None
    if incumbent is not serving and candidate.new_train:
        later = logged(world, joined(rest), candidate.policy, incumbent) if rest else None
        others = logged(world, candidate.new_train, serving, incumbent)
        through = Through(logged(world, first, candidate.policy, serving), others, later)
    low, high = world.reward_range
    return gate.judge(
        logged(world, joined(candidate.evidence), candidate.policy, incumbent),
        GateOptions(margin=world.margin, level=candidate.level, low=low, high=high, whole=world.steps > 1),
        through,
    )


def logged(world: Any, log: Log, candidate: Policy, incumbent: Policy) -> LoggedEpisodes:
    """Returns what the gate takes, as `promotion.logged_episodes` does."""
    random = 1 / world.choices
    greedy = [world.on_path(policy(log.seen), log.actions) for policy in (candidate, incumbent)]
    weights = [log_probability(log.actions, each, world.choices) - log.log_behaviour for each in greedy]
    of_all = [(1 - EPSILON) * np.eye(world.choices)[each] + EPSILON * random for each in (*greedy, log.served)]
    known = greatest = None
    if world.steps == 1:
        known = confidence_sequences.support(*(each[:, 0] for each in of_all))
    else:
        greatest = (of_all[1] / of_all[2]).max(axis=2)
    rewards = np.zeros(log.actions.shape)
    rewards[:, -1] = np.clip(log.returns, *world.reward_range)
    return LoggedEpisodes(
        rewards,
        np.ones(rewards.shape, bool),
        *weights,
        known=known,
        actions=log.actions,
        log_behaviour=log.log_behaviour,
        log_even=np.full(rewards.shape, np.log(random)),
        greatest=greatest,
    )


def run(world: Any, seed: int, rounds: int, sessions: int, held_out: float, its_rounds: int) -> dict[str, list]:
    """Returns the regret after each round, and which candidates were promoted; `held_out` 0 is no gate.

    Args:
      its_rounds: in how many rounds what is held out judges.
    """
    random, settings = np.random.default_rng(seed), steps.Gate(held_out_rounds=its_rounds)
    before = world.log(random, 1, 2 * sessions, None)
    # What judges, the newest last, and what of the round before does not yet train; with one round it does.
    kept, trains = collections.deque[Log](maxlen=its_rounds), np.ones(2 * sessions, bool)
    others = collections.deque[bool](maxlen=its_rounds)  # whether one waited
    if its_rounds > 1:
        trains = np.random.default_rng([seed, 1]).random(2 * sessions) >= held_out
        kept.append(before.where(~trains))
    serving = best = world.train(before.where(trains))  # the first one, before which there is none
    waiting: Candidate | None = None
    found: dict[str, list] = {'served': [world.regret(serving, 2)], 'promoted': [1], 'waits': [None]}
    for number in range(2, rounds + 1):
        new = world.log(random, number, sessions, serving)
        is_held_out = np.random.default_rng([seed, number]).random(sessions) < held_out
        kept.append(new.where(is_held_out))
        others.append(waiting is not None)
        promoted = None
        judged = [dataclasses.replace(waiting, evidence=[*waiting.evidence, new])] if waiting else []
        while not waiting or judged:
            if not judged:
                policy = world.train(joined([before.where(trains), new.where(~is_held_out)]))
                level, new_train = settings.level_of(number, sum(others)), new.where(~is_held_out)
                judged.append(Candidate(number, policy, level, [*kept], new_train if its_rounds == 1 else None))
            candidate, waiting = judged.pop(), None
            if held_out:
                said = verdict(world, candidate, best, serving)
                is_best = said.difference.low > 0
                if best is not serving and said.passes:
                    said = verdict(world, candidate, serving, serving)
                left = (candidate.number + settings.max_rounds - 1 - number) * sessions
                waiting = candidate if said.needed is not None and said.needed <= left else None
            if not held_out or said.passes:
                serving, promoted = candidate.policy, candidate.number
                best = serving if not held_out or is_best else best
            if candidate.number == number:
                break
        before, trains = new, ~is_held_out | (its_rounds == 1)
        found['served'].append(world.regret(serving, number + 1))
        found['promoted'].append(promoted)
        found['waits'].append(waiting and waiting.number)
    return found


def main() -> None:
    """Runs the loops that the file does not have; prints the regrets by rounds."""
    parser = command_line.parser(__doc__, 'keeps what came of each loop; a further call continues')
    parser.add_argument('--world', choices=['news', 'inlining'], default='news')
    parser.add_argument('--sessions', type=int, help='of a round; default: 20,000 readers, 4,000 programs')
    parser.add_argument('--held_out', type=float, nargs='+', default=[0.5], help='shares for the gate')
    parser.add_argument('--held_out_rounds', type=int, default=1, help='in which what is held out judges')
    parser.add_argument('--margin', type=float, help="of the gate; default: the world's")
    parser.add_argument('--rounds', type=int, default=10)
    parser.add_argument('--seeds', type=int, default=5)
    options = parser.parse_args()
    world: Any = News() if options.world == 'news' else Inlining()
    world.margin = world.margin if options.margin is None else options.margin
    sessions = options.sessions or {'news': 20_000, 'inlining': 4_000}[options.world]
    found: dict[str, Any] = command_line.kept(options.json)
    regrets: dict[float, list] = {}
    for seed, share in itertools.product(range(1, options.seeds + 1), [0.0, *options.held_out]):
        its_rounds = options.held_out_rounds if share else 1
        held_out = f'{share} held out' + (f' for {its_rounds} rounds' if its_rounds > 1 else '')
        key = f'{options.world}, {sessions} sessions, {held_out}, margin {world.margin}, seed {seed}'
        if key not in found:
            begun = time.monotonic()
            found[key] = run(world, seed, options.rounds, sessions, share, its_rounds)
            command_line.write(options.json, found)
            print(f'{key}: {time.monotonic() - begun:.1f} s', found[key], file=sys.stderr, flush=True)
        regrets.setdefault(share, []).append(found[key]['served'])
    for share in options.held_out:
        paired(np.array(regrets[share]), np.array(regrets[0.0]), share)


def paired(gated: np.ndarray, always: np.ndarray, share: float) -> None:
    """Prints regrets [seeds, rounds] and their paired differences: the median, and the range over the seeds."""
    print(f'| users of round | with the gate, {share} held out | without it | difference |\n|---|---|---|---|')
    for i in [*range(gated.shape[1]), slice(None)]:
        both = [each[:, i].reshape(len(each), -1).mean(axis=1) for each in (gated, always)]
        difference = both[0] - both[1]
        name = 'all' if isinstance(i, slice) else i + 2
        interval = f'{np.median(difference):+.4f} [{difference.min():+.4f}, {difference.max():+.4f}]'
        print(f'| {name} | {both[0].mean():.4f} | {both[1].mean():.4f} | {interval} |')


if __name__ == '__main__':
    main()
