"""A product that learns a price from a log of even prices, in two worlds whose best prices are known.

Customers value what they buy at v = 0.5 + 0.3 u, of which u, drawn evenly from [-1, 1], is known. A price a, 0 to 1,
is the reward of a sale, which has the probability

    slope   1 - a / (2 v), at least 0: the best price is v
    step    0.9 for a <= v, else 0.1: the best price is v, and a bit more is the worst

Of each seed a linear bandit with smoothed centres is trained on one log, and another log judges it: the estimates of
`tflearn-evaluate --data` for it, for the best of the same centres whatever the customer (by the first log), and for the
even prices; and the gate of `tflearn promote`, for it against each of both, with a margin of 0.01. Values are exact, by
integrals. With `vowpalwabbit` installed its `--cats` is trained on the same logs.

.venv/bin/python -m benchmarks.smoothing [--seeds=100] [--decisions=2000] [--json=FILE]
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
from tf_agents.specs import tensor_spec
from tf_agents.trajectories import policy_step, trajectory
from tf_agents.trajectories import time_step as ts

from benchmarks import command_line
from tflearn.agents import linear_bandit
from tflearn.agents.smoothing import Smoothing
from tflearn.core import confidence_sequences
from tflearn.core.train_step import create_train_step
from tflearn.core.types import EnvironmentSpecs
from tflearn.extensions.product import evaluation, gate
from tflearn.extensions.product.evaluation import OpeOptions, RecordedSteps
from tflearn.extensions.product.scaled_log import GateOptions, LoggedEpisodes

CENTRES, BANDWIDTH, MARGIN = 16, 0.05, 0.01
SALES: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    'slope': lambda u, a: np.maximum(1 - a / (1 + 0.6 * u), 0.0),
    'step': lambda u, a: np.where(a <= 0.5 + 0.3 * u, 0.9, 0.1),
}
_SPECS = EnvironmentSpecs(
    tensor_spec.BoundedTensorSpec((1,), tf.float32, -1.0, 1.0, 'u'),
    tensor_spec.BoundedTensorSpec((), tf.float32, 0.0, 1.0, 'price'),
)
_ENDS = np.clip([(np.arange(CENTRES) + 0.5) / CENTRES + side * BANDWIDTH for side in (-1, 1)], 0.0, 1.0).round(9)
_EDGES = np.unique(np.append(_ENDS.ravel(), (0.0, 1.0)))  # between two of them all densities are the same
_SIZES, _PRICES = np.diff(_EDGES), np.linspace(0.0005, 0.9995, 1_000)
_U = np.linspace(-0.995, 0.995, 200)

# Takes u [N]; returns the probability of each centre, [N, K].
Policy = Callable[[np.ndarray], np.ndarray]


def density(policy: Policy, u: np.ndarray, prices: np.ndarray) -> np.ndarray:
    """Returns the densities of prices [N, P] for customers [N]."""
    low, high = _ENDS
    within = (low <= prices[..., np.newaxis]) & (prices[..., np.newaxis] <= high)
    return np.asarray((within / (high - low) * policy(u)[:, np.newaxis]).sum(axis=2))


def value(world: str, policy: Policy) -> float:
    """Returns the exact value."""
    prices = np.broadcast_to(_PRICES, (len(_U), len(_PRICES)))
    of = density(policy, _U, prices)
    return float(
        (of / of.sum(axis=1, keepdims=True) * prices * SALES[world](_U[:, np.newaxis], prices)).sum(axis=1).mean()
    )


class Log:
    """Decisions with even prices."""

    def __init__(self, world: str, size: int, rng: np.random.Generator):
        self.rng, self.u, self.prices = rng, rng.uniform(-1, 1, size), rng.uniform(0, 1, size)
        self.rewards = self.prices * (rng.random(size) < SALES[world](self.u, self.prices))

    def constant(self) -> Policy:
        """Returns the centre with the greatest mean reward in its window, whatever the customer."""
        within = (_ENDS[0] <= self.prices[:, np.newaxis]) & (self.prices[:, np.newaxis] <= _ENDS[1])
        best = int((self.rewards @ within / within.sum(axis=0)).argmax())
        return lambda u: np.tile(np.eye(CENTRES)[best], (len(u), 1))

    def log_ratios(self, policy: Policy | None) -> np.ndarray:
        """Returns the log-densities of its prices, less those of the log, which are 0; None is the log's own."""
        if policy is None:
            return np.zeros(len(self.u))
        with np.errstate(divide='ignore'):
            return np.asarray(np.log(density(policy, self.u, self.prices[:, np.newaxis])[:, 0]))

    def estimates(self, policy: Policy) -> dict[str, Any]:
        """Returns the estimates of a policy, its interval, and the log's mean and interval."""
        size = len(self.u)
        cumulative = policy(self.u).cumsum(axis=1)
        samples = []
        for _ in range(8):
            centre = (self.rng.random((size, 1)) > cumulative).sum(axis=1).clip(max=CENTRES - 1)
            low, high = _ENDS[:, centre]
            samples.append((low + self.rng.random(size) * (high - low))[:, np.newaxis])
        steps = RecordedSteps(
            np.ones(size, int), self.u[:, np.newaxis], np.ones(size, bool), self.rewards, np.zeros(size),
            self.prices[:, np.newaxis], np.zeros(size), self.log_ratios(policy), None, np.stack(samples),
        )  # fmt: skip
        found = evaluation.evaluate(steps, OpeOptions(low=0.0, high=1.0))
        undefined = (math.nan, math.nan)  # which holds nothing
        ends = {whose: found.intervals.get(f'the {whose}', undefined) for whose in ('policy', 'behaviour policy')}
        return {**found.estimates, **ends}

    def outcome(self, candidate: Policy, incumbent: Policy | None) -> str:
        """Returns the gate's verdict; None is the log."""
        middles = np.broadcast_to((_EDGES[1:] + _EDGES[:-1]) / 2, (len(self.u), len(_SIZES)))
        even = np.broadcast_to(_SIZES, middles.shape)
        shares = [even if each is None else density(each, self.u, middles) * _SIZES for each in (candidate, incumbent)]
        known = confidence_sequences.support(*shares, even)
        column = lambda values: values[:, np.newaxis]  # noqa: E731
        log = LoggedEpisodes(
            column(self.rewards), np.ones((len(self.u), 1), bool), column(self.log_ratios(candidate)),
            column(self.log_ratios(incumbent)), known,
        )  # fmt: skip
        return gate.judge(log, GateOptions(margin=MARGIN, low=0.0, high=1.0)).outcome


