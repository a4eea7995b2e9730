"""The report of runs: one HTML page that needs nothing else.
It says which setting was best, how sure that is, what was slow, and how to repeat it.
"""

import base64
import collections
import contextlib
import dataclasses
import datetime
import pathlib
import re
import shlex
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

import tflearn
from tflearn.actors import evaluation_record, learning_curve
from tflearn.core import extras
from tflearn.core.errors import UserValueError
from tflearn.extensions.experiments import checks, comparison, overview, series
from tflearn.extensions.experiments.checks import Series
from tflearn.extensions.experiments.comparison import Axis, Comparison, Group
from tflearn.files import messages
from tflearn.files.run_dir import RunDir, read_json, write_atomically
from tflearn.launch.reports import COLLECT_PARTS, quoted, shares

with extras.needed_by('tflearn report'):
    import jinja2

_MAX_VIDEO_BYTES = 2_500_000
_TEMPLATE = pathlib.Path(__file__).with_name('report.html')


def write(
    runs: Sequence[str],
    output: pathlib.Path,
    axis: Axis = 'env_steps',
    metric: str = 'return',
    lower_is_better: bool = False,
) -> str:
    """Writes the page; returns the answers that it begins with as lines of text.
    For the arguments see `compare`.

    Raises:
      ValueError: if there is no run, or no evaluation with the metric.
    """
    groups = comparison.groups_of(runs)
    found = comparison.of_groups(groups, axis, metric, lower_is_better)
    order = sorted(found.groups, key=lambda group: np.median(group.scores), reverse=not lower_is_better)
    page = _Page(dataclasses.replace(found, groups=tuple(order)), groups)
    title = f'Report of {", ".join(group.label for group in order)}'
    template = jinja2.Template(_TEMPLATE.read_text('utf-8'), autoescape=True, trim_blocks=True, lstrip_blocks=True)
    write_atomically(output, template.render(title=title, page=page))
    return '\n'.join(f'{question} {answer}' for question, answer in page.answers().items())


