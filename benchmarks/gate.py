"""The gate on simulated logs: how often it lets candidates pass, and how often its intervals hold the truth.

A logging policy answers 20,000 decisions among ten actions: an incumbent that draws from logits, with some random
actions besides. Rewards are clicks. Of each pair the candidate's value is known exactly: worse than the incumbent's by
the margin, equal to it, or better by the margin or twice that. All is judged by
`tflearn.extensions.product.gate.judge`.

.venv/bin/python benchmarks/gate.py [--quick] [--json=FILE] [--seed=0]
"""

import argparse
import json
import pathlib

import numpy as np

from tflearn.extensions.product.gate import GateOptions, judge

NUM_ACTIONS, NUM_CONTEXTS, EPSILON = 10, 50, 0.1
MARGIN, LEVEL = 0.005, 0.95
# The candidate's value less the incumbent's, in margins.
DIFFERENCES = (-1.0, 0.0, 1.0, 2.0)


def softmax(logits: np.ndarray) -> np.ndarray:
    """Returns the probabilities of logits [..., A]."""
    shares = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return shares / shares.sum(axis=-1, keepdims=True)


def candidate_of(
    rng: np.random.Generator, incumbent: np.ndarray, clicks: np.ndarray, difference: float
) -> np.ndarray | None:
    """Returns a policy [C, A] whose value is that of the incumbent plus the difference; None if this draw has none.

    It is another random policy, leant to better or to worse actions as far as needed (found by bisection).
    """
    other = np.log(incumbent) + rng.normal(0.0, 0.5, incumbent.shape)
    wanted = (incumbent * clicks).sum(axis=1).mean() + difference
    value = lambda lean: (softmax(other + lean * clicks) * clicks).sum(axis=1).mean()  # noqa: E731
    low, high = -30.0, 30.0
    if not value(low) < wanted < value(high):
        return None
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if value(middle) < wanted else (low, middle)
    return softmax(other + low * clicks)


def judged(seed: list[int], difference: float, num_decisions: int) -> tuple[bool, bool, bool, bool]:
    """Returns whether the candidate passes; and whether the intervals of the difference and both values hold."""
    rng = np.random.default_rng(seed)
    candidate = None
    while candidate is None:
        clicks = rng.beta(2.0, 8.0, (NUM_CONTEXTS, NUM_ACTIONS))
        incumbent = softmax(rng.normal(0.0, 1.0, clicks.shape))
        candidate = candidate_of(rng, incumbent, clicks, difference)
    log = (1 - EPSILON) * incumbent + EPSILON / NUM_ACTIONS
    contexts = rng.integers(0, NUM_CONTEXTS, num_decisions)
    drawn = rng.random(num_decisions)[:, np.newaxis]
    actions = np.minimum((drawn >= log[contexts].cumsum(axis=1)).sum(axis=1), NUM_ACTIONS - 1)
    rewards = (rng.random(num_decisions) < clicks[contexts, actions]).astype(np.float64)[:, np.newaxis]
    logged = np.log(log[contexts, actions])
    ratios = [(np.log(policy[contexts, actions]) - logged)[:, np.newaxis] for policy in (candidate, incumbent)]
    verdict = judge(rewards, np.ones_like(rewards, bool), *ratios, GateOptions(MARGIN, LEVEL))
    values = [(policy * clicks).sum(axis=1).mean() for policy in (candidate, incumbent)]
    judged_values = (verdict.candidate, verdict.incumbent)
    held = [of.low <= value <= of.high for of, value in zip(judged_values, values, strict=True)]
    return verdict.passes, verdict.difference.low <= values[0] - values[1] <= verdict.difference.high, held[0], held[1]


def main() -> None:
    """Runs the benchmark and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--quick', action='store_true', help='a tenth of the pairs')
    parser.add_argument('--json', type=pathlib.Path, help='a file for the numbers')
    parser.add_argument('--seed', type=int, default=0)
    parser.add_argument('--decisions', type=int, default=20_000)
    options = parser.parse_args()
    num_pairs = 100 if options.quick else 1_000
    rows = []
    for i, difference in enumerate(DIFFERENCES):
        found = [judged([options.seed, i, j], difference * MARGIN, options.decisions) for j in range(num_pairs)]
        passes, *coverage = np.mean(found, axis=0).tolist()
        rows.append({'difference': difference * MARGIN, 'passes': passes, 'coverage': coverage})
    facts = {'pairs': num_pairs, 'decisions': options.decisions, 'margin': MARGIN, 'level': LEVEL, 'seed': options.seed}
    print(facts)
    print("| candidate less incumbent | passes | interval of the difference holds | candidate's | incumbent's |")
    print('|---|---|---|---|---|')
    for row in rows:
        cells = [row['passes'], *row['coverage']]
        print(f'| {row["difference"]:+.3f} | {" | ".join(f"{cell:.1%}" for cell in cells)} |')
    if options.json:
        options.json.write_text(json.dumps({**facts, 'rows': rows}, indent=2) + '\n')


if __name__ == '__main__':
    main()