class Learner:
    """The agent, which begins again with each log."""

    def __init__(self) -> None:
        smoothing = Smoothing(CENTRES, BANDWIDTH)
        agent = linear_bandit.make_agent(_SPECS, create_train_step(), linear_bandit.EXPERIENCE, smoothing=smoothing)
        self._agent, self._first = agent, [variable.numpy() for variable in agent.variables]

    def __call__(self, log: Log) -> Policy:
        for variable, first in zip(self._agent.variables, self._first, strict=True):
            variable.assign(first)
        # Each row is followed by one that only ends it.
        twice = lambda values, dtype: tf.constant(np.stack([values, values], axis=1), dtype)  # noqa: E731
        zeros = twice(np.zeros(len(log.u)), tf.float32)
        middle = tf.ones(zeros.shape, tf.int32)
        rows = trajectory.Trajectory(
            middle, twice(log.u, tf.float32)[..., tf.newaxis], twice(log.prices, tf.float32),
            policy_step.PolicyInfo(log_probability=zeros), middle, twice(log.rewards, tf.float32), zeros,
        )  # fmt: skip
        self._agent.train(rows)
        policy, theta = self._agent.policy.wrapped_policy, [each.numpy() for each in self._agent.variables]

        def learned(u: np.ndarray) -> np.ndarray:
            for variable, values in zip(self._agent.variables, theta, strict=True):
                variable.assign(values)
            time_step = ts.restart(tf.constant(u[:, np.newaxis], tf.float32), len(u))
            logits = policy.distribution(time_step).action.mixture_distribution.logits_parameter()
            return np.asarray(tf.nn.softmax(logits))

        return learned


