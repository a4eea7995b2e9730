"""The gate in simulated worlds: how often it passes a candidate that is worse by the margin, and what it needs.

Of each world it draws logs with a look after each 500 decisions, and judges each look by the confidence sequences of
`tflearn.core.confidence_sequences`, as the gate does: a log whose probabilities are refuted is not judged any more, and
evidence for a candidate that is no stronger than that against the log does not count. All values are known exactly.

A log is drawn by the numbers of its kinds of decisions: constant bets do not depend on the order between two looks.

- `worse`: the candidate is worse by the margin; the share of the logs in which it ever passes is printed. The worlds
  with wrong probabilities, drift and users that return are those where a test is misled.
- `equal`: the share that passes within 2.5 and 4 times the decisions n = (1.645 + 0.842)^2 Var(Y) / margin^2 of a test
  of fixed size (5%, power 80%) by the best Y_c, and the median, in n. Of sessions Y is the difference of weighted sums.

Where a cost has a limit the candidate is better, `worse` means at the limit or beyond it, and `equal` a sixth below it.

.venv/bin/python -m benchmarks.gate [--logs=2000] [--worlds NAME ...] [--json=FILE] [--seed=0]
"""

import math
import sys
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks import command_line
from benchmarks.gate_worlds import LOOK, ONLY_WORSE, WORLDS, World, numbers_by_phase

ALPHA = 0.05  # the level
LONGEST, MANY = 100_000, 10_000_000


def passing(world: World, looks: np.ndarray, num_logs: int, seed: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """Returns at which look each log passes, inf if at none; and at which it is refuted."""
    rng = np.random.default_rng(seed)
    claims = [('variables', world.margin), ('costs', world.limit)]
    claims = [(name, shift) for name, shift in claims if getattr(world.phases[0], name)]
    of_claims = [
        [[each.log_factors(shift) for each in getattr(of, name)] for name, shift in claims] for of in world.phases
    ]
    factors = [[np.concatenate(each, axis=1) for each in of_phase] for of_phase in of_claims]
    lost = [
        np.any([np.concatenate([each.is_lost(shift) for each in getattr(of, name)]) for of in world.phases], axis=0)
        for name, shift in claims
    ]
    groups = [
        [np.concatenate([each.log_factors(0.0) for each in group], axis=1) for group in of.refuters]
        for of in world.phases
    ]
    lost_groups = [np.concatenate([each.is_lost(0.0) for each in group]) for group in world.phases[0].refuters]
    wealths = [np.zeros((num_logs, each.shape[1])) for each in factors[0]]
    against = [np.zeros((num_logs, each.shape[1])) for each in groups[0]]
    passed, refuted = np.full(num_logs, np.inf), np.full(num_logs, np.inf)
    before = 0
    for look in looks.tolist():
        end = look - world.delay
        for phase, count in numbers_by_phase(world, before, end):
            drawn = rng.multinomial(count, world.phases[phase].chances, num_logs).astype(float)
            for wealth, own in zip(wealths, factors[phase], strict=True):
                wealth += drawn @ own
            for total, group in zip(against, groups[phase], strict=True):
                total += drawn @ group
        before = max(before, end)
        means = [_log_mean(total, which) for total, which in zip(against, lost_groups, strict=True)]
        doubt = _log_mean(np.stack(means, axis=1), np.zeros(len(means), bool))
        # Each claim has to be proved; that needs no part of the level.
        evidence = np.min([_log_mean(each, which) for each, which in zip(wealths, lost, strict=True)], axis=0)
        evidence = evidence - np.maximum(doubt, 0.0)
        open_logs = np.isinf(passed) & np.isinf(refuted)
        refuted[open_logs & (doubt >= -math.log(ALPHA))] = look
        passed[open_logs & np.isinf(refuted) & (evidence >= -math.log(ALPHA))] = look
        if not (np.isinf(passed) & np.isinf(refuted)).any():
            break
    return passed, refuted


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
    needed = 6.1845 * float(np.mean([of.variance for of in equal.phases])) / (equal.slack or equal.margin) ** 2
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
    parser = command_line.parser(__doc__)
    parser.add_argument('--logs', type=int, default=2_000, help='logs of each world')
    parser.add_argument('--worlds', nargs='+', choices=WORLDS, default=list(WORLDS))
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
    facts = {'logs': options.logs, 'level': ALPHA, 'seed': options.seed}
    command_line.write(options.json, {**facts, 'worlds': rows})


if __name__ == '__main__':
    main()
