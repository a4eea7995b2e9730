"""Fits the simulator's costs to one half of the measured grid, and judges it on the other.

    python -m benchmarks.scale.fit --fit        fits to the training half, writes benchmarks/scale/costs.json
    python -m benchmarks.scale.fit --judge      prints the errors on the other half

The halves are `Point.is_training`. Needs benchmarks/scale/requirements.txt.
"""

import argparse
import collections
import dataclasses
import json
import pathlib
import statistics
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks.scale import grid as scale_grid
from benchmarks.scale import model as scale_model
from benchmarks.scale.grid import Point

COSTS = pathlib.Path(__file__).with_name('costs.json')
ROLES = ('server', 'proxy', 'collector', 'reader')
_CPU_WEIGHT = 0.25  # of the error of a role's processor time, beside that of the steps per second
_SMALL_SHARE = 0.05  # of a core: below it, processor time is not measured well
_FITTED = tuple(each.name for each in dataclasses.fields(scale_model.Costs) if each.name != 'steps_per_row')


@dataclasses.dataclass(frozen=True)
class Measured:
    """What was measured at a point, the mean of all rounds.

    Attributes:
      steps: environment steps per second.
      cpu: share of a core, by role.
      rounds: environment steps per second, of each round.
      bytes_per_chunk: on the wire, all that went over the loopback device.
    """

    steps: float
    chunks: float
    cpu: dict[str, float]
    rounds: tuple[float, ...]
    bytes_per_chunk: float


def load(path: pathlib.Path = scale_grid.DATA) -> dict[Point, Measured]:
    """Returns all points that were measured."""
    entries = collections.defaultdict(list)
    for entry in json.loads(path.read_text()):
        entries[Point(**entry['point'])].append(entry)
    return {point: _mean(own) for point, own in entries.items()}


def _mean(entries: Sequence[dict[str, Any]]) -> Measured:
    def mean(name: str) -> float:
        return statistics.mean(entry[name] for entry in entries)

    cpu = {role: statistics.mean(sum(entry['cpu'][role]) for entry in entries) for role in ROLES}
    rounds = tuple(entry['steps_sent_per_sec'] for entry in entries)
    chunks = mean('chunks_inserted_per_sec')
    return Measured(mean('steps_sent_per_sec'), chunks, cpu, rounds, mean('bytes_per_sec') / chunks)


def setting(point: Point) -> scale_model.Setting:
    """Returns what the simulator needs to know of a point."""
    load = scale_grid.LOADS[point.load]
    return scale_model.Setting(
        collectors=point.collectors,
        shards=point.shards,
        hold_secs=point.delay_ms / 1e3 or None,
        chunk_steps=load.chunk_steps,
        pace=load.pace,
        train_rate=load.train_rate,
    )


def fit(measured: dict[Point, Measured]) -> scale_model.Costs:
    """Returns the costs with the least squares of the errors on the training half."""
    from scipy import optimize

    training = {point: value for point, value in measured.items() if point.is_training}
    rows = {point: value.chunks * scale_grid.LOADS[point.load].chunk_steps for point, value in training.items()}
    steps_per_row = statistics.median(value.steps / rows[point] for point, value in training.items())
    start = dataclasses.replace(scale_model.Costs(), steps_per_row=steps_per_row)

    def costs(logs: np.ndarray) -> scale_model.Costs:
        return dataclasses.replace(start, **dict(zip(_FITTED, map(float, np.exp(logs)), strict=True)))

    def residuals(logs: np.ndarray) -> np.ndarray:
        return np.concatenate(
            [_residuals(scale_model.simulate(setting(each), costs(logs)), training[each]) for each in training]
        )

    first = np.log([getattr(start, name) for name in _FITTED])
    found = optimize.least_squares(
        residuals, first, diff_step=0.05, loss='soft_l1', f_scale=0.1, x_scale=0.3, max_nfev=6, verbose=2
    )
    return costs(found.x)


def _residuals(simulated: dict[str, Any], measured: Measured) -> np.ndarray:
    """Returns the logarithms of the ratios of simulated to measured values, weighted."""
    rate = np.log(simulated['steps'] / measured.steps)
    cpu = [
        _CPU_WEIGHT * np.log((simulated['cpu'][role] + 0.01) / (measured.cpu[role] + 0.01))
        if measured.cpu[role] > _SMALL_SHARE
        else 0.0
        for role in ROLES
    ]
    return np.array([rate, *cpu])


