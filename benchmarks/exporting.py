"""What do exports cost a learner that trains meanwhile?

    python benchmarks/exporting.py

Two learners train alternately on the same constant data. One of them exports its greedy, collect and raw policies every
`interval` train steps, as the train job does. The order changes from round to round. A stall is the time that taking
the snapshots keeps the training thread.
"""

import pathlib
import statistics
import sys
import tempfile
import time
from typing import Any

import tensorflow as tf

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks import command_line, learner_cases, tables  # noqa: E402
from tflearn.core.train_step import create_train_step  # noqa: E402
from tflearn.files.run_dir import RunDir  # noqa: E402
from tflearn.jobs.policy_exports import ExportOptions, PolicyExports  # noqa: E402
from tflearn.learner.learner import Learner, LearnerOptions  # noqa: E402
from tflearn.learner.triggers import PeriodicAction  # noqa: E402
from tflearn.policies import versions  # noqa: E402

# Intervals of one measurement: some seconds.
INTERVALS = {'dqn': 10, 'sac': 1}


class Trainer:
    """A learner that may export, and the milliseconds that this kept it."""

    def __init__(self, case: learner_cases.Case, run_dir: RunDir, interval: int | None, options: ExportOptions):
        agent = case.make_agent(case.specs, create_train_step(), case.experience())
        self.stalls: list[float] = []
        batch = learner_cases.batch(case)
        self._exports: PolicyExports | None = None
        self.learner = Learner(
            agent,
            lambda _: tf.data.Dataset.from_tensors((batch, ())).cache().repeat(),
            run_dir,
            triggers=[PeriodicAction(self._export, every_steps=interval)] if interval else [],
            options=LearnerOptions(checkpoint_interval_steps=None, summaries=None),
        )
        if interval:
            self._exports = PolicyExports(agent, run_dir, options, lambda: {'env_steps': self.learner.step})
            self._exports.export(0)

    def steps_per_sec(self, num_steps: int, steps_per_call: int) -> float:
        """Trains until everything is written, and returns the rate."""
        start = time.perf_counter()
        for _ in range(num_steps // steps_per_call):
            self.learner.run(steps_per_call)
        if self._exports:
            self._exports.wait()
        return num_steps / (time.perf_counter() - start)

    def close(self) -> None:
        """Ends the learner."""
        self.learner.close()

    def _export(self, step: int) -> None:
        start = time.perf_counter()
        if self._exports:
            self._exports.export(step)
        self.stalls.append(1e3 * (time.perf_counter() - start))


def main() -> int:
    """Measures, prints the table."""
    parser = command_line.parser(__doc__)
    parser.add_argument('--cases', nargs='+', choices=sorted(INTERVALS), default=sorted(INTERVALS))
    parser.add_argument('--policies', nargs='+', default=[*ExportOptions().policies])
    parser.add_argument('--interval', type=int, default=1000, help='train steps between two exports')
    parser.add_argument('--rounds', type=int, default=7)
    parser.add_argument('--quick', action='store_true', help='two short rounds')
    options = parser.parse_args()
    rows = []
    for name in options.cases:
        rounds, intervals = (2, 1) if options.quick else (options.rounds, INTERVALS[name])
        exports = ExportOptions(policies=tuple(options.policies))
        rows += _measure(learner_cases.CASES[name], exports, options.interval, rounds, intervals)
    command_line.finish(options.json, rows)
    return 0


def _measure(
    case: learner_cases.Case, exports: ExportOptions, interval: int, rounds: int, intervals_a_round: int
) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as directory:
        run_dir = RunDir(f'{directory}/exports')
        plain = Trainer(case, RunDir(f'{directory}/plain'), None, exports)
        exporting = Trainer(case, run_dir, interval, exports)
        steps_per_call = max(1, interval // 4)
        for trainer in (plain, exporting):  # so that exports are in the midst of what is measured
            trainer.steps_per_sec(2 * steps_per_call, steps_per_call)
        num_steps = intervals_a_round * interval
        rates: dict[Trainer, list[float]] = {plain: [], exporting: []}
        for number in range(rounds + 1):  # the first warms up
            order = (plain, exporting) if number % 2 else (exporting, plain)
            for trainer in order:
                rates[trainer].append(trainer.steps_per_sec(num_steps, steps_per_call))
            if not number:
                exporting.stalls.clear()
        newest = versions.newest_version(run_dir.policy(exports.policies[0]))
        if newest != exporting.learner.step // interval * interval:
            raise RuntimeError(f'got the newest version {newest} after train step {exporting.learner.step}')
        for trainer in rates:
            trainer.close()
    ours, limit = rates[exporting][1:], rates[plain][1:]
    nothing = {'peer': None, 'limit': None, 'ratio_to_peer': None, 'ratio_to_limit': None}
    name = f'{case.name}: {len(exports.policies)} policies each {interval} steps'
    rates_row = {
        'case': name,
        'metric': 'train steps/s beside a learner that exports nothing',
        'ours': statistics.median(ours),
        **nothing,
        'limit': statistics.median(limit),
        'ratio_to_limit': tables.ratio(ours, limit),
        'unit': 'train steps/s',
        'rounds': rounds,
    }
    rows = [rates_row]
    for word, stall in (('median', statistics.median(exporting.stalls)), ('longest', max(exporting.stalls))):
        rows.append({'case': name, 'metric': f'{word} stall', 'ours': stall, **nothing, 'unit': 'ms', 'rounds': rounds})
    return rows


if __name__ == '__main__':
    sys.exit(main())
