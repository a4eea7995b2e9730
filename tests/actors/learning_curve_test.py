"""The plot is complete, has the right size, and shows a run's current evaluations."""

import gc
import struct
import subprocess
import sys

import numpy as np

from tflearn.actors import learning_curve


def evaluations(count, seed=0):
    rng = np.random.default_rng(seed)
    entries = []
    for index in range(count):
        returns = np.clip(rng.normal(500 * (index + 1) / count, 40, size=20), 9, 500)
        entries.append(
            {
                'train_step': 1000 * index,
                'env_steps': 1000 + 2000 * index,
                'mean_return': float(returns.mean()),
                'num_episodes': 20,
                'returns': returns.tolist(),
            }
        )
    return entries


def size(path):
    header = path.read_bytes()[:24]
    assert header[:8] == b'\x89PNG\r\n\x1a\n'
    return struct.unpack('>II', header[16:24])


def test_new_image_replaces_the_old_one(tmp_path):
    path = tmp_path / 'new' / 'learning_curve.png'
    for count in (1, 2, 30):
        learning_curve.draw(path, {'mean return': evaluations(count)}, 'CartPole-v1', target_return=475)
        assert size(path) == (960, 600)
    assert [file.name for file in path.parent.iterdir()] == ['learning_curve.png']


def test_plots_take_the_memory_of_one_and_collect_no_garbage(tmp_path):
    """A garbage collection stops all threads: two thirds of the time of a plot in a process with TensorFlow."""
    collections, images = [], set()
    gc.collect()  # what tests before this one have drawn
    gc.callbacks.append(lambda phase, info: collections.append(info['generation']))
    gc.disable()
    try:
        for count in (30, 3, 30, 30):
            learning_curve.draw(tmp_path / 'curve.png', {'a': evaluations(count)}, f'{count}', target_return=475)
            images.add((tmp_path / 'curve.png').read_bytes())
    finally:
        gc.enable()
        gc.callbacks.pop()
    assert not collections
    assert sum(type(found).__name__ in ('Figure', 'RendererAgg') for found in gc.get_objects()) <= 2
    assert len(images) == 2, 'nothing of the plot before is left'


def test_several_seeds_are_drawn_together(tmp_path):
    path = tmp_path / 'curve.png'
    learning_curve.draw(path, {f'seed {seed}': evaluations(20, seed) for seed in range(5)}, 'five seeds')
    assert size(path) == (960, 600)


def test_unknown_environment_steps_fall_back_to_train_steps(tmp_path):
    path = tmp_path / 'curve.png'
    learning_curve.draw(path, {'a': [{**entry, 'env_steps': None} for entry in evaluations(3)]})
    assert size(path) == (960, 600)


def test_nothing_is_drawn_without_evaluations(tmp_path):
    learning_curve.draw(tmp_path / 'curve.png', {'a': []})
    assert list(tmp_path.iterdir()) == []


def test_repeated_training_replaces_earlier_evaluations():
    def steps(*train_steps):
        kept = learning_curve.current([{'train_step': step, 'at': at} for at, step in enumerate(train_steps)])
        return [(entry['train_step'], entry['at']) for entry in kept]

    assert steps(1, 2, 3) == [(1, 0), (2, 1), (3, 2)]
    assert steps(8, 9, 10, 9, 11) == [(8, 0), (9, 3), (11, 4)]
    assert steps(1, 2, 2) == [(1, 0), (2, 2)]
    assert steps() == []


def test_matplotlib_is_not_imported_before_it_is_needed():
    program = "import sys, tflearn.actors.learning_curve; sys.exit('matplotlib' in sys.modules)"
    subprocess.run([sys.executable, '-c', program], check=True, timeout=60)
