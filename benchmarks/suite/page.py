"""`python -m benchmarks.suite.page`: docs/results.md and its pictures, from the suite's results."""

import argparse
import json
import pathlib
import re
import statistics
from collections.abc import Mapping, Sequence
from typing import get_args

import numpy as np

from benchmarks.suite import judgement
from benchmarks.suite.judgement import Judgement
from benchmarks.suite.rows import BAND, EPISODES, MARKS, OURS, RESULTS, ROWS, SEEDS, Row
from benchmarks.suite.zoo import ZOO, ZOO_COMMIT
from tflearn.extensions.experiments import comparison, verdicts
from tflearn.extensions.experiments.comparison import Group
from tflearn.extensions.experiments.verdicts import Verdict, Word

ROOT = pathlib.Path(__file__).resolve().parents[2]

DOCS = ROOT / 'docs'
_NAMES = {OURS: 'tflearn', 'SB3': 'Stable-Baselines3', 'SBX': 'SBX (JAX)'}
# The picture of one row that the README and the site begin with.
_FIRST, _FIRST_ROW = 'dqn_cartpole.png', 'dqn_cartpole'

_HEAD = f"""\
# Results

What each algorithm has learned after how many steps, beside other libraries at equal environment steps.
`python -m benchmarks.suite` makes the runs, and this page from them; [benchmarks.md](benchmarks.md) is about speed.

- **A run** has the row's gin file and bindings and one seed. The policy acts by the mode in {EPISODES} episodes,
  10 of Pong, or 100 to 500 in tasks of our own, before training and at up to {MARKS} marks; peers are evaluated at the
  same environment steps, over as many episodes, without exploration. Where a verdict says *same starts*, the episodes
  begin in the same states at every mark of every run on both sides, unless a task draws during an episode. In the
  other runs, which are older, the starts follow from the seed, and differ between ours and the peers: on Pendulum a
  good policy's score is mostly their luck. In runs of several processes a mark has the environment steps that the
  learner knew of then, up to a tenth of the run fewer than were taken, which favours our areas; and some marks are
  missing, and interpolated. Ours called DQN is Double DQN.
- **Steps** are what the row is for, and what the peers take. Ours count train steps, and take fewer environment steps
  where episodes are short: sequences end with them, or hold the rows between them. If ours are 2% fewer, they are in
  parentheses (median of the seeds).
- **A score** is the mean return of the last three marks: there is no choice of the best. The area is the mean of the
  whole curve. Both sides are read at equal environment steps, up to the end of the shortest run. A run that failed
  has the lowest return of the row at each mark, so it counts as a loss.
- **Figures** are the median of the scores over the seeds, and its interval in brackets: of five seeds from the lowest
  to the highest, which holds the median with 93.75%, whatever the distribution. Then the mean, which has no interval;
  how many seeds reach the return at which gymnasium calls the task solved, and the median of the steps at their first
  evaluation that does; the median of the areas, the seeds, and the median seconds of the whole command, with start and
  evaluation. Other programs ran on the same two cores: the seconds are no comparison of speed.
- **Better or worse** has an exact p of at most 5%, by the rule of
  [`tflearn compare`](seeds.md#what-a-verdict-says), which states its level and how that was tried. The number is the
  probability that a run of ours has a higher score than one of the peer. In parentheses beside p stands the level that
  these scores really have: five against five have 3.2%. Holm's p is adjusted for all comparisons of the table. Five
  against five have no p below 2/252, so at most six such rows can survive it.
- **Equal** are sides if the interval of their difference lies within {BAND:.0%} of what the peer has learned: its
  median score less that of the untrained policy. **Not told apart** says only that the seeds are too few: beside it
  stands the difference that they would have shown in 80% if scores were normal, in units of the return and in pooled
  standard deviations.
- **Seeds** from 11 on are fresh, in a few rows from 12 or 13 on: no setting was chosen on them. Where some had been run
  with earlier settings, a remark says so. A row counts with {SEEDS} fresh seeds on each side; those before are for
  tuning, and rows that have only these, or fewer, are listed apart.
- **Peers** have [RL Zoo's settings]({ZOO}/tree/{ZOO_COMMIT}/hyperparams), SBX the same ones as SB3, for the row's steps
  and with schedules that end with them. RL Zoo chose them for older versions of the tasks (MuJoCo's v4, some v2), and
  for other numbers of steps where the published figure's are not the row's. Ours were chosen for the row, unless a
  remark names another, and a remark says which of a peer's are not RL Zoo's. QR-DQN and TQC of SB3 are those of
  sb3-contrib. CleanRL is no side: its package requires Stable-Baselines3 1.2 and the old gym, without which its
  programs would have to be copied here. RLlib installs, but RL Zoo has no settings for it; it is compared in time
  ([benchmarks.md](benchmarks.md)). Tasks of our own, with masks, memory or goals, have no peer.
- **Published** figures are those of
  [RL Zoo's benchmark]({ZOO}/blob/{ZOO_COMMIT}/benchmark.md),
  of one trained agent after the steps named, which are often not the row's, of MuJoCo's v3 and LunarLander-v2. Tasks of
  our own have the best possible return or a scripted reference's instead.
"""
Compared = tuple[str, Verdict]  # a peer, and how ours are beside it
TABLE = (
    "| algorithm | environment | steps | tflearn | SB3 | SBX | tflearn is | p (level) | Holm's p | published |",
    '|---|---|---|---|---|---|---|---|---|---|',
)