class _Page:
    """The parts of the page, for its template.
    The first group of the comparison is the best one.
    """

    endings_head = 'group', 'run', *overview.HEAD

    def __init__(self, found: Comparison, groups: Mapping[str, Sequence[RunDir]]):
        self.origin = f'Written by tflearn {tflearn.__version__}, {_at(time.time())}.'
        self.found, self.labels = found, [group.label for group in found.groups]
        self._groups = {group.label: groups[group.label] for group in found.groups}
        self._series = {label: [_read_series(run) for run in its_runs] for label, its_runs in self._groups.items()}
        self._times = {
            label: [_times(run, its) for run, its in zip(its_runs, self._series[label], strict=True)]
            for label, its_runs in self._groups.items()
        }

    def answers(self) -> dict[str, str]:
        """Returns the four answers by their questions."""
        best = self.found.groups[0]
        return {
            'Which setting was best?': f'{best.label}: {self.found.metric} {best}, over {_runs(best)}',
            'How sure is that?': self._certainty(best),
            'What was slow?': '; '.join(f'{label}: {_bottleneck(times)}' for label, times in self._times.items()),
            'How do I repeat it?': _command(best.label, self._groups[best.label]),
        }

    def _certainty(self, best: Group) -> str:
        texts = [
            f'{label} beside {best.label}: ' + (f'{each}, p {each.significance}' if each else comparison.TOO_FEW)
            for label, each in self.found.verdicts().items()
        ]
        return '; '.join(texts) or f'there is no other setting to compare with; these are {_runs(best)}'

    def curves(self) -> dict[str, str]:
        """Returns the pictures of the learning curves by what they show."""
        metric, axis = self.found.metric, self.found.axis
        pictures = {f'{metric} by {axis}': _picture(self.found.draw)}
        if axis != 'secs':
            # Evaluations that do not know when their policy was exported.
            with contextlib.suppress(UserValueError):
                by_secs = comparison.of_groups(self._groups, 'secs', metric, self.found.lower_is_better)
                pictures[f'{metric} by seconds'] = _picture(by_secs.draw)
        return pictures

    def slow_rows(self) -> Iterator[Sequence[object]]:
        """Yields where the time of each run went, and what its metrics show."""
        for label, its_runs in self._groups.items():
            for run, times, its_series in zip(its_runs, self._times[label], self._series[label], strict=True):
                findings = checks.run_all(its_series)
                wrong = [f'{finding.check}: {finding.text}' for finding in findings if finding.wrong]
                looks, parts = '; '.join(wrong) or checks.summary(findings), (shares(times[0]), _by_job(times[1]))
                yield label, run.root.name, *parts, _bottleneck([times]), _speed(run, its_series), looks

    def returns_rows(self) -> Iterator[Sequence[object]]:
        """Yields the quantiles of the returns of each run's best evaluation."""
        for label, its_runs in self._groups.items():
            for run in its_runs:
                if best := self._best(run):
                    quantiles = np.quantile(best['returns'], (0.0, 0.25, 0.5, 0.75, 1.0))
                    numbers = best['train_step'], len(best['returns']), best['mean_return'], *quantiles
                    yield label, run.root.name, *(f'{number:.6g}' for number in numbers)

    def distribution(self) -> str:
        """Returns the picture of these returns."""

        def draw(path: pathlib.Path) -> None:
            with learning_curve.image(path) as axes:
                for label, its_runs in self._groups.items():
                    returns = np.concatenate([best['returns'] for run in its_runs if (best := self._best(run))])
                    axes.ecdf(returns, complementary=True, label=f'{label} ({len(returns)} episodes)')
                axes.set_xlabel('return')
                axes.set_ylabel('share of the episodes with at least this return')

        return _picture(draw)

    def _best(self, run: RunDir) -> dict[str, Any] | None:
        """Returns the best evaluation of a run by the metric."""
        found = {
            number: each
            for each in evaluation_record.read(run.evaluations)
            if (number := evaluation_record.value(each, self.found.metric)) is not None
        }
        return found[(min if self.found.lower_is_better else max)(found)] if found else None

    def video(self) -> tuple[str, str | None]:
        """Returns a caption and the newest video of the best run up to its best policy,
        or why there is none.
        """
        group = self.found.groups[0]
        name = group.names[int((np.argmin if self.found.lower_is_better else np.argmax)(group.scores))]
        run = next(run for run in self._groups[group.label] if run.root.name == name)
        best = (self._best(run) or {}).get('train_step', 0)
        steps = {int(path.name.rpartition('_')[2]): path for path in run.videos.glob('train_step_*')}
        files = sorted(steps[min(steps, key=lambda step: abs(step - best))].glob('*.mp4')) if steps else []
        if not files:
            return 'None was recorded (evaluate.evaluate.record_video = @window.record).', None
        if files[0].stat().st_size > _MAX_VIDEO_BYTES:
            return f'It is too large for this page: {files[0]}', None
        caption = f'{run.root.name}, {files[0].parent.name.replace("_", " ")} (best: {best}):'
        return caption, base64.b64encode(files[0].read_bytes()).decode()

    def endings(self) -> list[Sequence[object]]:
        """Returns what ended each run, for the columns of `endings_head`."""
        rows = [(label, run, overview.cells(run)) for label, its in self._groups.items() for run in its]
        # A page is read later: how long ago something was would mean nothing then.
        return [(label, run.root.name, *cells[:-1], _at(overview.reported_at(run))) for label, run, cells in rows]

    def differences(self) -> list[list[str]]:
        """Returns the settings that differ between groups, or within one, but for the seeds."""
        values = {
            label: [{name: repr(value) for name, value in overview.settings(run).items()} for run in its_runs]
            for label, its_runs in self._groups.items()
        }
        names = {name: None for its in values.values() for each in its for name in each if not name.endswith('.seed')}
        rows = [
            [name, *(' or '.join(sorted({each.get(name, 'unset') for each in its})) for its in values.values())]
            for name in names
        ]
        return [row for row in rows if len({*row[1:]}) > 1 or ' or ' in row[1]]

    def configurations(self) -> dict[str, str]:
        """Returns the configuration of each group's first run, by its title."""
        return {
            f'{label}, {first.root.name}: config.gin': first.config.read_text(encoding='utf-8')
            for label, (first, *_) in self._groups.items()
            if first.config.exists()
        }

    def commands(self) -> Iterator[str]:
        """Yields what repeats the runs, in lines."""
        for label, its_runs in self._groups.items():
            policy = read_json(its_runs[0].greedy_policy / 'best' / 'metadata.json', messages.Metadata) or {}
            names = ('tflearn_version', 'tensorflow_version', 'code_revision')
            facts = [f'{name} {policy[name]}' for name in names if name in policy]
            yield f'# {label}: {", ".join(facts)}\n{_command(label, its_runs)}\n'


def _at(secs: float | None) -> str:
    """Returns a moment [s since 1970] as a date and a time."""
    if secs is None:
        return ''
    return datetime.datetime.fromtimestamp(secs).astimezone().isoformat(' ', 'seconds')


