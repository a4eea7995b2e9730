"""gymnasium environments in one process each, both ends of it.

This file must stay importable without TensorFlow: workers import it, and should start in a moment.
"""

import contextlib
import multiprocessing
import queue
import signal
import sys
import time
import traceback
import types
from collections.abc import Callable, Iterator
from multiprocessing import connection, util
from typing import Any

import gymnasium
from gymnasium.vector import AsyncVectorEnv, AutoresetMode
from gymnasium.vector.utils import write_to_shared_memory

_CLOSE_SECS = 5.0
_ERROR_SECS = 2.0


def run_worker(
    index: int,
    make_environment: Callable[[], gymnasium.Env],
    pipe: connection.Connection,
    parent_pipe: connection.Connection,
    shared_memory: Any,
    error_queue: Any,
    autoreset_mode: AutoresetMode,
    semaphore: Any = None,
) -> None:
    """Serves one environment to the parent, until the parent closes it or is gone. (`AsyncVectorEnv` starts it.)

    An exception goes to `error_queue` as (index, traceback); the parent learns of it from the end of the pipe.
    `autoreset_mode` is the next-step one. `semaphore`, new in gymnasium 1.4, is None: there is no `max_concurrency`.
    """
    # Both often go to a whole process group. The parent decides what they mean, and ends its workers through the pipe.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    parent_pipe.close()
    try:
        with contextlib.closing(make_environment()) as environment:
            _serve(environment, index, pipe, shared_memory)
    except Exception:
        error_queue.put((index, traceback.format_exc()))
    error_queue.close()
    error_queue.join_thread()
    pipe.close()


def _serve(environment: gymnasium.Env, index: int, pipe: connection.Connection, shared_memory: Any) -> None:
    observation_space = environment.observation_space
    ended = False
    for command, data in _commands(pipe):
        if command == 'step' and not ended:
            observation, reward, terminated, truncated, _ = environment.step(data)
            ended = bool(terminated or truncated)
            reply: Any = (None, float(reward), bool(terminated), bool(truncated), {})
        elif command == 'step':
            observation, _ = environment.reset()
            ended = False
            reply = (None, 0.0, False, False, {})
        elif command == 'reset':
            observation, _ = environment.reset(**data)
            ended = False
            reply = (None, {})
        elif command == '_check_spaces':
            _reply(pipe, (data[1] == observation_space, data[2] == environment.action_space))
            continue
        else:
            raise ValueError(f'got the command {command!r}; need reset, step or close')
        write_to_shared_memory(observation_space, index, observation, shared_memory)
        _reply(pipe, reply)


def _commands(pipe: connection.Connection) -> Iterator[tuple[str, Any]]:
    """Yields what the parent asks for; ends when it closes the environment or is gone."""
    while True:
        try:
            command, data = pipe.recv()
        except (EOFError, OSError):
            return
        if command == 'close':
            return
        yield command, data


def _reply(pipe: connection.Connection, value: Any) -> None:
    with contextlib.suppress(BrokenPipeError):  # the parent is gone, as the next recv will say
        pipe.send((value, True))


@contextlib.contextmanager
def _without_main_module() -> Iterator[None]:
    """Keeps new processes from importing this program's main module, and TensorFlow with it.

    multiprocessing has them do so for the sake of pickled objects that live there; cloudpickle, which gymnasium sends
    the environment's maker with, sends such objects whole.
    """
    main = sys.modules['__main__']
    sys.modules['__main__'] = types.ModuleType('__main__')
    try:
        yield
    finally:
        sys.modules['__main__'] = main


class WorkerVectorEnv(AsyncVectorEnv):
    """`AsyncVectorEnv` that says which worker failed and why, and that always ends its workers.

    Observations are read from shared memory and are overwritten by the next step. Infos stay in the workers. After an
    error it is closed.
    """

    def __init__(self, make_environments: list[Callable[[], gymnasium.Env]], timeout_secs: float):
        """Starts one process per environment and waits until each has made its own.

        Args:
          make_environments: sent with cloudpickle. The first one is called in this process too, for its spaces.
          timeout_secs: longest time for one step or reset.

        Raises:
          RuntimeError: if a worker died or could not make its environment.
        """
        self._timeout_secs = timeout_secs
        self.processes: list[Any] = []
        self.parent_pipes: list[Any] = []
        # 'fork' would copy TensorFlow's locks in whatever state its threads hold them. 'spawn' would be right too, but
        # the fork server imports gymnasium only once for all workers.
        multiprocessing.get_context('forkserver').set_forkserver_preload([__name__])
        try:
            with _without_main_module():
                # gymnasium's hint of a worker lacks the last arguments that it passes.
                super().__init__(make_environments, copy=False, context='forkserver', worker=run_worker)  # type: ignore[arg-type]
        except BaseException as error:
            lost = bool(self.processes) and isinstance(error, (EOFError, ConnectionError))
            failure = self._failure() if lost else None
            _end_workers(self.processes, self.parent_pipes)
            self.closed = True
            if failure:
                raise RuntimeError(failure) from None
            raise
        # Runs at exit too, and before multiprocessing joins what still runs there.
        self._end = util.Finalize(self, _end_workers, args=(self.processes, self.parent_pipes), exitpriority=100)

    def reset(self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None) -> Any:
        """Resets all environments. Raises RuntimeError if a worker died, TimeoutError if one hangs."""
        with self._failures_explained('reset'):
            self.reset_async(seed=seed, options=options)
            return self.reset_wait(self._timeout_secs)

    def step(self, actions: Any) -> Any:
        """Steps all environments. Raises RuntimeError if a worker died, TimeoutError if one hangs."""
        with self._failures_explained('step'):
            self.step_async(actions)
            return self.step_wait(self._timeout_secs)

    def close_extras(self, timeout: float | None = None, terminate: bool = False, **kwargs: Any) -> None:
        """Ends the workers: by asking them, and by force those that do not end within a few seconds."""
        self._end()

    @contextlib.contextmanager
    def _failures_explained(self, call: str) -> Iterator[None]:
        try:
            yield
        except multiprocessing.TimeoutError:
            self.close()
            raise TimeoutError(
                f'waited {self._timeout_secs:.0f} s in vain for the environments to {call} in their worker processes'
            ) from None
        except (EOFError, ConnectionError) as error:
            failure = self._failure()
            self.close()
            raise RuntimeError(failure or f'lost the worker processes of the environments ({error!r})') from None

    def _failure(self) -> str | None:
        """Returns what became of the first worker that failed, None if none did."""
        with contextlib.suppress(queue.Empty):
            index, trace = self.error_queue.get(timeout=_ERROR_SECS)
            return f'environment {index} failed in its worker process: {trace.strip().splitlines()[-1]}\n{trace}'
        for index, process in enumerate(self.processes):
            if process.exitcode is not None:
                cause = _cause(process.exitcode)
                return f'the worker process of environment {index} (pid {process.pid}) died ({cause})'
        return None


def _cause(exitcode: int) -> str:
    return f'exit code {exitcode}' if exitcode >= 0 else signal.Signals(-exitcode).name


def _end_workers(processes: list[Any], pipes: list[Any]) -> None:
    for pipe in pipes:
        with contextlib.suppress(OSError):
            pipe.send(('close', None))
    deadline = time.monotonic() + _CLOSE_SECS
    for process in processes:
        if process.pid is None:  # never started
            continue
        process.join(max(0.0, deadline - time.monotonic()))
        if process.is_alive():
            process.kill()
            process.join()
    for pipe in pipes:
        pipe.close()
