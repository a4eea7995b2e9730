"""`python -m benchmarks.suite.page`: docs/results.md and its pictures, from the suite's results and statistics."""

import argparse
import json
import pathlib
import re
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.suite import results as suite_results
from benchmarks.suite.rows import EPISODES, MARKS, OURS, RESULTS, ROWS, Row
from benchmarks.suite.zoo import ZOO, ZOO_COMMIT

ROOT = pathlib.Path(__file__).resolve().parents[2]

DOCS = ROOT / 'docs'
_NAMES = {OURS: 'tflearn', 'SB3': 'Stable-Baselines3', 'SBX': 'SBX (JAX)'}

_HEAD = f"""\
# Results

What each algorithm has learned after how many steps, beside other libraries at equal environment steps.
`python -m benchmarks.suite` makes the runs, and this page from them; [benchmarks.md](benchmarks.md) is about speed.

- **A run** has the row's gin file and bindings and one seed. The policy acts by the mode in {EPISODES} episodes,
  10 of Pong, or 100 to 500 in tasks of our own, at {MARKS} marks; peers are evaluated at the same environment steps,
  over as many episodes, without exploration. A score is the mean return of the run's last policy: there is no choice
  of the best. Runs of several processes record the environment steps that the learner knew of at an export, which are
  a few percent fewer than were taken.
- **Figures** are the interquartile mean over the seeds and its 95% bootstrap interval in brackets, by
  [rliable](https://github.com/google-research/rliable). With three seeds nothing is cut off, so it is the mean, and an
  interval of so few seeds is only a hint. Then come the seeds, and the median seconds of the whole command, with start
  and evaluation. Other programs ran on the same two cores: the seconds are no comparison of speed.
- **Compared** reads "as good" where our interquartile mean is at or above the lower end of the peer's interval, and
  says how much is missing otherwise.
- **Peers** have [RL Zoo's settings]({ZOO}/tree/{ZOO_COMMIT}/hyperparams), SBX the same ones as SB3. QR-DQN and TQC of
  SB3 are those of sb3-contrib. CleanRL is no side: its package requires Stable-Baselines3 1.2 and the old gym,
  without which its programs would have to be copied here. RLlib installs, but RL Zoo has no settings for it; it is
  compared in time ([benchmarks.md](benchmarks.md)). Tasks of our own, with masks, memory or goals, have no peer.
- **Published** figures are those of
  [RL Zoo's benchmark]({ZOO}/blob/{ZOO_COMMIT}/benchmark.md),
  of one trained agent after the steps named; these are often not the row's. Tasks of our own have the best possible
  return or a scripted reference's instead.
- Runs that failed are counted, and what has not been run stays in the table.
"""
TABLE = (
    '| algorithm | environment | steps | tflearn | SB3 | SBX | compared | published |',
    '|---|---|---|---|---|---|---|---|',
)


def main() -> None:
    """Writes the page and the pictures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--results', type=pathlib.Path, default=RESULTS, help='directory of the lines')
    parser.add_argument('--docs', type=pathlib.Path, default=DOCS)
    options = parser.parse_args()
    summaries = read_statistics(options.results)
    (options.docs / 'results.md').write_text(text(options.results, summaries), encoding='utf-8')
    for environment, keys in _pictures(summaries).items():
        draw(options.docs / 'images' / picture(environment), {key: summaries[key] for key in keys})


def read_statistics(directory: pathlib.Path) -> dict[str, Any]:
    """Returns row -> side -> statistics; empty before there are any."""
    path = directory / suite_results.STATISTICS
    return json.loads(path.read_text(encoding='utf-8')) if path.exists() else {}


def pictures(summaries: Mapping[str, Any]) -> list[str]:
    """Returns the names of the pictures that the page shows."""
    return [picture(environment) for environment in _pictures(summaries)]


def text(directory: pathlib.Path, summaries: Mapping[str, Any]) -> str:
    """Returns the page."""
    results = suite_results.all_rows(directory)
    lines = [
        _HEAD,
        '## Table',
        '',
        *TABLE,
        *(line(key, row, summaries.get(key, {}), results[key]) for key, row in ROWS.items()),
        '',
        _share(summaries),
        '',
        *_remarks(),
        _not_run(summaries),
        '',
        '## Curves',
        '',
        'Interquartile means and intervals over the seeds, against environment steps.',
        '',
        *(f'![{environment}](images/{picture(environment)})\n' for environment in _pictures(summaries)),
        '## Settings',
        '',
        'Ours: the gin file, with what the suite binds after it.',
        '',
        *(f'- `{key}`: {_our_settings(row)}' for key, row in ROWS.items()),
        '',
        "The peers', which are RL Zoo's.",
        '',
        *(line for key, row in ROWS.items() for line in _peer_settings(key, row)),
        '',
        'Versions: ' + '; '.join(_versions(results)) + '.',
    ]
    return '\n'.join(lines).rstrip() + '\n'


def line(key: str, row: Row, summary: Mapping[str, Any], results: Mapping[str, Sequence[Any]]) -> str:
    """Returns the table's line of a row."""
    published = f'{_number(row.published[0])} ({row.published[1]})' if row.published else ''
    cells = [
        row.algorithm,
        f'{row.environment}',
        f'{row.env_steps:,}',
        *(_cell(row, side, summary.get(side), results.get(side, [])) for side in (OURS, 'SB3', 'SBX')),
        '; '.join(filter(None, (compared(summary, side) for side in row.peers))),
        published,
    ]
    return '| ' + ' | '.join(cells) + ' |'


