"""A robot, or other hardware that is there once:
jobs take turns with it, and one at a time connects.

    class Arm(gymnasium.Env):
        observation_space = gymnasium.spaces.Box(-np.pi, np.pi, (6,))  # of the class: read without a robot
        action_space = gymnasium.spaces.Box(-1.0, 1.0, (6,))
        ...

    make_environment = functools.partial(robot.make, Arm)

A turn ends at the end of an episode, if another job waits for one. The robot is made at the first
reset of a turn, and closed at the turn's end; all its calls come from one thread.
"""

import concurrent.futures
import functools
import pathlib
import tempfile
import threading
import time
from collections.abc import Callable
from typing import IO, Any

import gymnasium
from absl import logging

from tflearn.core import life
from tflearn.core.errors import UserTypeError, UserValueError
from tflearn.core.settings import PositiveFloat, PositiveInt, checked
from tflearn.environments import sync_vector_env, vector_env
from tflearn.environments.vector_env import OnNonfinite, VectorEnvironment
from tflearn.files.lock import try_lock

_POLL_SECS, _SIGN_SECS = 0.02, 1.0
_SPACES = ('observation_space', 'action_space')


@checked
def make(
    make_one: Callable[[], gymnasium.Env],
    num_environments: int,
    seed: int | None,
    max_episode_steps: PositiveInt | None = None,
    turns: str = '',
    episodes_per_turn: PositiveInt = 1,
    patience_secs: PositiveFloat = 5.0,
    on_nonfinite: OnNonfinite = 'rebuild',
) -> VectorEnvironment:
    """Makes the environment of a robot that jobs share by turns. It connects at its first reset.

    Args:
      make_one: the robot's class, a gymnasium.Env whose spaces are attributes of the class; or a
        partial of it.
      num_environments: has no effect: one robot is one environment.
      seed: the seed of the first reset.
      max_episode_steps: an episode is truncated after so many steps; None: only the robot ends it.
      turns: a file by which the jobs of this machine take turns, one for each robot; '': one in the
        folder of temporary files, with the name of the class.
      episodes_per_turn: episodes after which another job that waits gets the robot.
      patience_secs: when no step comes for so long, another job that waits gets the robot, and the
        episode is dropped.
      on_nonfinite: see `vector_env.in_process`.

    Raises:
      UserTypeError: if the class has no spaces.
    """
    one: Any = make_one
    while isinstance(one, functools.partial) or hasattr(one, '__wrapped__'):  # as gin wraps it
        one = one.func if isinstance(one, functools.partial) else one.__wrapped__
    name = getattr(one, '__name__', type(one).__name__)
    if missing := [each for each in _SPACES if not isinstance(getattr(one, each, None), gymnasium.Space)]:
        raise UserTypeError(
            f'got {name} without {", ".join(missing)}; need both spaces as attributes of the class, '
            'since jobs that only need the spaces must not make a robot; see docs/external-simulators.md'
        )
    path = pathlib.Path(turns or pathlib.Path(tempfile.gettempdir(), f'tflearn-{name}.turns'))
    if not path.parent.is_dir():
        raise UserValueError(f'got turns={turns!r}; need a file in a directory that exists; make {path.parent}')
    one_robot = functools.partial(
        SharedRobot, make_one, (one.observation_space, one.action_space),
        Turn(path), max_episode_steps, episodes_per_turn, patience_secs, name,
    )  # fmt: skip
    if num_environments > 1:
        logging.info('%s is one robot: one environment instead of %d', name, num_environments)
    return vector_env.in_process(one_robot, 1, seed, on_nonfinite)


class Turn:
    """A turn of this process, by the locks of two files: who has it, and who is next.

    The kernel ends the locks of a process that dies. Errors of the system, such as those of a file
    of another user, propagate.
    """

    def __init__(self, path: pathlib.Path):
        """Does not take the turn."""
        self._path, self._next = path, path.with_name(f'{path.name}.next')
        self._held: IO[bytes] | None = None
        self._never = threading.Event()

    @property
    def is_held(self) -> bool:
        """Whether this process has the turn."""
        return self._held is not None

    def take(self) -> None:
        """Waits for the turn, and gives signs of life;
        errors of the job that reports them propagate.
        """
        # Who waits keeps `next`: the one whose turn ends might be faster, and take the next one
        # too.
        with self._next.open('ab') as following:
            self._wait_for(following)
            held = self._path.open('ab')
            try:
                self._wait_for(held)
                # All jobs may have been stopped meanwhile: then the robot must not move again.
                life.Signs().give()
            except BaseException:
                held.close()
                raise
            self._held = held

    def is_wanted(self) -> bool:
        """Returns whether another job waits for the turn."""
        with self._next.open('ab') as following:
            return not try_lock(following)

    def end(self) -> None:
        """Ends the turn, if this process has it."""
        if self._held is not None:
            self._held.close()
            self._held = None

    def _wait_for(self, file: IO[bytes]) -> None:
        signs = life.Signs()
        while not try_lock(file):
            self._never.wait(_POLL_SECS)
            if time.monotonic() >= signs.due:
                signs.give()


