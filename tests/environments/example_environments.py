"""gymnasium environments with known behaviour. They import no TensorFlow, since worker processes import them."""

import fcntl
import json
import multiprocessing
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

gymnasium.register('tflearn_tests/TwoStates-v0', 'tests.environments.example_environments:TwoStates')
gymnasium.register('tflearn_tests/Rover-v0', 'tests.environments.example_environments:Rover')

gymnasium.register('tflearn_tests/Switches-v0', 'tests.environments.example_environments:Switches')

gymnasium.register(
    'tflearn_tests/OtherNative-v0',
    'tests.environments.example_environments:TwoStates',
    vector_entry_point='gymnasium.envs.classic_control.cartpole:CartPoleVectorEnv',
)


class TwoStates(gymnasium.Env):
    """States 0 and 1; action 1 changes the state for reward 1. Step `length` terminates in state 1, else truncates."""

    observation_space = spaces.Discrete(2)
    action_space = spaces.Discrete(2)

    def __init__(self, length: int = 3):
        self._length = length
        self._state = self._steps = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[int, dict]:
        super().reset(seed=seed)
        self._state = self._steps = 0
        return self._state, {}

    def step(self, action: int) -> tuple[int, float, bool, bool, dict]:
        self._steps += 1
        self._state = (self._state + int(action)) % 2
        ended = self._steps == self._length
        return self._state, float(action), ended and self._state == 1, ended, {}


class SlowResets(gymnasium.Wrapper):
    """Resets take `secs`. A file beside `status` has the times that are in it before and after each of them."""

    def __init__(self, secs: float, status: pathlib.Path, environment: gymnasium.Env | None = None):
        super().__init__(environment or TwoStates())
        self._secs, self._status = secs, status

    def reset(self, **kwargs: Any) -> tuple[Any, dict]:
        times = [self._reported_at()]
        threading.Event().wait(self._secs)
        times.append(self._reported_at())
        (self._status.parent / f'reset-{time.time_ns()}-{os.getpid()}').write_text(json.dumps(times))
        return super().reset(**kwargs)

    def _reported_at(self) -> float:
        return json.loads(self._status.read_text())['time'] if self._status.exists() else 0.0

    @staticmethod
    def reported_meanwhile(status: pathlib.Path, num_resets: int) -> bool:
        """Returns whether `status` was written between the begin and the end of the first `num_resets`."""
        first = sorted(status.parent.glob('reset-*'))[:num_resets]
        begins, ends = zip(*(json.loads(path.read_text()) for path in first), strict=True)
        return min(begins) < max(ends)


class Switches(gymnasium.Env):
    """A random one of 32 states each step; the right one of two actions has reward 1. Episodes do not end."""

    NUM_STATES = 32
    observation_space = spaces.Discrete(NUM_STATES)
    action_space = spaces.Discrete(2)

    @staticmethod
    def right(state: int) -> int:
        """Returns the action with reward 1."""
        return 0xB2D3_4A96 >> state & 1

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[int, dict]:
        super().reset(seed=seed)
        self._state = int(self.np_random.integers(self.NUM_STATES))
        return self._state, {}

    def step(self, action: int) -> tuple[int, float, bool, bool, dict]:
        reward = float(action == self.right(self._state))
        self._state = int(self.np_random.integers(self.NUM_STATES))
        return self._state, reward, False, False, {}


class Rover(gymnasium.Env):
    """Nests on both sides, discrete spaces that do not start at 0, and float64.

    Any step ends the episode with probability 1/8. The place moves by the action's `move`, to be seen one step later.
    """

    observation_space = spaces.Dict(
        {
            'position': spaces.Box(-100.0, 100.0, (2,), np.float64),
            'wheels': spaces.Tuple((spaces.MultiBinary(2), spaces.Discrete(3, start=-1))),
            'camera': spaces.Box(0, 255, (4, 4, 1), np.uint8),
        }
    )
    action_space = spaces.Dict(
        {
            'gear': spaces.Discrete(3, start=5),
            'lamps': spaces.MultiBinary(2),
            'move': spaces.Box(-0.1, 0.1, (2,), np.float64),
            'speeds': spaces.MultiDiscrete([2, 3], start=[1, 0]),
        }
    )

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[dict, dict]:
        super().reset(seed=seed)
        self._position = self.np_random.uniform(-1.0, 1.0, 2)
        self._gear, self._lamps = 6, np.zeros(2, np.int8)
        return self._observation(), {}

    def step(self, action: dict[str, Any]) -> tuple[dict, float, bool, bool, dict]:
        if not self.action_space.contains(action):
            raise ValueError(f'got {action}; need one of {self.action_space}')
        self._position = self._position + action['move']
        self._gear, self._lamps = int(action['gear']), action['lamps']
        reward = float(action['speeds'][0] * 10 + action['speeds'][1])
        return self._observation(), reward, bool(self.np_random.random() < 0.125), False, {'not': 'used'}

    def _observation(self) -> dict[str, Any]:
        camera = self.np_random.integers(0, 256, (4, 4, 1), np.uint8)
        return {'position': self._position, 'wheels': (self._lamps, self._gear - 6), 'camera': camera}


