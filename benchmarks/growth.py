"""What binds as the work grows? Environment steps/s and train steps/s, one dimension at a time.

    python benchmarks/growth.py --json=FILE --pictures=docs/images

IMPALA on CartPole-v1 by separate jobs (a replay server, a learner, collectors): one collector of 16 environments, rows
of about 50 bytes, a network of 10,000 weights, batches of 16 sequences of 32 steps; but for one of
 - collectors: 1 to 8 processes of 16 environments;
 - environments: 1 to 1,024 in one collector;
 - weights: 10^4 to 10^8 in two layers;
 - row_bytes: 50 to 100,000, by observations of so many random numbers;
and replay_items, 10^4 to 10^7, which is in one process: DQN trains on batches of 64 from a replay that was filled
with so many rows; its environment steps/s are those that filled it.

A point is measured for --secs. What binds is read from it: "learner" if the learner waits for data for less than a
fifth of its time, else "cores" if the programs keep nine tenths of all cores busy, "collectors" if one of them keeps a
core busy, and "waiting" (for messages) if none of these; with replay_items it is always the
learner. What is in --json is not measured again.
"""

import contextlib
import dataclasses
import os
import pathlib
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any

import gymnasium
import numpy as np

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks import command_line, recorded_runs  # noqa: E402
from benchmarks.control import cpu_secs  # noqa: E402
from tflearn.core.types import BatchedEnvironment  # noqa: E402
from tflearn.core.waiting import wait_until  # noqa: E402
from tflearn.environments import vector_env  # noqa: E402
from tflearn.files.run_dir import RunDir, read_json  # noqa: E402
from tflearn.launch.local import free_port  # noqa: E402

POINTS: dict[str, list[int]] = {
    'collectors': [1, 2, 4, 8],
    'environments': [1, 4, 16, 64, 256, 1_024],
    'weights': [10**k for k in range(4, 9)],
    'row_bytes': [50, 500, 5_000, 50_000, 100_000],
    'replay_items': [10**k for k in range(4, 8)],
}
WARM_SECS = 3.0
EPISODE_STEPS = 200
_ROW_BYTES_BESIDES = 34  # of a row: its action, reward and so on
_OFTEN = 10**9


