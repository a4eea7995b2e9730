"""Do the verdicts of `tflearn compare` have the level, the coverage and the power that they state? By simulation.

    python -m benchmarks.verdict_levels

Scores are drawn of worlds in which two groups of seeds do not differ, so each *better* or *worse* is false. Bimodal
scores are runs that learn (7 of 10) or stay at 100; two-valued ones solve a task (8 of 10) or do not.
"""

from collections.abc import Callable

import numpy as np

from benchmarks import command_line
from tflearn.extensions.experiments import verdicts

Draw = Callable[[np.random.Generator, int], np.ndarray]
WORLDS: dict[str, Draw] = {
    'normal': lambda rng, size: rng.normal(size=size),
    'bimodal': lambda rng, size: np.where(rng.random(size) < 0.7, 500.0, 100.0) + rng.normal(size=size),
    'lognormal': lambda rng, size: rng.lognormal(size=size),
    'two-valued': lambda rng, size: (rng.random(size) < 0.8).astype(float),
}
WIDER = 'normal, of which the first is four times as wide'
SIZES = ((4, 4), (5, 5), (7, 7), (5, 10), (10, 10), (15, 15), (12, 20), (20, 20))
PAIRS = ((6, 6), (8, 8), (10, 10), (20, 20))
MEDIANS = (4, 5, 6, 8, 9, 10, 20)


def false_share(first: Draw, second: Draw, sizes: tuple[int, int], draws: int, paired: bool = False) -> float:
    """Returns how often groups that do not differ are 'better' or 'worse'."""
    rng = np.random.default_rng(sum(sizes))
    words = [verdicts.judge(first(rng, sizes[0]), second(rng, sizes[1]), paired) for _ in range(draws)]
    return float(np.mean([each is not None and each.word in ('better', 'worse') for each in words]))


def covered_share(draw: Draw, size: int, draws: int) -> float:
    """Returns how often the interval of the median holds that of the world."""
    rng = np.random.default_rng(size)
    median = np.median(draw(rng, 1_000_001))
    low, high, _ = verdicts.median_interval(np.array([draw(rng, size) for _ in range(draws)]).T)
    return float(np.mean((low <= median) & (median <= high)))


def power(sizes: tuple[int, int], draws: int) -> tuple[float, float, float]:
    """Returns the stated visible difference, how often it is seen, and how often one of the band's size is 'equal'."""
    rng = np.random.default_rng(sum(sizes))
    normal = WORLDS['normal']
    known = verdicts.judge(normal(rng, sizes[0]), normal(rng, sizes[1]))
    assert known is not None, 'four runs a side say something'
    band, words = known.deviations, []
    for _ in range(draws):
        found = verdicts.judge(normal(rng, sizes[0]) + band, normal(rng, sizes[1]), equal_within=band)
        words.append(found.word if found else '')
    return band, words.count('better') / draws, words.count('equal') / draws


def main() -> None:
    """Prints the tables."""
    parser = command_line.parser(__doc__)
    parser.add_argument('--draws', type=int, default=2_000, help='pairs of groups of each cell')
    parser.add_argument('--quick', action='store_true', help='few draws, to see whether this program works')
    options = parser.parse_args()
    draws = 20 if options.quick else options.draws
    wide: Draw = lambda rng, size: 4 * rng.normal(size=size)  # noqa: E731
    sides = {name: (draw, draw) for name, draw in WORLDS.items()} | {WIDER: (wide, WORLDS['normal'])}
    found = {
        'better or worse': {
            name: {f'{a} and {b}': false_share(first, second, (a, b), draws) for a, b in SIZES}
            for name, (first, second) in sides.items()
        },
        'better or worse, pairs': {
            name: {f'{size}': false_share(draw, draw, (size, size), draws, True) for size, _ in PAIRS}
            for name, draw in WORLDS.items()
        },
        'median in its interval': {
            name: {f'{size}': covered_share(WORLDS[name], size, 10 * draws) for size in MEDIANS}
            for name in ('normal', 'bimodal', 'lognormal')
        },
    }
    powers = {f'{a} and {b}': power((a, b), draws) for a, b in SIZES}
    for i, name in enumerate(('seen in', 'equal within that difference in')):
        table = found.setdefault('normal scores that differ by', {})
        table[name] = {f'{size}: {its[0]:.1f} deviations': its[i + 1] for size, its in powers.items()}
    for title, rows in found.items():
        columns = next(iter(rows.values()))
        print(f'| {title} | {" | ".join(columns)} |')
        print('|---' * (len(columns) + 1) + '|')
        for name, its in rows.items():
            print(f'| {name} | {" | ".join(f"{share:.1%}" for share in its.values())} |')
        print()
    command_line.write(options.json, found)


if __name__ == '__main__':
    main()