class Troubled(TwoStates):
    """Fails in state 1: 'raise', 'sys.exit', 'exit' or 'hang'; 'make' fails at construction, 'close' at the end."""

    def __init__(self, trouble: str):
        super().__init__(length=1000)
        # Construction works in the parent, which reads the spaces.
        if trouble == 'make' and multiprocessing.parent_process():
            raise OSError('no licence for a second simulator')
        self._trouble = trouble

    def step(self, action: int) -> tuple[int, float, bool, bool, dict]:
        result = super().step(action)
        if self._state == 1 and self._trouble == 'raise':
            raise ZeroDivisionError('the physics broke')
        if self._state == 1 and self._trouble == 'sys.exit':
            sys.exit()
        if self._state == 1 and self._trouble == 'exit':
            os._exit(7)
        if self._state == 1 and self._trouble == 'hang':
            until = time.monotonic() + 120.0
            while time.monotonic() < until:  # nearly an infinite loop, but it ends if the test leaves it behind
                pass
        return result

    def close(self) -> None:
        if self._trouble == 'close':
            raise OSError('the simulator has ended already')


class Unresettable(TwoStates):
    """Fails at every call while the file `path` exists."""

    def __init__(self, path: pathlib.Path):
        super().__init__(length=1000)
        self._path = path

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[int, dict]:
        if self._path.exists():
            raise OSError('no licence left')
        return super().reset(seed=seed)

    def step(self, action: int) -> tuple[int, float, bool, bool, dict]:
        return self.reset()[0], 0.0, False, False, {}


class Talkative(TwoStates):
    """Its infos have numbers and other values; it always executes action 0. The first info comes with a step."""

    def step(self, action: int) -> tuple[int, float, bool, bool, dict]:
        observation, reward, terminated, truncated, _ = super().step(0)
        info = {'count': self._steps, 'speed': 0.5, 'position': np.arange(2.0), 'name': 'rover', 'nested': {'x': 1}}
        return observation, reward, terminated, truncated, {**info, 'executed_action': 0}


class Forward(gymnasium.Env):
    """Executes 0 instead of a negative action. Its infos have the executed action."""

    observation_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = spaces.Box(-1.0, 1.0, (2,), np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict]:
        executed = np.maximum(action, 0)
        return executed, 0.0, False, False, {'executed_action': executed}


class Modules(TwoStates):
    """Is in state 1 where TensorFlow is imported."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[int, dict]:
        return int('tensorflow' in sys.modules), {}


class Starting(TwoStates):
    """Starts a program and a process, writes their ids, and never ends them."""

    def __init__(self, path: pathlib.Path):
        super().__init__()
        self._path = path

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[int, dict]:
        program = subprocess.Popen(['sleep', '1000'])
        process = multiprocessing.get_context('spawn').Process(target=signal.pause)
        process.start()
        with self._path.open('a') as file:
            file.write(f'{program.pid} {process.pid}\n')
        return super().reset(seed=seed)


class Closing(TwoStates):
    """Takes some seconds to close, and makes a file then."""

    def __init__(self, path: pathlib.Path, secs: float):
        super().__init__()
        self._path, self._secs = path, secs

    def close(self) -> None:
        threading.Event().wait(self._secs)
        self._path.touch()


class Stubborn(TwoStates):
    """Starts a program that ignores SIGTERM, writes both ids, and hangs in a step."""

    def __init__(self, path: pathlib.Path):
        super().__init__()
        self._path = path

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[int, dict]:
        program = subprocess.Popen(['sh', '-c', 'trap "" TERM; exec sleep 1000'])
        with self._path.open('a') as file:
            file.write(f'{os.getpid()} {program.pid}\n')
        return super().reset(seed=seed)

    def step(self, action: Any) -> Any:
        signal.pause()


class Returning(gymnasium.Env):
    """Returns what it is given: an observation, and from the third step on other results than it should."""

    action_space = spaces.Discrete(2)

    def __init__(self, space: spaces.Space, good: Any, at_step: int = 2, **wrong: Any):
        """Makes it; `wrong` has an observation, reward, terminated, truncated or info, or a whole `step` or `reset`."""
        self.observation_space, self._good, self._at_step, self._wrong = space, good, at_step, wrong
        self._steps = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self._steps = 0
        return self._wrong.get('reset', (self._good, {}))

    def step(self, action: int) -> Any:
        self._steps += 1
        now = self._wrong if self._steps >= self._at_step else {}
        names = {'observation': self._good, 'reward': 1.0, 'terminated': False, 'truncated': False, 'info': {}}
        return now.get('step', tuple(now.get(name, value) for name, value in names.items()))


class ReturningVector(gymnasium.vector.VectorEnv):
    """The same for two environments, of which each returns the same, as another library's vector environment."""

    metadata = {'autoreset_mode': gymnasium.vector.AutoresetMode.NEXT_STEP}  # noqa: RUF012 (gymnasium's)
    num_envs = 2

    def __init__(self, space: spaces.Space, good: Any, **wrong: Any):
        self._one = Returning(space, good, **wrong)
        self.single_observation_space, self.single_action_space = space, self._one.action_space

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        result = self._one.reset(seed=seed)
        return result if 'reset' in self._one._wrong else (_twice(result[0]), result[1])

    def step(self, actions: Any) -> Any:
        result = self._one.step(0)
        if len(result) != 5:
            return result
        observation, reward, terminated, truncated, info = result
        return _twice(observation), _pair(reward), _pair(terminated), _pair(truncated), info