class Numbers(gymnasium.Env):
    """Observations of random numbers, two of which alternate; episodes of 200 steps."""

    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, size: int):
        self.observation_space = gymnasium.spaces.Box(-1, 1, (size,), np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """See `gymnasium.Env`."""
        random = np.random.default_rng(0)
        self._both, self._steps = random.uniform(-1, 1, (2, *self.observation_space.shape)).astype(np.float32), 0
        return self._both[0], {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """See `gymnasium.Env`."""
        self._steps += 1
        return self._both[self._steps % 2], 1.0, False, self._steps == EPISODE_STEPS, {}


def make(num_environments: int, seed: int | None, size: int) -> BatchedEnvironment:
    """Makes environments of `size` numbers, see `EnvironmentFactory`."""
    return vector_env.in_process(lambda: Numbers(size), num_environments, seed)


def main() -> None:
    """Measures what is missing, prints the tables, draws."""
    parser = command_line.parser(__doc__, 'keeps the figures of each point')
    parser.add_argument('--dimensions', nargs='+', choices=[*POINTS], default=[*POINTS])
    parser.add_argument('--secs', type=float, default=10.0, help='of a point')
    parser.add_argument('--pictures', type=pathlib.Path, default=None, help='a directory for growth_<dimension>.png')
    parser.add_argument('--max_secs', type=float, default=None, help='begins no point after so long')
    options = parser.parse_args()
    found: dict[str, Any] = command_line.kept(options.json)
    begun = time.monotonic()
    for dimension in options.dimensions:
        for value in POINTS[dimension]:
            if options.max_secs and time.monotonic() - begun > options.max_secs:
                break
            if (key := f'{dimension} {value}') not in found:
                found[key] = measure(dimension, value, options.secs)
                print(key, found[key], file=sys.stderr, flush=True)
                command_line.write(options.json, found)
        figures = {value: found[key] for value in POINTS[dimension] if (key := f'{dimension} {value}') in found}
        print(f'\n{table(dimension, figures)}')
        if options.pictures and figures:
            draw(options.pictures / f'growth_{dimension}.png', dimension, figures)


def measure(dimension: str, value: int, secs: float) -> dict[str, Any]:
    """Measures a point; returns its rates, and what binds."""
    return _replay(value, secs) if dimension == 'replay_items' else _jobs(dimension, value, secs)


def bindings(dimension: str, value: int) -> list[str]:
    """Returns the gin statements of a point."""
    units = round(value**0.5) if dimension == 'weights' else 100
    values: dict[str, Any] = {
        'collect.collect.num_environments': value if dimension == 'environments' else 16,
        'networks.NetworkOptions.fc_layer_params': (units, units),
        'networks.NetworkOptions.shared': True,
        'experience.Slicing.sequence_length': 33,
        'experience.Slicing.stride': 32,
        'experience.Slicing.pad_episodes': False,
        'experience.Slicing.cross_episodes': True,
        'experience.BatchItems.per_replica': 16,
        'experience.Queue.max_size': 64,
        'train.StopConditions.num_train_steps': _OFTEN,
        'train.Intervals.export_interval_steps': _OFTEN,
    }
    lines = ['from tflearn.environments import gymnasium_env', 'make_environment=@gymnasium_env.make']
    lines += ["gymnasium_env.make.name='CartPole-v1'"]
    if dimension == 'row_bytes':
        size = max(1, (value - _ROW_BYTES_BESIDES) // 4)
        lines = ['from benchmarks import growth', 'make_environment=@growth.make', f'growth.make.size={size}']
    return [*lines, *(f'{name}={each!r}' for name, each in values.items())]


def _jobs(dimension: str, value: int, secs: float) -> dict[str, Any]:
    names = [f'collect_{i}' for i in range(value if dimension == 'collectors' else 1)]
    with tempfile.TemporaryDirectory() as folder, _started(pathlib.Path(folder), dimension, value, names) as pids:
        run_dir = RunDir(pathlib.Path(folder) / 'run')

        def snapshot(after: Mapping[str, Any]) -> dict[str, Any]:
            """Waits until the learner has reported a newer train step, and the collectors have reported since."""

            def read() -> dict[str, Any] | None:
                status = {name: read_json(run_dir.status(name)) or {} for name in ('train', *names)}
                train = status['train'].get('train_step') or 0
                is_new = all(one.get('time', 0) > after.get(name, {}).get('time', 0) for name, one in status.items())
                is_newer = train > (after.get('train', {}).get('train_step') or 0)
                return status if is_new and is_newer else None

            found: dict[str, Any] = wait_until(read, 'a train step', recorded_runs.START_SECS, poll_secs=0.1)
            return {**found, 'cpu': {name: cpu_secs(pid) for name, pid in pids.items()}, 'at': time.monotonic()}

        _sleep_after(first := snapshot({}), WARM_SECS)
        before = snapshot(first)
        _sleep_after(before, secs)
        after = snapshot(before)

    def rate(name: str, metric: str) -> float:
        return (after[name][metric] - before[name][metric]) / (after[name]['time'] - before[name]['time'])

    cores = {name: (after['cpu'][name] - before['cpu'][name]) / (after['at'] - before['at']) for name in pids}
    waits = after['train'].get('data_wait_share') or 0.0
    return {
        'env_steps_per_sec': sum(rate(name, 'env_steps') for name in names),
        'train_steps_per_sec': rate('train', 'train_step'),
        'data_wait_share': waits,
        'cores': cores,
        'binds': _what_binds(waits, cores, [cores[name] for name in names]),
    }


def _what_binds(waits: float, cores: Mapping[str, float], collectors: list[float]) -> str:
    if waits < 0.2:
        return 'learner'
    if sum(cores.values()) > 0.9 * (os.cpu_count() or 1):
        return 'cores'
    return 'collectors' if max(collectors) > 0.85 else 'waiting'


@contextlib.contextmanager
def _started(folder: pathlib.Path, dimension: str, value: int, names: list[str]) -> Iterator[dict[str, int]]:
    """Starts the jobs; gives their processes."""
    flags = [
        f'--root_dir={folder}/run',
        '--gin_file=algorithms/impala',
        f'--coordinator_address=localhost:{free_port()}',
    ]
    flags += [f'--gin_bindings={line}' for line in bindings(dimension, value)]
    with contextlib.ExitStack() as stack:
        pids = {}
        for name in ('replay_server', 'train', *names):
            job, more = (name, []) if name not in names else ('collect', [f'--collector_name={name}'])
            command = [sys.executable, '-m', f'scripts.{job}', *flags, *more]
            pids[name] = stack.enter_context(recorded_runs.process(command, folder / f'{name}.log', stop_secs=5.0)).pid
        yield pids


def _sleep_after(snapshot: Mapping[str, Any], secs: float) -> None:
    threading.Event().wait(max(0.0, snapshot['at'] + secs - time.monotonic()))


def _replay(items: int, secs: float) -> dict[str, Any]:
    """Fills a replay, and trains on it for a while."""
    from benchmarks import learner_cases
    from tflearn.agents import dqn
    from tflearn.core.experience import BatchItems, Experience, Uniform
    from tflearn.core.train_step import create_train_step
    from tflearn.learner.learner import Learner, LearnerOptions
    from tflearn.learner.train_loop import LoopOptions
    from tflearn.replay.storage import Storage
    from tflearn.sampling.ring_source import LocalReplay

    together = min(1_000, items // 100)
    case = dataclasses.replace(learner_cases.CASES['dqn'], batch_size=64)
    experience = Experience(
        replay=Uniform(max_size=items, min_size=1, samples_per_insert=1e9), batch=BatchItems(case.batch_size)
    )
    agent = dqn.make_agent(case.specs, create_train_step(), experience)
    source = LocalReplay(Storage(experience, agent.collect_data_spec), together, case.batch_size)
    steps = learner_cases.steps(case, together)
    rows = [next(steps) for _ in range(50)]
    start = time.monotonic()
    for i in range(items // together):
        source(rows[i % len(rows)], 0)
    filled = time.monotonic() - start
    with tempfile.TemporaryDirectory() as folder:
        options = LearnerOptions(None, None, loop=LoopOptions(jit_compile=True))
        learner = Learner(agent, source, RunDir(pathlib.Path(folder)), options=options)
        learner.run(2_000)
        start, count = time.monotonic(), 0
        while time.monotonic() - start < secs:
            learner.run(500)
            count += 500
        rate = count / (time.monotonic() - start)
    return {'env_steps_per_sec': items / filled, 'train_steps_per_sec': rate, 'binds': 'learner'}


def table(dimension: str, figures: Mapping[int, Mapping[str, Any]]) -> str:
    """Returns the points of a dimension as a table."""
    lines = [f'| {dimension} | environment steps/s | train steps/s | what binds |', '|---|---|---|---|']
    for value, one in figures.items():
        rates = f'{one["env_steps_per_sec"]:,.0f} | {one["train_steps_per_sec"]:,.3g}'
        lines.append(f'| {value:,} | {rates} | {one["binds"]} |')
    return '\n'.join(lines)


def draw(path: pathlib.Path, dimension: str, figures: Mapping[int, Mapping[str, Any]]) -> None:
    """Draws both rates against a dimension, with what binds at each point."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 4), dpi=110, layout='constrained')
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    for name, label in (('env_steps_per_sec', 'environment steps/s'), ('train_steps_per_sec', 'train steps/s')):
        axes.plot([*figures], [one[name] for one in figures.values()], marker='.', label=label)
    for value, one in figures.items():
        axes.annotate(one['binds'], (value, one['env_steps_per_sec']), textcoords='offset points', xytext=(0, 6))
    axes.set(xscale='log', yscale='log', xlabel=dimension.replace('_', ' '))
    axes.grid(alpha=0.3)
    axes.legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


if __name__ == '__main__':
    main()
