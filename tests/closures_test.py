"""The import closure of the doors that users take, and the frames between them and a gradient, stay small."""

import functools
import pathlib
import sys
import threading
import traceback

import pytest
import tensorflow as tf

import tflearn
from tests.architecture import closures
from tflearn.agents import sac
from tflearn.environments import gymnasium_env
from tflearn.networks.networks import NetworkOptions

# Import -> the most code lines that it loads, and what it does without.
DOORS = {
    'import tflearn.jobs.synchronous': (
        11_500,
        ('tflearn/coordinator/', 'tflearn/net/', 'tflearn/sampling/mirror.py', 'tflearn/sampling/feed_source.py'),
    ),
    'import tflearn.jobs.collect': (9_500, ('tflearn/learner/', 'tflearn/sampling/')),
    'import tflearn; tflearn.load_policy': (2_600, ('tflearn/learner/', 'tflearn/jobs/')),
    'from tflearn.extensions.tf_agents import tf_agents_learner, tf_agents_ppo_learner': (11_500, ('tflearn/jobs/',)),
}


MAX_FRAMES = 12  # between tflearn.train and GradientTape.gradient


@pytest.fixture(scope='module')
def loaded():
    return dict(zip(DOORS, closures.loaded(list(DOORS)), strict=True))


@pytest.mark.parametrize('door', DOORS)
def test_import_closure_is_within_its_budget(loaded, door):
    most, without = DOORS[door]
    files = loaded[door]
    assert 'tflearn/core/errors.py' in files
    assert [name for name in files if name.startswith(without)] == []
    largest = sorted(files, key=files.get)[-5:]
    assert sum(files.values()) <= most, f'{door} loads {sum(files.values())} code lines, such as {largest}'


def test_code_lines_leave_out_comments_and_docstrings(tmp_path):
    file = tmp_path / 'a.py'
    file.write_text(
        '"""Text,\nmore."""\n\n# A comment.\nx = [\n    1,  # one\n]\n\n\ndef f():\n    """Text."""\n    return x\n'
    )
    assert closures.code_lines(file) == 5


class Measured(Exception):
    pass


def test_few_frames_are_between_train_and_the_gradient(tmp_path, monkeypatch):
    """Of SAC in one process: what a user reads who asks how a gradient comes about."""
    threads: list[traceback.StackSummary] = []

    def gradient(*_, **__):
        main = sys._current_frames()[threading.main_thread().ident]
        threads.extend(map(traceback.extract_stack, (main, sys._getframe())))
        raise Measured

    monkeypatch.setattr(tf.GradientTape, 'gradient', gradient)
    with pytest.raises(Measured):
        tflearn.train(
            make_environment=functools.partial(gymnasium_env.make, 'Pendulum-v1'),
            make_agent=functools.partial(sac.make_agent, network=NetworkOptions(fc_layer_params=(8,))),
            root_dir=tmp_path / 'run',
            num_train_steps=2,
            num_environments=1,
        )
    own = str(pathlib.Path(tflearn.__file__).parent)
    frames = [
        f'{frame.filename}:{frame.name}' for stack in threads for frame in stack if frame.filename.startswith(own)
    ]
    assert frames[0].endswith('training.py:train') and any('parts.py' in frame for frame in frames)
    assert len(frames[1:]) <= MAX_FRAMES, frames