def main() -> None:
    """Writes the page and the pictures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--results', type=pathlib.Path, default=RESULTS, help='directory of the lines')
    parser.add_argument('--docs', type=pathlib.Path, default=DOCS)
    options = parser.parse_args()
    judged = judgement.all_rows(options.results)
    (options.docs / 'results.md').write_text(text(judged), encoding='utf-8')
    for environment, keys in _pictures(judged).items():
        draw(options.docs / 'images' / picture(environment), {key: judged[key].groups for key in keys})
    if groups := judged[_FIRST_ROW].groups:
        draw(options.docs / 'images' / _FIRST, {_FIRST_ROW: groups}, (7.0, 4.0))


def pictures(judged: Mapping[str, Judgement]) -> list[str]:
    """Returns the names of the pictures that are drawn."""
    return [_FIRST, *(picture(environment) for environment in _pictures(judged))]


def text(judged: Mapping[str, Judgement]) -> str:
    """Returns the page."""
    counted = {key: each for key, each in judged.items() if not each.missing}
    apart = {key: each for key, each in judged.items() if each.missing}
    compared, rows = _compared(judged), lines(judged)
    parts = [
        _HEAD,
        '## Table',
        '',
        *TABLE,
        *(rows[key] for key in counted),
        '',
        _count(counted, apart, [verdict for its in compared.values() for _, verdict in its]),
        '',
        '## Not counted',
        '',
        f'Rows with fewer than {SEEDS} fresh seeds on a side. `python -m benchmarks.suite --budget` has their hours.',
        '',
        *TABLE,
        *(rows[key] for key in apart),
        '',
        '## Remarks',
        '',
        *_remarks(),
        '## Curves',
        '',
        'Medians and their intervals over the seeds, against environment steps.',
        '',
        *(f'![{environment}](images/{picture(environment)})\n' for environment in _pictures(judged)),
        '## Settings',
        '',
        'Ours: the gin file, with what the suite binds after it, the commits of the runs, and the digests of their',
        'configurations as they were in effect, where recorded. Results count while their gin file binds the same.',
        '',
        *(f'- `{key}`: {_our_settings(each)}' for key, each in judged.items()),
        '',
        "The peers', which are RL Zoo's but for what the remarks name.",
        '',
        *(line for key, each in judged.items() for line in _peer_settings(key, each.row)),
        '',
        'Versions: ' + '; '.join(_versions(judged)) + '.',
    ]
    return '\n'.join(parts).rstrip() + '\n'


def lines(judged: Mapping[str, Judgement]) -> dict[str, str]:
    """Returns the table's line of each row; of one that does not count, with what is missing."""
    compared = _compared(judged)
    return {key: _line(each, compared.get(key, [])) for key, each in judged.items()}


