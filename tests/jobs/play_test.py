"""A policy, and a person at the keyboard, in a window that is drawn to memory; and the program."""

import functools
import itertools
import os
import re
import threading

import numpy as np
import pytest

from tests.testing import forks
from tflearn.core import background
from tflearn.data.reader import Dataset, EpisodeReader
from tflearn.environments import gymnasium_env
from tflearn.files.run_dir import RunDir
from tflearn.jobs.record import play
from tflearn.jobs.run import Run

pytestmark = pytest.mark.filterwarnings('ignore')  # pygame's own
CARTPOLE = functools.partial(gymnasium_env.make, 'CartPole-v1')
DEADLINE_SECS = 120.0


@pytest.fixture
def press(monkeypatch):
    """Returns a function that lets keys be pressed, again and again, as soon as there is a window."""
    monkeypatch.setenv('SDL_VIDEODRIVER', 'dummy')
    import pygame

    over = threading.Event()

    def work(events):
        for event in itertools.cycle(events):
            if over.wait(0.005):
                return
            if pygame.display.get_init():
                pygame.event.post(pygame.event.Event(event[0], **event[1]))

    yield lambda *events: background.Thread(work, 'person', (events,)).start()
    over.set()


def act(tmp_path, **given):
    given = {'num_episodes': 3, 'fps': 200.0, 'output': str(tmp_path / 'data'), **given}
    text = play(run=Run(RunDir(tmp_path)), make_environment=CARTPOLE, **given)
    return text, [*EpisodeReader(Dataset([given['output']])).episodes()]


def test_a_person_acts_and_the_episodes_are_demonstrations(press, tmp_path):
    import pygame

    press((pygame.KEYDOWN, {'key': pygame.K_RIGHT}))
    text, episodes = act(tmp_path, keys='left=0,right=1')
    assert len(episodes) == 3
    actions = np.concatenate([episode['action'] for episode in episodes])
    assert actions[-1] == 1 and np.mean(actions) > 0.5, 'the key that is held; before it was pressed the idle action'
    returns = [float(number) for number in re.findall(r'[\d.]+', text)]
    assert returns == [episode['reward'].sum() for episode in episodes]


def test_escape_ends_it_without_the_episode(press, tmp_path):
    import pygame

    press((pygame.KEYDOWN, {'key': pygame.K_ESCAPE}))
    run = Run(RunDir(tmp_path))
    text = play(run=run, make_environment=CARTPOLE, keys='a=0', num_episodes=1_000, fps=200.0)
    assert (text, run.stop.is_set()) == ('returns: none, since no episode ended', True)


def test_the_program_shows_a_policy(tmp_path):
    flags = [f'--root_dir={tmp_path / "run"}', '--gin_file=dqn_cartpole', '--policy=random', '--fps=500']
    environment = {**os.environ, 'SDL_VIDEODRIVER': 'dummy'}
    ended = forks.run('scripts', 'play', *flags, '--episodes=2', timeout=DEADLINE_SECS, env=environment)
    assert ended.returncode == 0, ended.stderr
    assert re.fullmatch(r'returns: \d+, \d+', ended.stdout.splitlines()[-1])


@pytest.mark.filterwarnings('ignore')  # moviepy's own
def test_one_video_of_each_episode(tmp_path):
    pytest.importorskip('moviepy', reason='needs pip install ".[video]"')
    act(tmp_path, policy='random', num_episodes=2, video=str(tmp_path / 'videos'))
    videos = sorted(path.name for path in (tmp_path / 'videos').iterdir())
    assert videos == ['rl-video-episode-0.mp4', 'rl-video-episode-1.mp4']


@pytest.mark.parametrize('keys', [(), ('--keys=left=0,right=1',)])
def test_without_a_display_the_program_says_so_in_one_line(tmp_path, keys):
    flags = [f'--root_dir={tmp_path / "run"}', '--gin_file=dqn_cartpole', '--policy=random', *keys]
    environment = {**os.environ, 'SDL_VIDEODRIVER': 'x11', 'DISPLAY': ''}
    ended = forks.run('scripts', 'play', *flags, timeout=DEADLINE_SECS, env=environment)
    (line,) = [line for line in ended.stderr.splitlines() if 'error' in line]
    message = r'tflearn play: error: got no display \([\w ]+\), where a window could be; need one; set DISPLAY, '
    assert (ended.returncode, bool(re.match(message, line))) == (2, True), ended.stderr
    assert 'Traceback' not in ended.stderr


@pytest.mark.parametrize(
    ('given', 'message'),
    [
        ({'keys': ''}, 'names no keys; need --keys'),
        ({'keys': 'a'}, "got 'a' in --keys; need a key and its action"),
        ({'keys': 'a=1', 'video': 'x'}, 'got --keys with --video'),
        ({'make_environment': functools.partial(gymnasium_env.make, 'tests.jobs.play_test:Unseen-v0')}, 'Unseen'),
    ],
)
def test_wrong_input(monkeypatch, tmp_path, given, message):
    monkeypatch.setenv('SDL_VIDEODRIVER', 'dummy')
    with pytest.raises(ValueError, match=message):
        play(**{'run': Run(RunDir(tmp_path)), 'make_environment': CARTPOLE, 'policy': 'random', **given})
