"""The supervised job fits a model as Keras does, goes on where it was stopped, and exports it with named inputs."""

import functools
import re
import threading

import numpy as np
import pytest
import tensorflow as tf

from tests.testing import forks
from tflearn.files.run_dir import RunDir, read_json
from tflearn.jobs.run import Run
from tflearn.jobs.supervised import Fitting, from_files, supervised
from tflearn.learner.learner import LearnerOptions
from tflearn.optimization.optimizers import OptimizerOptions

DRAWS = np.random.default_rng(0)
X = DRAWS.normal(size=(1000, 4)).astype(np.float32)
Y = (X[:, 0] * X[:, 1] > 0).astype(np.int64)
CROSSENTROPY = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def make_model():
    return tf.keras.Sequential([tf.keras.layers.Dense(32, 'relu'), tf.keras.layers.Dense(2)])


def crossentropy(y, outputs):
    return tf.keras.losses.sparse_categorical_crossentropy(y, outputs, from_logits=True)


def fit(root, stop=None, **changes):
    """Runs the job; returns its directory."""
    run_dir = RunDir(root)
    given = {
        'make_dataset': lambda: (X[:800], Y[:800]),
        'make_model': make_model,
        'loss': CROSSENTROPY,
        'metrics': {'accuracy': 'sparse_categorical_accuracy'},
        'fitting': Fitting(epochs=20),
        'optimizer': OptimizerOptions(1e-2),
        'seed': 3,
    }
    supervised(run=Run(run_dir, stop or threading.Event()), **given | changes)
    return run_dir


def exported(run_dir):
    (path,) = (run_dir.root / 'models').iterdir()
    return tf.saved_model.load(str(path))


def test_a_model_from_files_is_as_good_as_one_of_keras(tmp_path, caplog):
    np.savez(tmp_path / 'a.npz', x=X[:300], y=Y[:300])
    np.savez(tmp_path / 'b.npz', x=X[300:800], y=Y[300:800])
    files = functools.partial(from_files, [str(tmp_path / 'a.npz'), str(tmp_path / 'b.npz')])
    run_dir = fit(tmp_path / 'run', make_dataset=files)
    result = read_json(run_dir.train_result)
    assert result['reason'] == '20 epochs are over'
    assert result['train_step'] == 20 * 720 // 32
    signature = exported(run_dir).signatures['serving_default']
    outputs = signature(x=tf.constant(X[800:]))['y']
    accuracy = np.mean(np.argmax(outputs, axis=1) == Y[800:])

    tf.keras.utils.set_random_seed(3)
    model = make_model()
    model.compile(tf.keras.optimizers.Adam(1e-2), CROSSENTROPY, ['accuracy'])
    model.fit(X[:720], Y[:720], epochs=20, verbose=0)
    expected = model.evaluate(X[800:], Y[800:], verbose=0)[1]
    assert accuracy > 0.85
    assert abs(accuracy - expected) < 0.08
    words = ('episode', 'environment', 'reward', 'return', 'policy', 'agent')
    assert not [word for word in words if word in caplog.text.lower()]


def test_a_stopped_job_goes_on_as_if_it_had_not(tmp_path):
    whole = fit(tmp_path / 'whole', fitting=Fitting(epochs=4))
    stop = threading.Event()
    options = LearnerOptions(after_run=lambda result: stop.set())
    part = fit(tmp_path / 'part', stop, fitting=Fitting(epochs=4), learner_options=options)
    assert read_json(part.status('train'))['state'] == 'stopped'
    assert not part.train_result.exists()
    fit(tmp_path / 'part', fitting=Fitting(epochs=4))
    one, other = (exported(run_dir).model for run_dir in (whole, part))
    assert len(one.variables) == 4
    for mine, theirs in zip(one.variables, other.variables, strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_named_inputs_early_stopping_and_the_best_weights(tmp_path):
    def make_dataset():
        columns = {'height': X[:800, :1], 'width': X[:800, 1:]}
        return tf.data.Dataset.from_tensor_slices((columns, Y[:800] + 0.0))

    def make_named():
        inputs = {'height': tf.keras.Input(1), 'width': tf.keras.Input(3)}
        hidden = tf.keras.layers.Dense(128, 'relu')(tf.keras.layers.Concatenate()([*inputs.values()]))
        return tf.keras.Model(inputs, {'size': tf.keras.layers.Dense(1)(hidden)[:, 0]})

    run_dir = fit(
        tmp_path,
        make_dataset=make_dataset,
        make_model=make_named,
        loss=lambda y, outputs: tf.square(y - outputs['size']),
        metrics={'largest': lambda y, outputs: tf.abs(y - outputs['size'])},
        fitting=Fitting(epochs=500, validation_share=0.25, patience=3),
        optimizer=OptimizerOptions(3e-2),
    )
    result = read_json(run_dir.train_result)
    best = result['best_step']
    assert result['reason'] == f'patience 3 reached: the least validation loss is that of train step {best}'
    assert best < result['train_step'] < 500 * 600 // 32
    kept = np.random.default_rng(3).permutation(800)[:200]
    signature = exported(run_dir).signatures['serving_default']
    outputs = signature(height=tf.constant(X[kept, :1]), width=tf.constant(X[kept, 1:]))['size']
    np.testing.assert_allclose(np.mean(np.square(Y[kept] - outputs)), result['validation_loss'], rtol=1e-4)


@pytest.mark.parametrize(
    ('changes', 'message'),
    [
        ({'make_dataset': lambda: (X, Y[:5])}, 'got arrays of'),
        ({'make_dataset': lambda: X}, r'need a pair \(x, y\)'),
        ({'fitting': Fitting(validation_share=0.0, patience=2)}, 'without validation'),
        ({'fitting': Fitting(batch_size=1000)}, 'at least a batch of 1000'),
    ],
)
def test_rejects_examples_that_cannot_be_used(tmp_path, changes, message):
    with pytest.raises(ValueError, match=message):
        fit(tmp_path, **changes)


def test_rejects_files_without_targets(tmp_path):
    np.savez(tmp_path / 'a.npz', x=X)
    with pytest.raises(ValueError, match=r"got files with the arrays \['x'\]; need 'y'"):
        from_files([str(tmp_path / 'a.npz')])


@pytest.mark.slow
def test_the_program_fits_what_a_gin_file_names(tmp_path):
    np.savez(tmp_path / 'train.npz', x=X[:800], y=Y[:800])
    (tmp_path / 'run.gin').write_text(f"""
from __gin__ import dynamic_registration
from tests.jobs import supervised_test
from tflearn.jobs import supervised

supervised.supervised.make_dataset = @supervised.from_files
supervised.from_files.paths = ['{tmp_path / 'train.npz'}']
supervised.supervised.make_model = @supervised_test.make_model
supervised.supervised.loss = @supervised_test.crossentropy
supervised.supervised.metrics = {{'accuracy': 'sparse_categorical_accuracy'}}
supervised.supervised.fitting = @supervised.Fitting()
supervised.Fitting.epochs = 3
""")
    ended = forks.run(
        'scripts', 'supervised', f'--root_dir={tmp_path / "run"}', f'--gin_file={tmp_path / "run.gin"}', timeout=120
    )
    assert ended.returncode == 0, ended.stderr
    assert 'finished: 3 epochs are over' in ended.stderr
    assert not re.search('episode|environment|reward|policy|replay', ended.stderr), ended.stderr
    assert exported(RunDir(tmp_path / 'run')).signatures['serving_default'](x=tf.constant(X[:2]))['y'].shape == (2, 2)