def _read_series(run: RunDir) -> Series:
    with contextlib.suppress(UserValueError):  # without summaries
        return series.read(run)
    return {}


# Seconds of the learner's parts, and by job of the collectors'.
Times = tuple[Mapping[str, float], Mapping[str, Mapping[str, float]]]


def _times(run: RunDir, its_series: Series) -> Times:
    """Returns where a run's time went, as far as it is recorded."""
    statuses = run.statuses()
    train = statuses.get('train', {})
    apart = {name: each for name, each in statuses.items() if name != 'train' and 'policy_secs' in each}
    # The learner's status has the sum of all collectors, also of those in processes of their own.
    collectors = {
        job: {part: float(each.get(f'{part}_secs') or 0.0) for part in COLLECT_PARTS}
        for job, each in (apart or {'train': train}).items()
    }
    rate = its_series.get('train/steps_per_sec')
    if rate is None:
        return {}, collectors
    secs = np.diff(rate.steps, prepend=0) / np.maximum(rate.values, 1e-9)
    parts = {'waiting for data': 0.0, 'publishing, exporting, saving': 0.0}
    for part, tag, unit in zip(parts, ('data_wait_share', 'trigger_secs'), (secs, np.ones_like(secs)), strict=True):
        if points := its_series.get(f'train/{tag}'):
            parts[part] = float((np.interp(rate.steps, points.steps, points.values) * unit).sum())
    if not apart and not run.commands.exists():  # collected in the learner's process
        parts['collecting'] = sum(collectors['train'].values())
    return {'training': max(0.0, float(secs.sum() - np.sum([*parts.values()]))), **parts}, collectors


def _by_job(collectors: Mapping[str, Mapping[str, float]]) -> str:
    """Returns where each collector's time went;
    a sum would hide one that is slow for a reason of its own.
    """
    texts = {job: shares(collectors[job]) for job in sorted(collectors)}
    return '; '.join(f'{job}: {text}' if len(texts) > 1 else text for job, text in texts.items())


def _speed(run: RunDir, its_series: Series) -> str:
    done = read_json(run.done, messages.Done) or {}
    secs, rss = done.get('seconds') or 0.0, its_series.get('train/rss_mb')
    known = [name for name in ('train_step', 'env_steps') if secs and done.get(name) is not None]
    rates = [f'{done[name] / secs:,.0f} {name.replace("_", " ")}s/s' for name in known]
    return ', '.join([*rates, *([f'learner {rss.values[-1]:,.0f} MB'] if rss else [])]).replace('stepss', 'steps')


def _bottleneck(times: Sequence[Times]) -> str:
    """Names what took the greatest part of the time of some runs."""
    learner, collectors = collections.Counter[str](), collections.Counter[str]()
    for of_learner, of_collectors in times:
        learner.update(of_learner)  # type: ignore[arg-type]  # which adds any numbers
        for each in of_collectors.values():
            collectors.update(each)  # type: ignore[arg-type]
    if not learner.total():
        return 'not recorded (train.SummaryOptions.interval_steps)'
    ((most, secs),) = learner.most_common(1)
    text = f"{most}, {secs / learner.total():.0%} of the learner's time"
    if most in ('waiting for data', 'collecting') and collectors.total():
        ((part, secs),) = collectors.most_common(1)
        text += f"; of the collectors' time {part} took {secs / collectors.total():.0%}"
    return text


def _command(label: str, runs: Sequence[RunDir]) -> str:
    """Returns the command that repeats the runs of a group, in another directory."""
    first = runs[0]
    if not first.config.exists():
        return f'# {label} recorded no configuration: repeat the call that started it'
    config, seeds = quoted(first.config), [re.fullmatch(r'seed_(\d+)', run.root.name) for run in runs]
    root, in_processes = f'--root_dir={shlex.quote(f"runs/{pathlib.Path(label).name}_again")}', first.commands.exists()
    if all(seeds):
        numbers = sorted(int(seed[1]) for seed in seeds if seed)
        mode = '' if in_processes else ' --mode=synchronous'
        return f'tflearn seeds --gin_file={config} {root} --first_seed={numbers[0]} --seeds={len(numbers)}{mode}'
    if in_processes:
        return f'tflearn-launch --gin_file={config} {root}'
    return f'tflearn synchronous --gin_file={config} {root}'


def _runs(group: Group) -> str:
    return f'{len(group.names)} run{"s" * (len(group.names) > 1)}'


def _picture(draw: Callable[[pathlib.Path], object]) -> str:
    """Returns a picture that `draw` writes to a file, in base64."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / 'picture.png'
        draw(path)
        return base64.b64encode(path.read_bytes()).decode()