def vowpal_wabbit(world: str, log: Log) -> float | None:
    """Returns the exact value of what `--cats` learns in one pass, without its random prices; None without VW."""
    try:
        import vowpalwabbit
    except ImportError:
        return None
    options = f'--cats_pdf {CENTRES} --bandwidth {BANDWIDTH} --min_value 0 --max_value 1 --epsilon 0 --quiet'
    workspace = vowpalwabbit.Workspace(options)
    for u, price, reward in zip(log.u, log.prices, log.rewards, strict=True):
        workspace.learn(f'ca {price}:{-reward}:1.0 |f u:{u}')
    found = 0.0
    for u in _U:
        parts = workspace.predict(f'|f u:{u}')
        of = sum(height * ((low <= _PRICES) & (high > _PRICES)) for low, high, height in parts)
        found += float((of / of.sum() * _PRICES * SALES[world](u, _PRICES)).sum()) / len(_U)
    workspace.finish()
    return found


def _entry(true: float, estimate: float, interval: tuple[float, float]) -> dict[str, Any]:
    low, high = interval
    return {'value': true, 'estimate': estimate, 'low': low, 'high': high, 'held': bool(low <= true <= high)}


def judged(world: str, size: int, seed: int, learner: Learner) -> dict[str, Any]:
    """Returns what one seed gives."""
    rng = np.random.default_rng([seed, list(SALES).index(world)])
    first, second = Log(world, size, rng), Log(world, size, rng)
    row: dict[str, Any] = {'vw': vowpal_wabbit(world, first)}
    constant = first.constant()
    for name, policy in (('learned', learner(first)), ('constant', constant)):
        found = second.estimates(policy)
        row[name] = _entry(value(world, policy), found['importance sampling'], found['policy'])
        row[name]['doubly robust'] = found['doubly robust']
        if name == 'learned':
            row['gate'] = [second.outcome(policy, each) for each in (None, constant)]
    mean = found['behaviour policy (mean return)']
    even = float((_PRICES * SALES[world](_U[:, np.newaxis], _PRICES)).mean())
    row['even'] = _entry(even, mean, found['behaviour policy'])
    return row


def main() -> None:
    """Runs the benchmark and prints the tables."""
    parser = command_line.parser(__doc__)
    parser.add_argument('--seeds', type=int, default=100)
    parser.add_argument('--decisions', type=int, default=2_000, help='of each of the two logs')
    options = parser.parse_args()
    tf.get_logger().setLevel('ERROR')
    learner, results = Learner(), {}
    for world, sales in SALES.items():
        found = [judged(world, options.decisions, seed, learner) for seed in range(options.seeds)]
        results[world] = found
        best = (_PRICES * sales(_U[:, np.newaxis], _PRICES)).max(axis=1).mean()
        print(
            f'\n{world}, {options.seeds} seeds, {options.decisions} decisions; the best prices {best:.4f}\n', flush=True
        )
        print('| prices | value | estimate | error | interval holds the value | learned is above, by intervals |')
        print('|---|---|---|---|---|---|')
        for name in ('learned', 'constant', 'even'):
            column = lambda key, name=name, found=found: np.array([each[name][key] for each in found])  # noqa: E731
            errors = column('estimate') - column('value')
            above = np.array([each['learned']['low'] for each in found]) > column('high')
            print(
                f'| {name} | {column("value").mean():.4f} | {column("estimate").mean():.4f} | {errors.std():.4f} '
                f'| {column("held").mean():.1%} | {above.mean():.0%} |'
            )
        for against, outcomes in zip(
            ('even', 'constant'), zip(*(each['gate'] for each in found), strict=True), strict=True
        ):
            print(f'the gate, against {against}: {outcomes.count("passes")} pass, {outcomes.count("worse")} are worse')
        if found[0]['vw'] is not None:
            print(f'Vowpal Wabbit: {np.mean([each["vw"] for each in found]):.4f}')
    command_line.write(options.json, {'decisions': options.decisions, 'worlds': results})


if __name__ == '__main__':
    main()
