"""How fast does a learner without Reverb train from the feed, beside one that reads the replay server itself?

    python benchmarks/feed.py --cases=dqn,sac

Both learners have a replay server of their own with the same steps, in another process. `direct` mirrors it in its own
memory and draws there; `feed` runs in a process in which Reverb cannot be imported, and gets its batches from one
worker of the feed, which holds the mirror, by tf.data service. So `feed` uses more processes: on a machine whose cores
are all busy with the learner they take time from it.

The sides are measured one after the other, in another order each round; what is not measured waits. The table has the
medians over the rounds, and the median of their ratios; `ours` is the feed, `peer` the direct learner.
"""

import argparse
import contextlib
import json
import os
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tflearn.coordinator.client import Coordinator, Role  # noqa: E402
from tflearn.coordinator.server import CoordinatorServer  # noqa: E402
from tflearn.coordinator.server import options as server_options  # noqa: E402
from tflearn.core.access import Access  # noqa: E402
from tflearn.launch.local import free_port  # noqa: E402

DIRECT, FEED = 'direct', 'feed'
NUM_STORED = 100_000
UNITS = ('train steps/s', "train steps/CPU s of the learner's process")
_DEADLINE_SECS = 300.0


def main() -> int:
    """Measures, prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--cases', default='dqn,sac')
    parser.add_argument('--jit_compile', default='False,auto', help='LoopOptions.jit_compile, each of these')
    parser.add_argument('--rounds', type=int, default=7)
    parser.add_argument('--secs', type=float, default=3.0, help='of each side in a round, about')
    parser.add_argument('--role', default='', help='internal')
    parser.add_argument('--given', default='{}', help='internal')
    options = parser.parse_args()
    if options.role:
        _ROLES[options.role](**json.loads(options.given))
        return 0
    from benchmarks import tables

    rows = []
    for case in options.cases.split(','):
        for jit_compile in options.jit_compile.split(','):
            for unit, rates in _measure(case, jit_compile, options.rounds, options.secs).items():
                rows.append(
                    {
                        'case': case,
                        'metric': 'XLA' if jit_compile == 'auto' else 'no XLA',
                        'ours': statistics.median(rates[FEED]),
                        'peer': statistics.median(rates[DIRECT]),
                        'limit': None,
                        'ratio_to_peer': tables.ratio(rates[FEED], rates[DIRECT]),
                        'ratio_to_limit': None,
                        'unit': unit,
                        'rounds': ' '.join(f'{f / d:.2f}' for f, d in zip(rates[FEED], rates[DIRECT], strict=True)),
                    }
                )
            print(tables.table(rows), flush=True)
    return 0


def _measure(case: str, jit_compile: str, rounds: int, secs: float) -> dict[str, dict[str, list[float]]]:
    """Returns the rates of each round, by unit and side."""
    rates: dict[str, dict[str, list[float]]] = {unit: {DIRECT: [], FEED: []} for unit in UNITS}
    with tempfile.TemporaryDirectory() as directory, contextlib.ExitStack() as stack:
        ports = {DIRECT: free_port(), FEED: free_port()}
        address = f'localhost:{free_port()}'
        experience = {'max_size': NUM_STORED, 'min_size': 1_000}
        sides = {side: {'port': port, 'experience': experience} for side, port in ports.items()}
        given = {'case': case, 'experience': experience, 'root': directory, 'jit_compile': jit_compile}
        replay = _start(
            stack,
            [
                *('benchmarks.replay_process', f'--case={case}', f'--sides={json.dumps(sides)}'),
                f'--num_steps={NUM_STORED}',
            ],
        )
        _expect(replay, 'serving')
        coordinator = f'localhost:{free_port()}'
        server = CoordinatorServer(server_options(coordinator, None))
        stack.enter_context(contextlib.closing(server))
        registered = stack.enter_context(contextlib.closing(Coordinator(Access(coordinator), 'replay_server')))
        registered.join(Role('replay', 0, f'localhost:{ports[FEED]}', {'all': {}}), _DEADLINE_SECS)
        feed = {**given, 'replay': coordinator, 'feed_address': address}
        for index in (None, 0):
            _start(stack, _role('feed', {**feed, 'index': index}))
        learners = {
            FEED: _start(stack, _role('learner', feed), without_reverb=True),
            DIRECT: _start(stack, _role('learner', {**given, 'replay': f'localhost:{ports[DIRECT]}'})),
        }
        for _ in learners:
            _expect(replay, 'filled')
        steps = {side: _asked(learner, secs=secs, steps=0)[0] for side, learner in learners.items()}
        for i in range(rounds):
            for side in random.Random(i).sample(list(learners), len(learners)):
                num_steps, *taken = _asked(learners[side], secs=secs, steps=steps[side])
                for unit, each in zip(UNITS, taken, strict=True):
                    rates[unit][side].append(num_steps / each)
    return rates


def _role(role: str, given: dict[str, Any]) -> list[str]:
    return ['benchmarks.feed', f'--role={role}', f'--given={json.dumps(given)}']


def _start(stack: contextlib.ExitStack, arguments: list[str], without_reverb: bool = False) -> subprocess.Popen:
    """Starts a process that is killed at the end."""
    paths = [str(ROOT / 'tests' / 'testing' / 'no_reverb')] if without_reverb else []
    process = subprocess.Popen(
        [sys.executable, '-m', *arguments],
        cwd=ROOT,
        env={**os.environ, 'PYTHONPATH': os.pathsep.join([*paths, str(ROOT)])},
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    stack.callback(process.wait, 30.0)
    stack.callback(process.kill)
    return process


def _expect(process: subprocess.Popen, start: str) -> str:
    """Returns the next line of a process that begins so."""
    lines: list[str] = []

    def read() -> None:
        while not lines or not lines[-1].startswith(start):
            line = process.stdout.readline() if process.stdout else ''
            lines.append(line)
            if not line:
                return

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    thread.join(_DEADLINE_SECS)
    if not lines or not lines[-1].startswith(start):
        sys.exit(f'got {lines[-3:]} of {process.args}; need {start!r} within {_DEADLINE_SECS:g} s')
    return lines[-1]


def _asked(learner: subprocess.Popen, **wanted: float) -> tuple[int, float, float]:
    """Trains a learner; returns the train steps, the seconds, and the seconds of CPU of its process."""
    assert learner.stdin
    learner.stdin.write(json.dumps(wanted) + '\n')
    learner.stdin.flush()
    steps, secs, cpu_secs = _expect(learner, 'trained').split()[1:]
    return int(steps), float(secs), float(cpu_secs)


class _Specs:
    """Stands for an environment of a case, of which only the specs are needed."""

    def __init__(self, specs: Any):
        self.specs = specs

    def close(self) -> None:
        pass


def _feed(case: str, experience: dict, root: str, jit_compile: str, replay: str, feed_address: str, index: int) -> None:
    """Runs the dispatcher, or a worker."""
    del jit_compile
    from benchmarks import learner_cases
    from tflearn.files.run_dir import RunDir
    from tflearn.jobs import feed
    from tflearn.jobs.run import Run

    found = learner_cases.CASES[case]
    feed.feed(
        run=Run(RunDir(root), coordinator=Access(replay), connect_timeout_secs=_DEADLINE_SECS),
        make_environment=lambda num_environments, seed: _Specs(found.specs),  # type: ignore[arg-type, return-value]
        make_agent=found.make_agent,
        experience=found.experience(**experience),
        feed_address=feed_address,
        index=index,
    )


def _learner(case: str, experience: dict, root: str, jit_compile: str, replay: str, feed_address: str = '') -> None:
    """Trains as often as it is asked to."""
    import tensorflow as tf

    from benchmarks import learner_cases
    from tflearn.core.train_step import create_train_step
    from tflearn.files.run_dir import RunDir
    from tflearn.jobs import initial_agent
    from tflearn.learner import xla_loop
    from tflearn.learner.learner import Learner, LearnerOptions
    from tflearn.learner.train_loop import LoopOptions
    from tflearn.replay.backend import Shards
    from tflearn.replay.reader import TableReader
    from tflearn.replay.storage import Storage
    from tflearn.sampling import feed_source, queues, replay_servers
    from tflearn.sampling.feed_source import FeedReader, wait_for_feed

    found = learner_cases.CASES[case]
    settings = found.experience(**experience)
    agent = found.make_agent(found.specs, create_train_step(), settings)
    storage = Storage(settings, initial_agent.data_spec(agent, settings))
    if feed_address:
        wait_for_feed(feed_address, storage, _DEADLINE_SECS)
    if not settings.replay.learns_from_old_items:
        address, reader = (feed_address, FeedReader) if feed_address else (replay, TableReader)
        strategy = tf.distribute.get_strategy()
        source = queues.make((address,), storage, agent, strategy, _DEADLINE_SECS, 0, reader)
    elif feed_address:
        source = feed_source.batches(feed_address, storage, 1, _DEADLINE_SECS)
    else:
        batch_size = settings.per_replica_batch_size
        source = replay_servers.make(Shards((replay,)), storage, batch_size, _DEADLINE_SECS, 0)
    xla_loop.AUTO_AFTER_STEPS = 0  # 'auto' chooses at once
    loop = LoopOptions(jit_compile='auto' if jit_compile == 'auto' else False)
    options = LearnerOptions(checkpoint_interval_steps=None, summaries=None, loop=loop)
    learner = Learner(agent, source, RunDir(f'{root}/{feed_address or "direct"}'), options=options)
    learner.run(1)  # opens the streams
    for line in sys.stdin:
        wanted = json.loads(line)
        steps, start, cpu = int(wanted['steps']), time.perf_counter(), time.process_time()
        if steps:
            learner.run(steps)
        else:  # as many as fit
            steps = 200
            learner.run(steps)
            while (secs := time.perf_counter() - start) < 1.0 or steps < 400:
                learner.run(200)
                steps += 200
            steps, start = max(200, int(wanted['secs'] * steps / secs)), time.perf_counter()
        print('trained', steps, time.perf_counter() - start, time.process_time() - cpu, flush=True)


_ROLES = {'feed': _feed, 'learner': _learner}

if __name__ == '__main__':
    sys.exit(main())
