"""Is the supervised job as good and as fast as Keras' `fit`? Both on the same files, model, optimizer and seeds.

    python -m benchmarks.supervised --seeds 1 2 3 4 5

The files hold 50,000 examples of ten classes in 32 numbers, made by a random network with 5% of the labels changed, and
10,000 others that neither side sees. Each run is a process of its own, sides in turn: 30 epochs of batches of 128, with
a validation on 5,000 examples after each. Keras runs as its documents begin
(`fit`), and with 64 train steps per execution, its fastest setting here. The seconds are those of the epochs after the
first, which has start-up, tracing and compiling; `an epoch` is the median one of these. Both sides keep the weights of
the least validation loss. The accuracies are those of the exported models' labels on the unseen examples, in plain
TensorFlow.
"""

import argparse
import json
import logging
import pathlib
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import tflearn  # noqa: F401  # on the current lane it chooses Keras 2, before TensorFlow is imported

import tensorflow as tf  # isort: skip

from benchmarks import tables
from tflearn.files.run_dir import RunDir
from tflearn.jobs.run import Run
from tflearn.jobs.supervised import Fitting, from_files, supervised
from tflearn.learner.learner import LearnerOptions
from tflearn.optimization.optimizers import OptimizerOptions

SIDES = ('ours', 'fit', 'fit, 64 steps per execution')
EPOCHS, BATCH, SIZE, UNSEEN = 30, 128, 50_000, 10_000


def write_files(directory: pathlib.Path) -> None:
    """Writes `train.npz` and `unseen.npz`."""
    draws = np.random.default_rng(0)
    x = draws.normal(size=(SIZE + UNSEEN, 32)).astype(np.float32)
    hidden = np.tanh(x @ draws.normal(size=(32, 64)) / 4)
    y = np.argmax(hidden @ draws.normal(size=(64, 10)), axis=1)
    changed = draws.random(len(y)) < 0.05
    y[changed] = draws.integers(10, size=changed.sum())
    np.savez(directory / 'train.npz', x=x[:SIZE], y=y[:SIZE])
    np.savez(directory / 'unseen.npz', x=x[SIZE:], y=y[SIZE:])


def make_model() -> tf.keras.Model:
    """Returns the model of both sides."""
    layers = [tf.keras.layers.Dense(128, 'relu'), tf.keras.layers.Dense(128, 'relu'), tf.keras.layers.Dense(10)]
    return tf.keras.Sequential(layers)


def run(side: str, seed: int, directory: pathlib.Path) -> dict[str, float]:
    """Fits one model in this process. Returns its accuracy, and the seconds of the epochs after the first."""
    path = directory / f'{side} {seed}'
    label, ends = ours(seed, directory, path) if side == 'ours' else keras(side, seed, directory, path)
    with np.load(directory / 'unseen.npz') as file:
        found = np.argmax(label(tf.constant(file['x'])), axis=1)
        accuracy = float(np.mean(found == file['y']))
    return {'accuracy': accuracy, 'seconds': ends[-1] - ends[0], 'epoch': float(np.median(np.diff(ends)))}


def ours(seed: int, directory: pathlib.Path, path: pathlib.Path) -> tuple[Callable[[Any], Any], list[float]]:
    """Runs the supervised job. Returns the exported model as a function, and when each epoch ended [s]."""
    steps, ends = (SIZE - SIZE // 10) // BATCH, []

    def count(before: int, after: int) -> bool:
        ends.extend([time.monotonic()] * (after // steps - before // steps))
        return False

    supervised(
        run=Run(RunDir(path), threading.Event()),
        make_dataset=lambda: from_files([str(directory / 'train.npz')]),
        make_model=make_model,
        loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics={'accuracy': 'sparse_categorical_accuracy'},
        fitting=Fitting(epochs=EPOCHS, batch_size=BATCH),
        optimizer=OptimizerOptions(1e-3),
        seed=seed,
        learner_options=LearnerOptions(make_triggers=lambda learner: [count]),
    )
    (exported,) = (path / 'models').iterdir()
    signature = tf.saved_model.load(str(exported)).signatures['serving_default']
    return lambda x: next(iter(signature(x=x).values())), ends


def keras(
    side: str, seed: int, directory: pathlib.Path, path: pathlib.Path
) -> tuple[Callable[[Any], Any], list[float]]:
    """Runs Keras' `fit`; returns as `ours`."""
    tf.keras.utils.set_random_seed(seed)
    with np.load(directory / 'train.npz') as file:
        x, y = file['x'], file['y']
    order = np.random.default_rng(seed).permutation(SIZE)
    kept, rest = order[: SIZE // 10], order[SIZE // 10 :]
    model, ends, best = make_model(), [], [np.inf, []]
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    steps = 64 if side != 'fit' else 1
    model.compile(tf.keras.optimizers.Adam(1e-3), loss, ['sparse_categorical_accuracy'], steps_per_execution=steps)

    def keep_best(epoch: int, logs: dict[str, float]) -> None:
        del epoch
        if logs['val_loss'] < best[0]:
            best[:] = logs['val_loss'], model.get_weights()
        ends.append(time.monotonic())

    callbacks = [tf.keras.callbacks.LambdaCallback(on_epoch_end=keep_best)]
    given = {'validation_data': (x[kept], y[kept]), 'callbacks': callbacks, 'verbose': 0}
    model.fit(x[rest], y[rest], BATCH, EPOCHS, validation_batch_size=1_024, **given)
    model.set_weights(best[1])
    tf.saved_model.save(model, str(path))
    return tf.saved_model.load(str(path)), ends


def main() -> None:
    """Runs all sides, and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--seeds', nargs='+', type=int, default=[1, 2, 3, 4, 5])
    parser.add_argument('--one', nargs=3, help=argparse.SUPPRESS)  # side, seed, directory: the process of one run
    options = parser.parse_args()
    if options.one:
        logging.disable(logging.WARNING)
        side, seed, directory = options.one
        print(json.dumps(run(side, int(seed), pathlib.Path(directory))))
        return
    found: dict[str, list[dict[str, float]]] = {side: [] for side in SIDES}
    with tempfile.TemporaryDirectory() as directory:
        write_files(pathlib.Path(directory))
        for i, seed in enumerate(options.seeds):
            for side in SIDES if i % 2 == 0 else reversed(SIDES):
                command = [sys.executable, '-m', 'benchmarks.supervised', '--one', side, str(seed), directory]
                done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=600)
                found[side].append(json.loads(done.stdout.splitlines()[-1]))
                print(side, seed, found[side][-1], file=sys.stderr, flush=True)
    print(
        '| side | accuracy, mean | from | to | seconds | ours / this | an epoch, s | ours / this |\n' + '|---' * 8 + '|'
    )
    for side, rows in found.items():
        accuracies = [each['accuracy'] for each in rows]
        shown = statistics.mean(accuracies), min(accuracies), max(accuracies)
        cells = [side, *(f'{each:.4f}' for each in shown)]
        for name in ('seconds', 'epoch'):
            values = {each: [row[name] for row in found[each]] for each in ('ours', side)}
            cells += [f'{np.median(values[side]):.3g}', f'{tables.ratio(values["ours"], values[side]):.2f}']
        print('| ' + ' | '.join(cells) + ' |')


if __name__ == '__main__':
    main()
