"""One run of the suite by our side: curve and seconds, as JSON. `python -m benchmarks.suite` starts it."""

import argparse
import hashlib
import pathlib
import platform
import tempfile
from collections.abc import Mapping, Sequence
from importlib import metadata
from typing import Any

from benchmarks import learning
from benchmarks.suite import process as suite_process
from benchmarks.suite import results as suite_results
from tflearn.actors import learning_curve
from tflearn.actors.evaluation_record import EvaluationRecord
from tflearn.extensions.experiments import comparison
from tflearn.files.run_dir import RunDir, write_json


def main() -> None:
    """Runs one seed and writes its result."""
    options = suite_process.parsed(argparse.ArgumentParser(description=__doc__))
    settings = options.settings
    with tempfile.TemporaryDirectory(dir=options.output.parent) as temporary:
        root = pathlib.Path(temporary)
        outcome = learning.run(root, settings['gin_file'], bindings(settings), options.seed, settings['mode'])
        config = comparison.configuration(RunDir(root))
        curve = learning_curve.current(EvaluationRecord(RunDir(root).evaluations).evaluations)
    result = {
        'env_steps': outcome.env_steps,
        'train_secs': outcome.train_secs,
        'curve': [[point['env_steps'], round(point['mean_return'], 3)] for point in curve],
        'config': hashlib.sha256(config.encode()).hexdigest()[:16],
        'gin': suite_results.gin_digest(settings['gin_file']),
        'versions': {
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
        'from benchmarks.suite import starts',
        'evaluate.evaluate.make_environment=@starts.make',
        'starts.make.make_environment=%make_environment',
        f'evaluate.evaluate.seed={suite_process.STARTS}',
    )


if __name__ == '__main__':
    main()
