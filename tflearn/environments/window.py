"""Shows an environment in a window, and lets a person act in it by the keyboard;
or records it as videos.
"""

import contextlib
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium.wrappers import HumanRendering, RecordVideo

from tflearn.core.errors import UserValueError
from tflearn.core.types import BatchedEnvironment, EnvironmentFactory
from tflearn.environments import gymnasium_env

_NAMES = {' ': 'space', '\r': 'return'}  # of keys, as pygame calls them


def record(make_environment: EnvironmentFactory, folder: str) -> BatchedEnvironment:
    """Makes a batch of one environment that writes a video of each of its episodes (the extra `video`).

    Args:
      make_environment: makes environments by `gymnasium_env.make`.
      folder: the videos' directory; a video is complete when its episode has ended and the next one
        has started, or the environment is closed.

    Raises:
      ValueError: if the environment is not of `gymnasium_env.make` or cannot be rendered, or the extra is not
        installed.
    """
    return Stage(make_environment, folder, None).make(1, None)


class _Episodes(RecordVideo):
    """Records each episode, but not the reset after the last one."""

    def close(self) -> None:
        if len(self.recorded_frames) == 1:
            self.recorded_frames, self.recording = [], False
        super().close()


class Stage:
    """Makes one environment that is shown in a window, or recorded.

    Attributes:
      action_spec: the spec of the environment that was made; None before.
    """

    def __init__(self, make_environment: EnvironmentFactory, folder: str | None, fps: float | None):
        """
        Args:
          make_environment: makes environments by `gymnasium_env.make`.
          folder: a directory for videos, instead of the window.
          fps: frames per second in the window; None: those that the environment names.
        """
        self._make, self._folder, self._fps = make_environment, folder, fps
        self._shown: gymnasium.Env | None = None
        self.action_spec: Any = None

    def make(self, num_environments: int, seed: int | None) -> BatchedEnvironment:
        """Makes it; see `EnvironmentFactory`.

        Raises:
          ValueError: if there is no display for the window, or the environment is not of
            `gymnasium_env.make`.
        """
        if self._folder is None:
            _open_display()
        with gymnasium_env.rendered(self._wrapped):
            environment = self._make(num_environments=num_environments, seed=seed)
        if self._shown is None:
            environment.close()
            raise UserValueError(
                'got an environment that gymnasium_env.make has not made; need one of it, to show or record frames; '
                'register the class (gymnasium.register), or give tflearn.train(record_video=...) a function of '
                '`folder` that makes it in a gymnasium.wrappers.RecordVideo'
            )
        self.action_spec = environment.specs.action
        return environment

    def _wrapped(self, environment: gymnasium.Env) -> gymnasium.Env:
        if self._folder is not None:
            self._shown = _Episodes(environment, self._folder, episode_trigger=lambda episode: True)
            return self._shown
        self._shown = HumanRendering(environment)
        if self._fps:
            self._shown.metadata = {**self._shown.metadata, 'render_fps': self._fps}
        return self._shown

    def keys(self, given: str) -> dict[frozenset[str], Any]:
        """Returns actions by the keys that are held together, from 'left=0,right=1';
        '' asks the environment.

        Raises:
          ValueError: if a part is no key and number, or the environment knows no keys.
        """
        if not given:
            own = getattr(self._shown.unwrapped if self._shown else None, 'get_keys_to_action', None)
            if own is None:
                raise UserValueError('got an environment that names no keys; need --keys, such as left=0,right=1')
            return {frozenset(_name(key) for key in held): action for held, action in own().items()}
        found = {}
        for part in given.split(','):
            key, _, action = part.partition('=')
            try:
                found[frozenset([key])] = float(action)
            except ValueError:
                raise UserValueError(f'got {part!r} in --keys; need a key and its action, such as left=0') from None
        return found


def _open_display() -> None:
    import pygame  # it takes a while, and prints a greeting

    try:
        pygame.display.init()
    except pygame.error as error:
        raise UserValueError(
            f'got no display ({error}), where a window could be; need one; set DISPLAY, or record videos: --video=DIR'
        ) from error


def _name(key: Any) -> str:
    text = chr(key) if isinstance(key, int) else str(key)
    return _NAMES.get(text, text)


class Keyboard:
    """The keys that a person holds in the window, as a policy:
    a batch of one observation -> one action.

    Of several keys without an action of their own the newest one counts; without any the action is
    `idle`.
    """

    def __init__(self, keys: Mapping[frozenset[str], Any], idle: float, spec: Any, end: Callable[[], object]):
        """
        Args:
          keys: actions by the keys that are held together.
          idle: the action while no key is held.
          spec: the action's spec, one array.
          end: called when the window is closed, or Escape is pressed.
        """
        self._keys, self._idle, self._spec, self._end = keys, idle, spec, end
        self._held: list[str] = []

    def __call__(self, observation: Any) -> np.ndarray:
        """Returns the action [1, ...]."""
        import pygame

        for event in pygame.event.get():
            name = pygame.key.name(event.key) if event.type in (pygame.KEYDOWN, pygame.KEYUP) else ''
            if event.type == pygame.QUIT or (event.type == pygame.KEYDOWN and name == 'escape'):
                self._end()
            with contextlib.suppress(ValueError):
                self._held.remove(name)
            if event.type == pygame.KEYDOWN:
                self._held.append(name)
        together, newest = frozenset(self._held), [frozenset([name]) for name in reversed(self._held)]
        action = next((self._keys[held] for held in (together, *newest) if held in self._keys), self._idle)
        return np.full((1, *self._spec.shape), action, self._spec.dtype.as_numpy_dtype)
