"""Runs of gin files until their last episodes have a mean return: what they took, in seconds and environment steps."""

import contextlib
import dataclasses
import json
import pathlib
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from benchmarks import recorded_environment
from tests.testing import console_programs
from tflearn.files.run_dir import RunDir, read_json
from tflearn.launch.local import free_port

ROOT = pathlib.Path(__file__).resolve().parent.parent
WINDOW = 20  # the episodes whose mean return counts
JOBS = ('replay_server', 'train', 'collect')
START_SECS, _STOP_SECS = 120.0, 30.0


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What a run took to the goal; None if it did not get there in time.

    Attributes:
      start: the time of the first environment step [s since 1970].
      secs: seconds from then on.
      env_steps: environment steps.
      command_secs: seconds since the command was given; None also where that was not recorded.
    """

    start: float
    secs: float | None
    env_steps: int | None
    command_secs: float | None = None


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
            given = _given(path)
            return Outcome(start, secs, episodes[i - 1][2], start + secs - given if given else None)
    return Outcome(start, None, None)


def steps_per_sec(path: pathlib.Path, first_step: int) -> float | None:
    """Returns environment steps/s from the end of a run's first episode after `first_step` to that of its last one."""
    ends = [(secs, env_steps) for secs, _, env_steps in recorded_environment.read(path)[1] if env_steps > first_step]
    if not ends or ends[-1][0] == ends[0][0]:
        return None
    return (ends[-1][1] - ends[0][1]) / (ends[-1][0] - ends[0][0])


def give(path: pathlib.Path) -> None:
    """Records in the file `path` that the command is given now."""
    recorded_environment.append(path, command=time.time())


def _given(path: pathlib.Path) -> float | None:
    with open(path, encoding='utf-8') as lines:
        return json.loads(next(lines)).get('command')


def run(
    gin_file: str,
    path: pathlib.Path,
    seed: int,
    goal: float,
    limit_secs: float,
    gin_bindings: Sequence[str] = (),
    programs: Sequence[str] = JOBS,
    compiled: bool = False,
    replay_backend: str = '',
) -> None:
    """Runs jobs as processes until the goal, or for `limit_secs` of collection.

    Args:
      gin_file: with an environment of gymnasium.
      path: the file of the episodes; logs and the run's directory are beside it.
      seed: of training and collection.
      goal: the mean return of the last `WINDOW` episodes.
      limit_secs: seconds after the first environment step.
      gin_bindings: gin statements that come last.
      programs: the programs that are started, which take environment steps together.
      compiled: whether the last of them starts when the learner has compiled its programs, and waits for data.
      replay_backend: of the replay server; '' is its default.

    Raises:
      RuntimeError: if the learner did not get so far.
    """
    its_flags = flags(gin_file, path, seed, gin_bindings, programs)
    status = RunDir(path.parent / 'run').status('train')
    if not compiled:
        give(path)
    with contextlib.ExitStack() as stack:
        jobs: list[subprocess.Popen[bytes]] = []
        alive = lambda: all(job.poll() is None for job in jobs)  # noqa: E731
        has_compiled = lambda: (read_json(status) or {}).get('state') == 'waiting for data'  # noqa: E731
        for job in programs:
            if compiled and job == programs[-1]:
                wait(lambda: has_compiled() or not alive(), START_SECS)
                if not has_compiled():
                    raise RuntimeError(f'got no learner that waits for data in {path.parent}; see its log files')
            command = [sys.executable, '-m', *console_programs.words(job), *its_flags]
            if replay_backend and job == 'replay_server':
                command.append(f'--replay_backend={replay_backend}')
            jobs.append(stack.enter_context(process(command, path.with_name(f'{job}.log'))))
        wait(lambda: recorded_environment.read(path)[0] is not None or not alive(), START_SECS)
        wait(lambda: read(path, goal, limit_secs).secs is not None or not alive(), limit_secs)


def flags(
    gin_file: str, path: pathlib.Path, seed: int, gin_bindings: Sequence[str], programs: Sequence[str]
) -> list[str]:
    """Returns the flags of jobs whose environment, one of gymnasium, writes the file `path`; see `run`."""
    bindings = [
        'from benchmarks import recorded_environment',
        'from tflearn.environments import gymnasium_env',
        'make_environment=@recorded_environment.make',
        'recorded_environment.make.make_environment=@gymnasium_env.make',
        f'recorded_environment.make.path="{path.resolve()}"',
        f'train.Initial.seed={seed}',
        f'collect_settings.CollectOptions.seed={seed}',
        *gin_bindings,
    ]
    return [
        f'--root_dir={path.parent / "run"}',
        f'--gin_file={gin_file}',
        *([f'--coordinator_address=localhost:{free_port()}'] if len(programs) > 1 else []),
        *(f'--gin_bindings={binding}' for binding in bindings),
    ]


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
    from tflearn.core.waiting import wait_until

    with contextlib.suppress(TimeoutError):
        wait_until(condition, 'a run', secs)


def table(outcomes: Mapping[str, Sequence[Outcome]]) -> str:
    """Returns what the runs of each side took, as a table."""
    lines = [
        '| side | seconds of each seed | median | from the shell, median | environment steps of each seed | median |',
        '|---|---|---|---|---|---|',
    ]
    for side, found in outcomes.items():
        secs = ', '.join('-' if outcome.secs is None else f'{outcome.secs:.1f}' for outcome in found)
        steps = ', '.join('-' if outcome.env_steps is None else f'{outcome.env_steps:,}' for outcome in found)
        medians = _median(found, 'secs', '.1f'), _median(found, 'command_secs', '.1f')
        lines.append(
            f'| {side} | {secs} | {medians[0]} | {medians[1]} | {steps} | {_median(found, "env_steps", ",.0f")} |'
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