def _line(judged: Judgement, compared: Sequence[Compared]) -> str:
    row = judged.row
    words = '; '.join(_words(*each) + ', same starts' * judged.same_starts(each[0]) for each in compared)
    if judged.missing:
        needed = ', '.join(f'{side} {number}' for side, number in judged.missing.items())
        words = f'not counted; needs fresh seeds: {needed}'
    published = f'{_number(row.published[0])} ({row.published[1]})' if row.published else ''
    cells = [
        row.algorithm,
        f'{row.environment}',
        _steps(judged),
        *(_cell(judged, side) for side in (OURS, 'SB3', 'SBX')),
        words,
        '; '.join(verdict.significance for _, verdict in compared),
        '; '.join(f'{verdict.holm:.2g}' for _, verdict in compared),
        published,
    ]
    return '| ' + ' | '.join(cells) + ' |'


def _steps(judged: Judgement) -> str:
    ended = [run['env_steps'] for run in judged.runs(OURS) if run['error'] is None]
    ours = statistics.median(ended) if ended else judged.row.env_steps
    taken = f' ({ours:,.0f})' if ours < 0.98 * judged.row.env_steps else ''
    return f'{judged.row.env_steps:,}{taken}'


def _cell(judged: Judgement, side: str) -> str:
    if side not in (OURS, *judged.row.peers):
        return ''
    runs = judged.runs(side)
    ended = [run['secs'] for run in runs if run['error'] is None]
    if not ended:
        return f'all {len(runs)} failed' if runs else 'not run'
    failed, fresh = len(runs) - len(ended), len(judged.fresh(side))
    seeds = [f'{fresh} fresh'] * (fresh > 0) + [f'{len(runs) - fresh} tuning'] * (len(runs) > fresh)
    number = f'{" and ".join(seeds)} seed{"s" * (len(runs) > 1)}' + f', {failed} failed' * (failed > 0)
    group = judged.groups[side]
    low, high, _ = verdicts.median_interval(group.scores)
    between = '' if np.isnan(low) else f' [{_number(low)}, {_number(high)}]'
    mean = f', mean {_number(group.scores.mean())}' * (len(runs) > 1)
    area = f', area {_number(float(np.median(group.areas)))}'
    secs = f'{statistics.median(ended):.0f} s'
    return f'{_number(np.median(group.scores))}{between}{mean}{judged.solved(side)}{area}, {number}, {secs}'


def _number(value: float) -> str:
    return f'{value:.1f}' if abs(value) >= 10 else f'{value:.2f}'


def _compared(judged: Mapping[str, Judgement]) -> dict[str, list[Compared]]:
    """Returns the comparisons of each row that counts and has peers."""
    found = [(key, side) for key, each in judged.items() if not each.missing for side in each.row.peers]
    adjusted = verdicts.adjusted([judged[key].verdict(side) for key, side in found])
    compared: dict[str, list[Compared]] = {}
    for (key, side), verdict in zip(found, adjusted, strict=True):
        compared.setdefault(key, []).append((side, verdict))
    return compared


def _words(side: str, verdict: Verdict) -> str:
    word, detail = verdict.word, str(verdict).removeprefix(verdict.word)
    beside = {'equal': 'equal to', 'not told apart': 'not told apart from', 'no verdict attainable': f'{word} beside'}
    words = f'{beside[word]} {side}' if word in beside else f'**{word} than {side}**'
    return f'{words} ({verdict.probability:.2f}){detail}'


