"""What do checkpoints and exports cost a learner that trains meanwhile?

    python benchmarks/learner_stalls.py --case=sac --interval=100

Two learners train alternately, in another order each round, on the same constant data; one of them saves a checkpoint
and exports its policy every `interval` train steps. Its time includes the background writes: each measurement ends when
the last one is written. A stall is the time that such a call keeps the training thread.
"""

import pathlib
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import tensorflow as tf

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks import command_line, learner_cases, tables  # noqa: E402
from tflearn.core.background import Background  # noqa: E402
from tflearn.core.train_step import create_train_step  # noqa: E402
from tflearn.files.run_dir import RunDir  # noqa: E402
from tflearn.learner.learner import Learner, LearnerOptions  # noqa: E402
from tflearn.learner.triggers import PeriodicAction  # noqa: E402
from tflearn.policies.exporter import PolicyExporter  # noqa: E402


class Saver:
    """A learner that saves and exports, and the milliseconds that this kept it."""

    def __init__(self, case: learner_cases.Case, run_dir: RunDir, interval: int | None):
        agent = case.make_agent(case.specs, create_train_step(), case.experience())
        self.stalls: dict[str, list[float]] = {'checkpoint': [], 'export': []}
        triggers = []
        if interval:
            save = self._timed('checkpoint', lambda _: self.learner.save())
            export = self._timed('export', lambda step: self._exports.submit(self._exporter.snapshot(step, {})))
            triggers = [PeriodicAction(save, every_steps=interval), PeriodicAction(export, every_steps=interval)]
        batch = learner_cases.batch(case)
        self.learner = Learner(
            agent,
            lambda _: tf.data.Dataset.from_tensors((batch, ())).cache().repeat(),
            run_dir,
            triggers=triggers,
            options=LearnerOptions(checkpoint_interval_steps=None, summaries=None),
        )
        self._exporter, self._exports = PolicyExporter(agent.policy, run_dir.greedy_policy), Background('exports')
        self._exporter.export(0, {})

    def _timed(self, name: str, action: Callable[[int], object]) -> Callable[[int], None]:
        def timed(step: int) -> None:
            start = time.perf_counter()
            action(step)
            self.stalls[name].append(1e3 * (time.perf_counter() - start))

        return timed

    def steps_per_sec(self, num_steps: int, steps_per_call: int) -> float:
        """Trains until everything is written, and returns the rate."""
        start = time.perf_counter()
        for _ in range(num_steps // steps_per_call):
            self.learner.run(steps_per_call)
        self._wait()
        return num_steps / (time.perf_counter() - start)

    def close(self) -> None:
        """Ends the learner."""
        self.learner.close()
        self._wait()

    def _wait(self) -> None:
        self.learner.checkpoints.wait()
        self._exports.join(600.0)
        self._exports.raise_failure()


def main() -> int:
    """Measures, prints the table."""
    parser = command_line.parser(__doc__)
    parser.add_argument('--case', choices=learner_cases.CASES, default='sac')
    parser.add_argument('--interval', type=int, default=100, help='train steps between two checkpoints, two exports')
    parser.add_argument('--rounds', type=int, default=9)
    parser.add_argument('--quick', action='store_true', help='three short rounds')
    options = parser.parse_args()
    intervals_a_round = 10
    if options.quick:
        options.rounds, intervals_a_round = 3, 3
    rows = _measure(learner_cases.CASES[options.case], options.interval, options.rounds, intervals_a_round)
    command_line.finish(options.json, rows)
    return 0


def _measure(case: learner_cases.Case, interval: int, rounds: int, intervals_a_round: int) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as directory:
        plain = Saver(case, RunDir(f'{directory}/plain'), None)
        saver = Saver(case, RunDir(f'{directory}/saver'), interval)
        for learner in (plain, saver):
            learner.steps_per_sec(2 * interval, interval)
        for stalls in saver.stalls.values():
            stalls.clear()
        num_steps = intervals_a_round * interval
        rates: dict[Saver, list[float]] = {saver: [], plain: []}
        order = random.Random(0)
        for _ in range(rounds):
            for learner in order.sample([saver, plain], 2):
                rates[learner].append(learner.steps_per_sec(num_steps, interval))
        saver.close()
        plain.close()
    ours, limit = rates[saver], rates[plain]
    nothing = {'peer': None, 'limit': None, 'ratio_to_peer': None, 'ratio_to_limit': None}
    rows = [
        {
            'case': f'{case.name}: checkpoint and export each {interval} steps',
            'metric': 'train steps/s beside a learner that saves nothing',
            'ours': statistics.median(ours),
            **nothing,
            'limit': statistics.median(limit),
            'ratio_to_limit': tables.ratio(ours, limit),
            'unit': 'train steps/s',
            'rounds': rounds,
        }
    ]
    for name, stalls in saver.stalls.items():
        for word, stall in (('median', statistics.median(stalls)), ('longest', max(stalls))):
            metric = f'{name}: {word} stall'
            rows.append({'case': case.name, 'metric': metric, 'ours': stall, **nothing, 'unit': 'ms', 'rounds': rounds})
    return rows


if __name__ == '__main__':
    sys.exit(main())