def _pair(value: Any) -> Any:
    return np.array([value, value])


def _twice(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _twice(part) for key, part in value.items()}
    return tuple(map(_twice, value)) if isinstance(value, tuple) else _pair(value)


class Course(gymnasium.Env):
    """Its observation is its progress, (train step, environment steps), and its `reset` option 'level'."""

    observation_space = spaces.Box(-1e9, 1e9, (3,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self) -> None:
        self._progress, self._level, self._steps = (0, 0), 0.0, 0

    def set_progress(self, train_step: int, env_steps: int) -> None:
        """Takes the run's progress."""
        self._progress = train_step, env_steps

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self._level, self._steps = (options or {}).get('level', 0.0), 0
        return self._observation(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        self._steps += 1
        return self._observation(), 1.0, self._steps == 4, False, {'robot': {'speed': 0.5}}

    def _observation(self) -> np.ndarray:
        return np.array([*self._progress, self._level], np.float32)


class WithInfo(TwoStates):
    """Reports a cost in each step, and whether the second state was reached only at the end."""

    def step(self, action: int) -> tuple[int, float, bool, bool, dict]:
        observation, reward, terminated, truncated, info = super().step(action)
        ended = {'success': bool(self._steps % 2)} if terminated or truncated else {}
        return observation, reward, terminated, truncated, {**info, 'cost': 0.5 * self._steps, 'name': 'x', **ended}


class Numbered(gymnasium.Env):
    """Episodes of four random observations, in which each number of an action should be its first legal one."""

    def __init__(self, action_space: spaces.Space, masked: int | None = 0):
        parts = {'kind': spaces.Discrete(4, start=-2), 'size': spaces.Box(-1, 1, (2,), np.float32)}
        self.observation_space = spaces.Dict(parts | ({'mask': spaces.MultiBinary(masked)} if masked else {}))
        if masked is None:
            self.observation_space = parts['size']
        self.action_space = action_space

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict]:
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        self._left = 4
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        assert self.action_space.contains(action), action
        if isinstance(self._observation, dict) and (mask := self._observation.get('mask')) is not None:
            chosen = np.ravel(action - self.action_space.start)
            sizes = np.ravel(getattr(self.action_space, 'nvec', getattr(self.action_space, 'n', None)))
            assert mask[chosen + np.cumsum(sizes) - sizes].all(), (action, mask)
        self._left -= 1
        first = action['gear'] if isinstance(action, dict) else np.ravel(action)[0]
        return self._observe(), float(first % 5 == 1), False, self._left == 0, {}

    def _observe(self) -> Any:
        self._observation = self.observation_space.sample()
        if isinstance(self._observation, dict) and 'mask' in self._observation:
            self._observation['mask'][:] = np.arange(len(self._observation['mask'])) % 2 == self._left % 2
            self._observation['mask'][0] = 1
        return self._observation


class Robot(TwoStates):
    """One that is there once: a second one at the same time raises, and all that it does is in the file `log`.

    Each line is a time [s], a process and what it does: connects, moves, closes, or collides.
    """

    def __init__(self, log: str, length: int = 5):
        super().__init__(length)
        self._log = pathlib.Path(log).open('a', buffering=1)  # noqa: SIM115
        try:
            fcntl.flock(self._log, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._write('collides')
            self._log.close()
            raise
        self._write('connects')

    def reset(self, **kwargs: Any) -> tuple[int, dict]:
        self._write('moves')
        return super().reset(**kwargs)

    def step(self, action: int) -> tuple[int, float, bool, bool, dict]:
        self._write('moves')
        threading.Event().wait(0.005)
        return super().step(action)

    def close(self) -> None:
        self._write('closes')
        self._log.close()

    def _write(self, what: str) -> None:
        self._log.write(f'{time.time()} {os.getpid()} {what}\n')


class WithoutSeed(gymnasium.Env):
    """Its reset takes no seed."""

    observation_space = action_space = spaces.Discrete(2)

    def reset(self):
        return 0, {}
