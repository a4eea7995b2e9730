"""How often the interval of `tflearn-evaluate --data` holds a policy's value, in simulated worlds of `gate_worlds`.

Of each world whose logs have the right probabilities it draws logs of each size (decisions; sessions; users; those that
came, where a part of them is dropped), and prints the share of the logs in which the interval of the candidate's value
holds it.

.venv/bin/python -m benchmarks.value_intervals [--logs=2000] [--worlds NAME ...] [--json=FILE] [--seed=0]
"""

from collections.abc import Sequence

import numpy as np

from benchmarks import command_line
from benchmarks.gate_worlds import ONLY_WORSE, SUBSAMPLED, WORLDS, World, numbers_by_phase, subsample
from tflearn.core import confidence_sequences as cs

SIZES = [100, 300, 1_000, 3_000, 10_000, 30_000, 100_000]
RIGHT = {name: make for name, make in WORLDS.items() if name in SUBSAMPLED or name not in ONLY_WORSE} | {
    'clicks 1%, and a hundredth of all else': subsample(WORLDS['clicks 1%'], 0.01, 1),
    'clicks 1%, and a tenth of those': subsample(WORLDS['clicks 1%'], 0.1, 0),
    'heavy costs, and a tenth of those below half': subsample(WORLDS['heavy costs'], 0.1, 0, 0.5),
    'heavy costs, and a tenth of those above half': subsample(WORLDS['heavy costs'], 0.1, 1, 0.5),
    'exploration 0.1%, and a tenth of all without a click': subsample(WORLDS['exploration 0.1%'], 0.1, 1),
}


def held(world: World, num_logs: int, seed: Sequence[int]) -> list[float]:
    """Returns the share of the logs whose interval holds the candidate's value, for each of `SIZES`."""
    rng, found = np.random.default_rng(seed), []
    for size in SIZES:
        numbers = np.zeros(len(world.phases), int)
        for phase, count in numbers_by_phase(world, 0, size):
            numbers[phase] += count
        value = sum(of.value * count for of, count in zip(world.phases, numbers, strict=True)) / size
        drawn = [rng.multinomial(count, of.chances, num_logs) for of, count in zip(world.phases, numbers, strict=True)]
        counts = np.concatenate(drawn, axis=1).astype(np.float64)
        inside = np.ones(num_logs, bool)
        for end, own in enumerate((value, 1 - value)):
            ends = [of.ends[end] for of in world.phases]
            values, shares = np.concatenate([[of.values, _shares(of)] for of in ends], axis=1)
            # As `likelihood_bound`, which needs no search for its end to tell on which side of it the value is.
            inside &= cs.likelihood_ratios(cs.Variable(values, 0.0, shares=shares), counts, own) < cs.LIKELIHOOD_RATIO
        found.append(float(inside.mean()))
    return found


def _shares(variable: cs.Variable) -> np.ndarray:
    return np.ones(len(variable.values)) if variable.shares is None else variable.shares


def main() -> None:
    """Runs the benchmark and prints the table."""
    parser = command_line.parser(__doc__)
    parser.add_argument('--logs', type=int, default=2_000, help='logs of each world and size')
    parser.add_argument('--worlds', nargs='+', choices=RIGHT, default=list(RIGHT))
    parser.add_argument('--seed', type=int, default=0)
    options = parser.parse_args()
    print(f'{options.logs} logs of each world, seed {options.seed}')
    print('| world | ' + ' | '.join(f'{size:,}' for size in SIZES) + ' |\n' + '|---' * (len(SIZES) + 1) + '|')
    rows, order = {}, list(WORLDS | RIGHT)
    for name in options.worlds:
        rows[name] = held(RIGHT[name](-1), options.logs, [options.seed, order.index(name)])
        print(f'| {name} | {" | ".join(f"{each:.1%}" for each in rows[name])} |', flush=True)
    print(f'least {min(map(min, rows.values())):.1%}, greatest {max(map(max, rows.values())):.1%}')
    command_line.write(options.json, {'logs': options.logs, 'sizes': SIZES, 'worlds': rows})


if __name__ == '__main__':
    main()