def table(measured: dict[Point, Measured], costs: scale_model.Costs) -> tuple[str, dict[str, list[float]]]:
    """Returns the points as a Markdown table, and the errors of the steps per second by load."""
    lines = [
        '| load | delay, ms | shards | collectors | steps/s, measured | simulated | error | rounds differ | '
        'servers + proxies, of their core: measured | simulated | collectors + reader: measured | simulated |',
        '|---' * 12 + '|',
    ]
    errors = collections.defaultdict(list)
    for point in sorted(measured, key=lambda each: (each.load, each.delay_ms, each.shards, each.collectors)):
        own, simulated = measured[point], scale_model.simulate(setting(point), costs)
        error = simulated['steps'] / own.steps - 1
        errors[point.load].append(abs(error))
        spread = (max(own.rounds) - min(own.rounds)) / own.steps
        shares = [
            f'{cpu[a] + cpu[b]:.2f}'
            for a, b in (('server', 'proxy'), ('collector', 'reader'))
            for cpu in (own.cpu, simulated['cpu'])
        ]
        lines.append(
            f'| {point.load} | {point.delay_ms:g} | {point.shards} | {point.collectors} | {own.steps:,.0f} | '
            f'{simulated["steps"]:,.0f} | {100 * error:+.0f} % | {100 * spread:.0f} % | {" | ".join(shares)} |'
        )
    return '\n'.join(lines), dict(errors)


def draw(measured: dict[Point, Measured], costs: scale_model.Costs, path: pathlib.Path) -> None:
    """Draws simulated against measured steps per second of both halves."""
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6, 6))
    line = np.array([2e3, 2e5])
    axes.fill_between(line, 0.8 * line, 1.2 * line, color='0.9', label='within 20 %')
    axes.plot(line, line, color='0.5', linewidth=1)
    for is_training, name, marker in ((True, 'fitted', 'x'), (False, 'judged', 'o')):
        for load, color in zip(scale_grid.LOADS, ('C0', 'C1', 'C2', 'C3', 'C4'), strict=True):
            half = [each for each in measured if each.is_training == is_training and each.load == load]
            xs = [measured[each].steps for each in half]
            ys = [scale_model.simulate(setting(each), costs)['steps'] for each in half]
            axes.scatter(xs, ys, s=24, marker=marker, color=color, label=f'{load}, {name}')
    axes.set(xscale='log', yscale='log', xlabel='steps/s, measured', ylabel='steps/s, simulated')
    axes.legend(fontsize=8)
    figure.savefig(path, dpi=110, bbox_inches='tight')


def summary(errors: dict[str, list[float]]) -> str:
    """Returns the median and the 90th percentile of the errors, of all points and of each load, as a Markdown table."""
    lines = ['| load | points | median error | 90th percentile |', '|---' * 4 + '|']
    grid = [error for name in scale_grid.GRID_LOADS for error in errors.get(name, [])]
    everything = [error for own in errors.values() for error in own]
    for name, own in {' and '.join(scale_grid.GRID_LOADS): grid, 'all': everything, **errors}.items():
        median, high = (100 * np.quantile(own, share) for share in (0.5, 0.9))
        lines.append(f'| {name} | {len(own)} | {median:.1f} % | {high:.1f} % |')
    return '\n'.join(lines)


def main() -> int:
    """Fits or judges."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--fit', action='store_true')
    parser.add_argument('--judge', action='store_true')
    parser.add_argument('--picture', type=pathlib.Path, default=None, help='writes a picture of both halves there')
    options = parser.parse_args()
    measured = load()
    if options.fit:
        costs = fit(measured)
        COSTS.write_text(json.dumps(dataclasses.asdict(costs), indent=2) + '\n')
    costs = scale_model.Costs(**json.loads(COSTS.read_text()))
    for is_training in [True] * options.fit + [False] * options.judge:
        half = {point: value for point, value in measured.items() if point.is_training == is_training}
        text, errors = table(half, costs)
        print(f'{"training" if is_training else "judged"} half\n\n{text}\n\n{summary(errors)}\n')
    if options.picture:
        draw(measured, costs, options.picture)
    return 0


if __name__ == '__main__':
    sys.exit(main())
