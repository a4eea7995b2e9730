"""Do speed and memory stay constant? Many train steps of the DQN case with all triggers on, from a live replay.

    python benchmarks/learner_soak.py --num_steps=200000

A replay server and a writer run in another process. The learner saves checkpoints, exports, writes summaries, publishes
weights. At the end: how much memory it took since it was warm, how often it was traced, which threads are left.
"""

import pathlib
import sys
import tempfile
import threading
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks import command_line, learner, learner_cases  # noqa: E402
from tflearn.core.background import Background  # noqa: E402
from tflearn.core.train_step import create_train_step  # noqa: E402
from tflearn.files.run_dir import RunDir  # noqa: E402
from tflearn.learner.learner import Learner, LearnerOptions  # noqa: E402
from tflearn.learner.metrics import rss_mb  # noqa: E402
from tflearn.learner.summaries import SummaryOptions  # noqa: E402
from tflearn.learner.triggers import PeriodicAction  # noqa: E402
from tflearn.policies.exporter import PolicyExporter  # noqa: E402

STEPS_PER_CALL = 200


def main() -> int:
    """Trains, prints the table; returns 1 if anything grew or was left."""
    parser = command_line.parser(__doc__)
    parser.add_argument('--num_steps', type=int, default=200_000)
    parser.add_argument('--warm_up_share', type=float, default=0.2, help='of the steps, before memory is first read')
    parser.add_argument('--quick', action='store_true', help='20 000 steps')
    options = parser.parse_args()
    if options.quick:
        options.num_steps = 20_000
    rows = _soak(options.num_steps, int(options.warm_up_share * options.num_steps))
    command_line.finish(options.json, rows)
    found = {row['metric']: row['ours'] for row in rows}
    sound = found['RSS at the end / when warm'] < 1.05 and found['threads left'] == found['traces after the first'] == 0
    return 0 if sound else 1


def _soak(num_steps: int, warm_up: int) -> list[dict[str, Any]]:
    case = learner_cases.CASES['dqn']
    experience = {'sampling': 'learner', 'max_size': 100_000, 'min_size': 1_000}
    before = set(threading.enumerate())
    with tempfile.TemporaryDirectory() as directory:
        servers = learner.servers('dqn', {'mirror': experience}, 5_000, with_peer=False)
        with servers as (ports, command):
            metrics = _train(case, experience, ports['mirror'], RunDir(directory), num_steps, warm_up, command)
    left = [thread for thread in set(threading.enumerate()) - before if thread.is_alive()]
    for thread in left:
        thread.join(10.0)
    metrics['threads left'] = float(sum(thread.is_alive() for thread in left))
    nothing = dict.fromkeys(('peer', 'limit', 'ratio_to_peer', 'ratio_to_limit'))
    return [
        {'case': case.name, 'metric': metric, 'ours': value, **nothing, 'unit': '', 'rounds': 1}
        for metric, value in metrics.items()
    ]


def _train(
    case: learner_cases.Case,
    experience: dict[str, Any],
    port: int,
    run_dir: RunDir,
    num_steps: int,
    warm_up: int,
    command: Any,
) -> dict[str, float]:
    source = learner.source(case, experience, port)
    agent = case.make_agent(case.specs, create_train_step(), case.experience())
    memory: list[float] = []
    exporter, exports = PolicyExporter(agent.policy, run_dir.greedy_policy), Background('exports')
    trainer = Learner(
        agent,
        source,
        run_dir,
        triggers=[
            PeriodicAction(lambda step: exports.submit(exporter.snapshot(step, {})), every_steps=1_000),
            PeriodicAction(lambda _: memory.append(rss_mb()), every_steps=max(num_steps // 100, STEPS_PER_CALL)),
        ],
        options=LearnerOptions(checkpoint_interval_steps=1_000, summaries=SummaryOptions(interval_steps=1_000)),
    )
    trainer.run(1_001)
    traces = trainer.num_traces
    command('write mirror', lambda: trainer.run(STEPS_PER_CALL))  # it is filled only as fast as it is read
    while trainer.step < warm_up:
        trainer.run(STEPS_PER_CALL)
    memory.clear()
    while trainer.step < num_steps:
        if trainer.run(STEPS_PER_CALL).data_ended:
            raise RuntimeError(f'no data came: {source.error}')
    trainer.close()
    exports.join(600.0)
    exports.raise_failure()
    tenth = max(len(memory) // 10, 1)
    start, end = sum(memory[:tenth]) / tenth, sum(memory[-tenth:]) / tenth
    return {
        'train steps': float(num_steps),
        'RSS when warm, MB': start,
        'RSS at the end, MB': end,
        'RSS at the end / when warm': end / start,
        'traces after the first': float(trainer.num_traces - traces),
    }


if __name__ == '__main__':
    sys.exit(main())
