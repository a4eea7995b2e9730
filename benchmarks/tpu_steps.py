"""The train steps of every agent, compiled for four kinds of TPU: docs/distributed.md has the table.

    TFLEARN_TPU_COMPILER=~/tpu_compiler/bin/python python -m benchmarks.tpu_steps

In the current lane; no TPU is needed. Each is a dry run of the train job with 8 replicas (2 hosts of 4; of v4 one
host), an observation of 17 numbers, 6 actions, and the agent's own layers and experience. A result is a line of the
file, with the commit; those that are there are not made again, so the program can be stopped and started. At the end
it prints the table.
"""

import argparse
import json
import pathlib
import subprocess
import sys
from typing import Any

import tflearn  # noqa: F401  (first: tf.keras is Keras 2)

# isort: split
import tensorflow as tf
from tf_agents.specs import tensor_spec

from tests.testing import forks
from tests.testing.algorithms import ALGORITHMS, Algorithm
from tflearn.core.types import EnvironmentSpecs
from tflearn.jobs.train import dry_run_report
from tflearn.jobs.train_settings import Device
from tflearn.learner.tpu_compiler import KINDS
from tflearn.networks.networks import NetworkOptions

LSTM_SIZE = (128,)
SHAPES = {'v4': '1x8', 'v5e': '2x4', 'v5p': '2x4', 'v6e': '2x4'}  # 8 replicas
OBSERVATION = tensor_spec.BoundedTensorSpec((17,), tf.float32, -1.0, 1.0, 'observation')
ACTIONS = {
    'discrete': tensor_spec.BoundedTensorSpec((), tf.int64, 0, 5, 'action'),
    'continuous': tensor_spec.BoundedTensorSpec((6,), tf.float32, -1.0, 1.0, 'action'),
}


class Environment:
    """Has specs, which are all that a dry run asks for."""

    def __init__(self, action: Any):
        self.specs = EnvironmentSpecs(OBSERVATION, action)

    def close(self) -> None:
        """Does nothing."""


def main() -> int:
    """Makes the results that are not in the file, and prints the table; returns 1 if a step was refused."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--file', type=pathlib.Path, default=pathlib.Path('benchmarks/results/tpu_steps.jsonl'))
    parser.add_argument('--agents', nargs='+', default=list(ALGORITHMS))
    parser.add_argument('--kinds', nargs='+', default=KINDS)
    options = parser.parse_args()
    # The file's last line may be half written.
    lines = options.file.read_text().splitlines() if options.file.exists() else []
    done = {(row['agent'], row['tpu']): row for row in map(json.loads, lines)}
    newest = ['git', 'log', '-1', '--format=%h', '--', 'tflearn']  # that changed what is compiled
    commit = subprocess.run(newest, capture_output=True, text=True, check=True, cwd=forks.CHECKOUT).stdout.strip()
    for name in options.agents:
        for kind in options.kinds:
            if (name, kind) not in done:
                done[name, kind] = {'agent': name, 'tpu': kind, **result(ALGORITHMS[name], kind), 'commit': commit}
                with options.file.open('a') as out:
                    out.write(json.dumps(done[name, kind]) + '\n')
                print(done[name, kind], flush=True)
    print(table(done))
    return int(any(row['refused'] for row in done.values()))


def result(algorithm: Algorithm, kind: str) -> dict[str, Any]:
    """Compiles the train step of an agent for a kind of TPU."""
    action = ACTIONS['discrete' if 'discrete' in algorithm.example.actions else 'continuous']
    arguments = dict(algorithm.example.settings)
    if network := algorithm.example.network:
        arguments['network'] = NetworkOptions(lstm_size=LSTM_SIZE if network.lstm_size else None)
    make = algorithm.module.make_agent
    report = dry_run_report(
        Device(dry_run=True, cluster_shape=SHAPES[kind], tpu=kind),
        lambda num_environments, seed: Environment(action),
        lambda specs, step, experience: make(specs, step, experience, **arguments),
        algorithm.experience if algorithm.is_variant else algorithm.module.EXPERIENCE,
    )
    compiled = report.compiled
    if compiled is None:
        return {'refused': report.refusals[0]}
    found = {'refused': None, 'compile_secs': round(compiled.secs, 1), 'hbm': compiled.hbm, 'flops': compiled.flops}
    return found | {'accessed': compiled.accessed, 'estimated_secs': compiled.estimated_secs}


def table(done: dict[tuple[str, str], dict[str, Any]]) -> str:
    """Returns the results as Markdown: for each agent and kind, HBM of a core and FLOPs, or why there are none."""
    lines = ['| | ' + ' | '.join(KINDS) + ' |', '|---' * (len(KINDS) + 1) + '|']
    for name in ALGORITHMS:
        rows = [done.get((name, kind)) for kind in KINDS]
        lines.append(f'| {name} | ' + ' | '.join('not made' if row is None else entry(row) for row in rows) + ' |')
    commits = sorted({row['commit'] for row in done.values()})
    made = f'{len(done)} of {len(ALGORITHMS) * len(KINDS)} were made, on {", ".join(commits)}.'
    return '\n'.join([*lines, '', made])


def entry(row: dict[str, Any]) -> str:
    """Returns the text of a result."""
    return row['refused'] or f'{row["hbm"] / 1e6:.1f} MB, {row["flops"] / 1e6:,.1f} M'


if __name__ == '__main__':
    sys.exit(main())
