"""A robot: made once at a time, given to another job between episodes, or when no step comes."""

import functools
import pathlib
import pickle
import threading

import gymnasium
import numpy as np
import pytest

from tests.environments.example_environments import Robot
from tflearn.core import life
from tflearn.core.waiting import Stopped
from tflearn.environments import robot

ACTION = np.zeros(1, np.int64)
DEADLINE_SECS = 60.0


class Shared:
    """A robot for several jobs, here of one process, and what was done with it."""

    def __init__(self, folder: pathlib.Path):
        self._log = folder / 'log'
        self._log.touch()
        self.make = functools.partial(
            robot.make, functools.partial(Robot, str(self._log)), 4, 0, turns=str(folder / 'turns')
        )

    @property
    def done(self) -> list[str]:
        return [line.split()[-1] for line in self._log.read_text().splitlines()]

    @property
    def num_connected(self) -> int:
        return self.done.count('connects')


@pytest.fixture
def shared(tmp_path):
    return Shared(tmp_path)


def play(environment, num_steps, resets=True):
    if resets:
        environment.reset()
    return [int(environment.step(ACTION).step_type[0]) for _ in range(num_steps)]


def in_thread(function, *args):
    thread = threading.Thread(target=function, args=args, daemon=True)
    thread.start()
    return thread


def test_the_specs_need_no_robot(shared):
    environment = shared.make()
    assert environment.num_environments == 1, 'there is one robot'
    assert environment.specs.action.maximum == 1
    environment.close()
    assert shared.done == []


def test_nobody_else_waits_so_the_robot_stays(shared):
    environment = shared.make(patience_secs=0.05)
    assert play(environment, 12) == [1, 1, 1, 1, 2, 0] * 2
    threading.Event().wait(0.2)  # longer than the patience
    play(environment, 2, resets=False)
    environment.close()
    environment.close()
    assert (shared.num_connected, shared.done[-1], shared.done.count('closes')) == (1, 'closes', 1)


@pytest.mark.parametrize('episodes_per_turn', [1, 3])
def test_jobs_take_turns_at_the_ends_of_episodes(shared, episodes_per_turn):
    environments = [shared.make(episodes_per_turn=episodes_per_turn) for _ in range(2)]
    begun = threading.Barrier(2)

    def job(environment):
        begun.wait()
        play(environment, 6 * 6)
        environment.close()

    for thread in [in_thread(job, environment) for environment in environments]:
        thread.join(DEADLINE_SECS)
        assert not thread.is_alive()
    assert [environment.num_rebuilt for environment in environments] == [0, 0], 'no episode was dropped'
    turns = ' '.join(shared.done).split('connects')[1:]
    assert 'collides' not in shared.done and len(turns) >= 12 // episodes_per_turn - 1
    assert {turn.count('moves') % 6 for turn in turns[:-2]} == {0}, 'complete episodes'


def test_one_that_rests_at_the_end_of_an_episode_gives_the_robot_away(shared):
    """As evaluate does between two policies."""
    first, second = shared.make(), shared.make()
    assert play(first, 5)[-1] == 2
    play(second, 5)
    assert play(first, 1, resets=False) == [0]
    assert first.num_rebuilt == 0
    first.close()
    second.close()


def test_one_that_waits_within_an_episode_loses_it_to_another_job(shared):
    """As collection does for newer weights, and in one process for the evaluation."""
    first, second = shared.make(patience_secs=0.2), shared.make()
    play(first, 2)
    play(second, 5)
    assert play(first, 2, resets=False) == [0, 1], 'a new episode'
    assert first.num_rebuilt == 1 and 'another job got the robot' in first.newest_failure
    first.close()
    second.close()
    assert 'collides' not in shared.done


def test_a_limit_of_steps_ends_the_turn_too(shared):
    first, second = shared.make(max_episode_steps=3), shared.make()
    assert play(first, 4) == [1, 1, 2, 0]
    play(first, 2, resets=False)
    waiting = in_thread(play, second, 5)
    assert play(first, 1, resets=False) == [2]
    waiting.join(DEADLINE_SECS)
    first.close()
    second.close()


def test_a_stopped_job_that_waits_does_not_get_the_robot(shared):
    """All jobs are stopped at once: the robot must not begin to move again as soon as the first has ended."""
    first, second, stop = shared.make(patience_secs=60.0), shared.make(), threading.Event()
    play(first, 2)
    ended = []

    def report():
        if stop.is_set():
            raise Stopped('stopped')

    def job():
        try:
            with life.reported(report):
                second.reset()
        except Stopped:
            ended.append(True)
        second.close()

    waiting = in_thread(job)
    threading.Event().wait(0.2)
    stop.set()
    first.close()
    waiting.join(DEADLINE_SECS)
    assert ended and shared.num_connected == 1


def test_a_slow_reset_is_no_silence(shared, monkeypatch):
    """Somebody puts things back in their places."""
    environment, signs = shared.make(), []
    reset = Robot.reset
    monkeypatch.setattr(Robot, 'reset', lambda self, **kwargs: (threading.Event().wait(2.5), reset(self, **kwargs))[1])
    with life.reported(lambda: signs.append(1)):
        environment.reset()
    environment.close()
    assert len(signs) >= 2


def test_a_robot_that_cannot_be_made_is_left_to_others(shared, monkeypatch):
    environment, failures = shared.make(), [OSError('no answer'), OSError('no answer')]
    made = Robot.__init__

    def fail(self, *args, **kwargs):
        if failures:
            raise failures.pop()
        made(self, *args, **kwargs)

    monkeypatch.setattr(Robot, '__init__', fail)
    play(environment, 5)
    assert environment.num_rebuilt == 2 and 'no answer' in environment.newest_failure
    monkeypatch.setattr(Robot, 'reset', lambda self, **_: (np.zeros(7), {}))
    with pytest.raises(ValueError, match=r'got observation of environment 0 \(Robot\) with shape \(7,\)'):
        environment.reset()
    environment.close()


class Undeclared(gymnasium.Env):
    """Has spaces once it is made."""

    def __init__(self):
        self.observation_space = self.action_space = gymnasium.spaces.Discrete(2)


def test_wrong_arguments_are_refused(tmp_path):
    with pytest.raises(TypeError, match='got Undeclared without observation_space, action_space; need both spaces'):
        robot.make(Undeclared, 1, 0)
    with pytest.raises(ValueError, match='need a file in a directory that exists; make .*none'):
        robot.make(Robot, 1, 0, turns=str(tmp_path / 'none' / 'turns'))


def test_no_checkpoint_holds_a_robot(shared):
    """A resumed run begins a new episode."""
    environment = shared.make()
    environment.reset()
    with pytest.raises(TypeError):
        pickle.dumps(environment.content())
    environment.close()