class SharedRobot(gymnasium.Env):
    """A robot that is there while this process has the turn."""

    def __init__(
        self,
        make_one: Callable[[], gymnasium.Env],
        spaces: tuple[gymnasium.Space, gymnasium.Space],
        turn: Turn,
        max_episode_steps: int | None,
        episodes_per_turn: int,
        patience_secs: float,
        error_name: str,
    ):
        """Makes no robot; see `make`."""
        self.error_name = error_name
        self.observation_space, self.action_space = spaces
        self._make_one, self._turn = make_one, turn
        self._robot: gymnasium.Env | None = None
        self._max_episode_steps, self._episodes_per_turn = max_episode_steps, episodes_per_turn
        self._patience_secs = patience_secs
        self._num_steps = self._num_episodes = 0  # of the episode, and of the turn
        self._has_ended = self._is_closed = False
        # What the robot's libraries keep by thread is always in this one, which also ends a turn
        # between two calls.
        self._thread = concurrent.futures.ThreadPoolExecutor(1, 'robot')
        self._called = threading.Event()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Waits for the turn, makes the robot unless it is there, and begins an episode."""
        self._call(self._end_turn_if_over)
        if not self._turn.is_held:
            self._turn.take()
        # Somebody may have to put things back in their places.
        result = self._call(functools.partial(self._begin, seed, options), life.Signs())
        self._rest()
        return result

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """See `gymnasium.Env`. Raises RuntimeError if another job got the robot meanwhile."""
        result = self._call(functools.partial(self._step, action))
        self._rest()
        return result

    def close(self) -> None:
        """Closes the robot, and ends the turn. A second call does nothing."""
        if not self._is_closed:
            self._is_closed = True
            self._call(self._end_turn)
            self._thread.shutdown()

    def _call(self, function: Callable[[], Any], signs: life.Signs | None = None) -> Any:
        """Returns what a function returns in the robot's thread;
        gives `signs` of life meanwhile.
        """
        self._called.set()
        future = self._thread.submit(function)
        while signs and not concurrent.futures.wait([future], _SIGN_SECS).done:
            if time.monotonic() >= signs.due:
                signs.give()
        return future.result()

    def _rest(self) -> None:
        self._called.clear()
        self._thread.submit(self._watch)

    # In the robot's thread.

    def _begin(self, seed: int | None, options: dict[str, Any] | None) -> tuple[Any, dict[str, Any]]:
        if self._robot is None:
            try:
                self._robot = sync_vector_env.made(self._make_one)
            except BaseException:
                self._end_turn()
                raise
        self._num_steps, self._has_ended = 0, False
        self._num_episodes += 1
        return self._robot.reset(seed=seed, options=options)

    def _step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        if self._robot is None:
            raise RuntimeError(
                f'another job got the robot, since no step came for {self._patience_secs:g} s (patience_secs)'
            )
        observation, reward, terminated, truncated, info = self._robot.step(action)
        self._num_steps += 1
        truncated = truncated or (self._num_steps == self._max_episode_steps and not terminated)
        self._has_ended = terminated or truncated
        return observation, reward, terminated, truncated, info

    def _watch(self) -> None:
        """Ends the turn before the next call, if another job waits for it for too long."""
        is_over = self._has_ended and self._num_episodes >= self._episodes_per_turn
        until = time.monotonic() + (0.0 if is_over else self._patience_secs)
        while threading.main_thread().is_alive() and not self._called.wait(_POLL_SECS):
            if time.monotonic() >= until and self._turn.is_wanted():
                self._end_turn()
                return

    def _end_turn_if_over(self) -> None:
        if self._num_episodes >= self._episodes_per_turn and self._turn.is_held and self._turn.is_wanted():
            self._end_turn()

    def _end_turn(self) -> None:
        robot, self._robot, self._num_episodes = self._robot, None, 0
        try:
            if robot is not None:
                sync_vector_env.close(robot)
        finally:
            self._turn.end()