def _cell(row: Row, side: str, summary: Mapping[str, Any] | None, runs: Sequence[Mapping[str, Any]]) -> str:
    if side != OURS and side not in row.peers:
        return ''
    failed = sum(run['error'] is not None for run in runs)
    failures = f', {failed} failed' if failed else ''
    if summary is None:
        return f'all {failed} failed' if failed else 'not run'
    number = f'{summary["runs"]} seed{"s" * (summary["runs"] > 1)}{failures}'
    secs = statistics.median(run['secs'] for run in runs if run['error'] is None)
    between = f' [{_number(summary["low"])}, {_number(summary["high"])}]' if summary['runs'] > 1 else ''
    return f'{_number(summary["iqm"])}{between}, {number}, {secs:.0f} s'


def _number(value: float) -> str:
    return f'{value:.1f}' if abs(value) >= 10 else f'{value:.2f}'


def compared(summary: Mapping[str, Any], side: str) -> str:
    """Returns how our interquartile mean is beside a peer's interval; empty if one of them is not there."""
    if OURS not in summary or side not in summary:
        return ''
    missing = summary[side]['low'] - summary[OURS]['iqm']
    return f'as good as {side}' if missing <= 0 else f'**{missing:.1f} below** the interval of {side}'


def _share(summaries: Mapping[str, Any]) -> str:
    judged = [compared(summaries[key], side) for key, row in ROWS.items() if key in summaries for side in row.peers]
    judged = [each for each in judged if each]
    good = sum(each.startswith('as good') for each in judged)
    return f'As good as the peer in {good} of {len(judged)} comparisons.' if judged else 'Nothing is compared yet.'


def _remarks() -> list[str]:
    """The remarks on rows, those on several rows once."""
    rows: dict[str, list[str]] = {}
    for key, row in ROWS.items():
        if row.remark:
            rows.setdefault(row.remark, []).append(f'`{key}`')
    return [*(f'- {", ".join(keys)}: {remark}' for remark, keys in rows.items()), '']


def _not_run(summaries: Mapping[str, Any]) -> str:
    """The sides without runs, and how long theirs would take."""
    sides = {
        key: [side for side in (OURS, *row.peers) if side not in summaries.get(key, {})] for key, row in ROWS.items()
    }
    missing = [f'`{key}` ({", ".join(found)}: {ROWS[key].minutes:g})' for key, found in sides.items() if found]
    return f'Not run yet, with a rough estimate of the minutes of a seed on two cores: {", ".join(missing) or "none"}.'


def _our_settings(row: Row) -> str:
    settings = row.settings(OURS)
    bound = ', '.join(f'`{binding}`' for binding in settings['bindings'])
    return f'`{row.gin_file}`, {settings["mode"]}, {bound}'


def _peer_settings(key: str, row: Row) -> list[str]:
    return [
        f'- `{key}`, {", ".join(row.peers)} ({peer.zoo}): `{json.dumps(dict(peer.settings))}`'
        for peer in list(row.peers.values())[:1]
    ]


def _versions(results: Mapping[str, Mapping[str, Sequence[Any]]]) -> list[str]:
    found = {
        ' '.join(f'{name} {_short(version)}' for name, version in run['versions'].items())
        for sides in results.values()
        for runs in sides.values()
        for run in runs
        if run['error'] is None
    }
    return sorted(found) or ['none']


def _short(version: str) -> str:
    return re.sub(r'\b([0-9a-f]{12})[0-9a-f]{28}', r'\1', version)  # of a git revision


def picture(environment: str) -> str:
    """Returns the name of an environment's picture."""
    name = environment if ',' in environment else environment.partition('-')[0]
    return f'results_{re.sub("[^a-z0-9]+", "_", name.lower())}.png'


def _pictures(summaries: Mapping[str, Any]) -> dict[str, list[str]]:
    """Returns environment -> rows that have statistics."""
    found: dict[str, list[str]] = {}
    for key, row in ROWS.items():
        if key in summaries:
            found.setdefault(row.environment, []).append(key)
    return found


def draw(path: pathlib.Path, summaries: Mapping[str, Mapping[str, Any]]) -> None:
    """Draws a panel for each row: the curve of each side with its interval."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    columns = min(3, len(summaries))
    lines = -(-len(summaries) // columns)
    figure = Figure(figsize=(4 * columns, 3 * lines), dpi=100, layout='constrained')
    panels = figure.subplots(lines, columns, squeeze=False, sharey=True).ravel()
    for axes, (key, sides) in zip(panels, summaries.items(), strict=False):
        for i, (side, name) in enumerate(_NAMES.items()):
            if side in sides:
                steps, means, low, high = zip(*sides[side]['curve'], strict=True)
                axes.plot(steps, means, color=f'C{i}', label=name)
                axes.fill_between(steps, low, high, color=f'C{i}', alpha=0.2, linewidth=0)
        axes.set_title(ROWS[key].algorithm)
        axes.xaxis.set_major_formatter('{x:,.0f}')
        axes.locator_params(axis='x', nbins=4)
        axes.grid(alpha=0.3)
        axes.legend(frameon=False, fontsize='small')
    figure.supxlabel('environment steps')
    figure.supylabel('mean return')
    for axes in panels[len(summaries) :]:
        axes.set_visible(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    FigureCanvasAgg(figure).print_png(path)


if __name__ == '__main__':
    main()
