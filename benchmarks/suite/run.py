"""One run of the suite by our side: curve and seconds, as JSON. `python -m benchmarks.suite` starts it."""

import argparse
import pathlib
import platform
import tempfile
from collections.abc import Mapping, Sequence
from importlib import metadata
from typing import Any

from benchmarks import learning
from benchmarks.suite import process as suite_process
from tflearn.actors import learning_curve
from tflearn.actors.evaluation_record import EvaluationRecord
from tflearn.files.run_dir import RunDir, write_json
from tflearn.launch.code_revision import code_revision


def main() -> None:
    """Runs one seed and writes its result."""
    options = suite_process.parsed(argparse.ArgumentParser(description=__doc__))
    settings = options.settings
    with tempfile.TemporaryDirectory(dir=options.output.parent) as temporary:
        root = pathlib.Path(temporary)
        statements = (
            *bindings(settings),
            f'evaluate.evaluate.seed={suite_process.evaluation_seed(options.seed)}',
        )
        outcome = learning.run(root, settings['gin_file'], statements, options.seed, settings['mode'])
        curve = learning_curve.current(EvaluationRecord(RunDir(root).evaluations).evaluations)
    result = {
        'env_steps': outcome.env_steps,
        'train_secs': outcome.train_secs,
        'curve': [[point['env_steps'], round(point['mean_return'], 3)] for point in curve],
        'versions': {
            'tflearn': code_revision(),
            'tensorflow': metadata.version('tensorflow'),
            'gymnasium': metadata.version('gymnasium'),
            'python': platform.python_version(),
        },
    }
    write_json(options.output, result)


def bindings(settings: Mapping[str, Any]) -> Sequence[str]:
    """Returns the gin statements of a run: those of the row, and its evaluations at equal numbers of train steps."""
    steps = int(settings['bindings'][0].partition('=')[2])
    return (
        *settings['bindings'],
        f'train.Intervals.export_interval_steps={max(1, steps // settings["marks"])}',
        'train.ExportOptions.keep_last=10_000',
        f'evaluate.evaluate.num_episodes={settings["episodes"]}',
        'evaluate.evaluate.target_return=None',
        'from tflearn.jobs import evaluate_settings',
        'evaluate.evaluate.options=@evaluate_settings.EvaluateOptions()',
        "evaluate_settings.EvaluateOptions.follow='each'",
    )


if __name__ == '__main__':
    main()
