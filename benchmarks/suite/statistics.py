"""Interquartile means and bootstrap intervals of the suite's results, by rliable; in the peers' environment.

    peers_environment/bin/python -m benchmarks.suite.statistics

The interval of an interquartile mean is rliable's 95% percentile bootstrap, stratified by task: here a row is one task,
so the seeds are drawn again. Of a curve each mark has its own. Runs that failed do not count here.
"""

import argparse
import json
import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks.suite import results as suite_results
from benchmarks.suite.rows import MARKS, RESULTS

_DRAWS = 2_000


def main() -> None:
    """Writes statistics.json beside the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--results', type=pathlib.Path, default=RESULTS, help='directory of the lines')
    options = parser.parse_args()
    found = {
        key: {side: statistics for side, runs in sides.items() if (statistics := of_runs(runs))}
        for key, sides in suite_results.all_rows(options.results).items()
    }
    rows = (f'  {json.dumps(key)}: {json.dumps(sides)}' for key, sides in found.items() if sides)
    text = '{\n' + ',\n'.join(rows) + '\n}\n'
    (options.results / suite_results.STATISTICS).write_text(text, encoding='utf-8')


def of_runs(runs: Sequence[suite_results.Result]) -> dict[str, Any] | None:
    """Returns the statistics of one side's runs of a row: at the end, and at each mark; None if none succeeded."""
    from rliable import library, metrics

    curves = [run['curve'] for run in runs if run['error'] is None]
    if not curves:
        return None
    last = min(curve[-1][0] for curve in curves)
    marks = np.linspace(0, last, MARKS + 1)
    at_marks = np.array([np.interp(marks, *np.array(curve, float).T) for curve in curves])
    at_end = np.array([[curve[-1][1]] for curve in curves])
    scores = np.concatenate([at_marks, at_end], axis=1)[:, None, :]

    def iqm(values: np.ndarray) -> np.ndarray:
        return np.array([metrics.aggregate_iqm(values[..., mark]) for mark in range(values.shape[-1])])

    np.random.seed(0)  # rliable draws by numpy's global generator, whatever `random_state` it is given
    means, intervals = library.get_interval_estimates({'': scores}, iqm, reps=_DRAWS)
    rows = np.stack([means[''], *intervals['']], axis=1).round(3).tolist()
    curve = [[int(step), *row] for step, row in zip(marks, rows, strict=False)]
    return {'runs': len(curves), 'iqm': rows[-1][0], 'low': rows[-1][1], 'high': rows[-1][2], 'curve': curve}


if __name__ == '__main__':
    main()
