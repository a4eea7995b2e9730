"""Runs of gin files until their last episodes have a mean return: what they took, in seconds and environment steps."""

import contextlib
import dataclasses
import pathlib
import signal
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence

from benchmarks import recorded_environment
from tflearn.launch.local import free_port

ROOT = pathlib.Path(__file__).resolve().parent.parent
WINDOW = 20  # the episodes whose mean return counts
START_SECS, _STOP_SECS = 120.0, 30.0


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What a run took to the goal; None if it did not get there in time. `start` is in seconds since 1970."""

    start: float
    secs: float | None
    env_steps: int | None


def read(path: pathlib.Path, goal: float, limit_secs: float) -> Outcome:
    """Returns how the run went that wrote the file `path`.

    Raises:
      RuntimeError: if it took no environment step.
    """
    start, episodes = recorded_environment.read(path)
    if start is None:
        raise RuntimeError(f'got no environment step in {path.parent}; see its log files')
    for i in range(WINDOW, len(episodes) + 1):
        secs = episodes[i - 1][0] - start
        if secs <= limit_secs and statistics.fmean(episode[1] for episode in episodes[i - WINDOW : i]) >= goal:
            return Outcome(start, secs, episodes[i - 1][2])
    return Outcome(start, None, None)


def run(
    gin_file: str, path: pathlib.Path, seed: int, goal: float, limit_secs: float, gin_bindings: Sequence[str] = ()
) -> None:
    """Runs the jobs replay_server, train and collect as processes until the goal, or for `limit_secs` of collection.

    Args:
      gin_file: with an environment of gymnasium.
      path: the file of the episodes; logs and the run's directory are beside it.
      seed: of training and collection.
      goal: the mean return of the last `WINDOW` episodes.
      limit_secs: seconds after the first environment step.
      gin_bindings: gin statements that come last.
    """
    bindings = [
        'from benchmarks import recorded_environment',
        'make_environment=@recorded_environment.make',
        'recorded_environment.make.make_environment=@gymnasium_env.make',
        f'recorded_environment.make.path="{path.resolve()}"',
        f'train.Initial.seed={seed}',
        f'collect.collect.seed={seed}',
        *gin_bindings,
    ]
    flags = [
        f'--root_dir={path.parent / "run"}',
        f'--gin_file={gin_file}',
        f'--replay_address=localhost:{free_port()}',
        *(f'--gin_bindings={binding}' for binding in bindings),
    ]
    with contextlib.ExitStack() as stack:
        jobs = [
            stack.enter_context(process([sys.executable, '-m', f'scripts.{job}', *flags], path.with_name(f'{job}.log')))
            for job in ('replay_server', 'train', 'collect')
        ]
        alive = lambda: all(job.poll() is None for job in jobs)  # noqa: E731
        wait(lambda: recorded_environment.read(path)[0] is not None or not alive(), START_SECS)
        wait(lambda: read(path, goal, limit_secs).secs is not None or not alive(), limit_secs)


@contextlib.contextmanager
def process(
    command: Sequence[str], log: pathlib.Path, stop_secs: float = _STOP_SECS
) -> Iterator[subprocess.Popen[bytes]]:
    """A program whose output goes to `log`; it is stopped at the end of the block, and killed after `stop_secs`."""
    with open(log, 'w', encoding='utf-8') as output:
        started = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, cwd=ROOT)
        try:
            yield started
        finally:
            started.send_signal(signal.SIGTERM)
            try:
                started.wait(stop_secs)
            except subprocess.TimeoutExpired:
                started.kill()
                started.wait()


def wait(condition: Callable[[], bool], secs: float) -> None:
    """Waits for a condition, or for so many seconds."""
    from tflearn.waiting import wait_until

    with contextlib.suppress(TimeoutError):
        wait_until(condition, 'a run', secs)


def table(outcomes: Mapping[str, Sequence[Outcome]]) -> str:
    """Returns what the runs of each side took, as a table."""
    lines = [
        '| side | seconds of each seed | median | environment steps of each seed | median |',
        '|---|---|---|---|---|',
    ]
    for side, found in outcomes.items():
        secs = ', '.join('-' if outcome.secs is None else f'{outcome.secs:.1f}' for outcome in found)
        steps = ', '.join('-' if outcome.env_steps is None else f'{outcome.env_steps:,}' for outcome in found)
        lines.append(
            f'| {side} | {secs} | {_median(found, "secs", ".1f")} | {steps} | {_median(found, "env_steps", ",.0f")} |'
        )
    return '\n'.join(lines)


def _median(found: Sequence[Outcome], name: str, form: str) -> str:
    value = middle(found, name)
    return '-' if value is None else format(value, form)


def middle(found: Sequence[Outcome], name: str) -> float | None:
    """The median, where a run that did not get there took longer than any other; None if that is the median."""
    values = [getattr(outcome, name) for outcome in found]
    median = statistics.median([float('inf') if value is None else value for value in values] or [float('inf')])
    return None if median == float('inf') else median