def _count(counted: Mapping[str, Judgement], apart: Mapping[str, Judgement], found: Sequence[Verdict]) -> str:
    words = [each.word for each in found]
    shares = ', '.join(f'{word} in {words.count(word)}' for word in get_args(Word))
    below = sum(each.word == 'not told apart' and each.probability < 0.5 for each in found)
    alone = sum(not each.row.peers for each in counted.values())
    compared = f'In {len(found)} comparisons tflearn is {shares}. ' if found else ''
    low = f'Of those not told apart {below} have a probability below 1/2. ' if below else ''
    return (
        f'Counted: {len(counted)} of {len(counted) + len(apart)} rows, {alone} of them without a peer. {compared}{low}'
        f'{verdicts.false_verdicts(found)} The other {len(apart)} rows do not count.'
    )


def _remarks() -> list[str]:
    """The remarks on rows, those on several rows once."""
    rows: dict[str, list[str]] = {}
    for key, row in ROWS.items():
        if row.remark:
            rows.setdefault(row.remark, []).append(f'`{key}`')
    return [*(f'- {", ".join(keys)}: {remark}' for remark, keys in rows.items()), '']


def _our_settings(judged: Judgement) -> str:
    settings, runs = judged.row.settings(OURS), judged.runs(OURS)
    bound = ', '.join(f'`{binding}`' for binding in settings['bindings'])
    commits = {run['commit'] if 'commit' in run else run['versions'].get('tflearn') for run in runs if not run['error']}
    configs = {run['config'] for run in runs if 'config' in run}
    named = ''.join(f'; {_short(each)}' for each in sorted({*filter(None, commits), *configs}))
    return f'`{judged.row.gin_file}`, {settings["mode"]}, {bound}{named}'


def _peer_settings(key: str, row: Row) -> list[str]:
    return [
        f'- `{key}`, {", ".join(row.peers)} ({peer.zoo}): `{json.dumps(dict(peer.settings))}`'
        for peer in list(row.peers.values())[:1]
    ]


def _versions(judged: Mapping[str, Judgement]) -> list[str]:
    found = {
        ' '.join(f'{name} {version}' for name, version in run['versions'].items() if name != 'tflearn')
        for each in judged.values()
        for side in (OURS, *each.row.peers)
        for run in each.runs(side)
        if run['error'] is None
    }
    return sorted(found) or ['none']


def _short(version: str) -> str:
    return re.sub(r'\b([0-9a-f]{12})[0-9a-f]{28}', r'\1', version)  # of a git revision


def picture(environment: str) -> str:
    """Returns the name of an environment's picture."""
    name = environment if ',' in environment else environment.partition('-')[0]
    return f'results_{re.sub("[^a-z0-9]+", "_", name.lower())}.png'


def _pictures(judged: Mapping[str, Judgement]) -> dict[str, list[str]]:
    """Returns environment -> rows that have runs."""
    found: dict[str, list[str]] = {}
    for key, each in judged.items():
        if each.groups:
            found.setdefault(each.row.environment, []).append(key)
    return found


def draw(path: pathlib.Path, rows: Mapping[str, Mapping[str, Group]], size: tuple[float, float] = (4.0, 3.0)) -> None:
    """Draws a panel for each row, of the size in inches: the curve of each side with its interval."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    columns = min(3, len(rows))
    lines = -(-len(rows) // columns)
    figure = Figure(figsize=(size[0] * columns, size[1] * lines), dpi=100, layout='constrained')
    panels = figure.subplots(lines, columns, squeeze=False, sharey=True).ravel()
    for axes, (key, sides) in zip(panels, rows.items(), strict=False):
        for i, (side, name) in enumerate(_NAMES.items()):
            if group := sides.get(side):
                comparison.draw_band(axes, group, name, color=f'C{i}')
        axes.set_title(ROWS[key].algorithm)
        axes.xaxis.set_major_formatter('{x:,.0f}')
        axes.locator_params(axis='x', nbins=4)
        axes.grid(alpha=0.3)
        axes.legend(frameon=False, fontsize='small')
    figure.supxlabel('environment steps')
    figure.supylabel('mean return')
    for axes in panels[len(rows) :]:
        axes.set_visible(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    FigureCanvasAgg(figure).print_png(path)


if __name__ == '__main__':
    main()
