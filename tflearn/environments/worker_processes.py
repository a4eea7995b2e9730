"""gymnasium environments in one process each: the workers and their parent.

This file must stay importable without TensorFlow: workers import it, and should start quickly.
"""

import contextlib
import dataclasses
import multiprocessing
import os
import signal
import sys
import threading
import time
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from multiprocessing import connection, util
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector.utils import CloudpickleWrapper, batch_space, create_empty_array, iterate

from tflearn.core import background, life
from tflearn.core.errors import UserError
from tflearn.environments import gathering, infos, sync_vector_env
from tflearn.environments.sync_vector_env import cause_of, seed_of

_START_TIMEOUT_SECS = 600.0  # some environments load for minutes
_CLOSE_SECS = 30.0  # some simulators take a while to end
_DEATH_SECS = 2.0


def run_worker(
    index: int, make_one: CloudpickleWrapper, pipe: connection.Connection, shared_memory: Any, close_secs: float
) -> None:
    """Serves one environment to the parent, until the parent closes it or dies.

    Args:
      pipe: the connection to the parent: it receives commands (name, argument) and sends replies
        (True, result); the last reply may be (False, cause), a string or a UserError.
      shared_memory: the memory of the observations, where the worker writes observation `index`.
      close_secs: how long the environment may take to end once the parent has died.
    """
    # Both are often sent to a process group. The parent handles them, and ends its workers through
    # the pipe. A handler that does nothing, since programs that an environment starts would inherit
    # that the signals are ignored.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
    # What the environment starts is in this group too, and ends with it (`_end_group`)
    os.setpgid(0, 0)
    parent: Any = multiprocessing.parent_process()
    background.Thread(_end_after, 'worker_end', (parent, close_secs)).start()
    try:
        with sync_vector_env.closing(make_one.fn()) as environment:
            _serve(environment, index, pipe, shared_memory)
    except UserError as error:
        _reply(pipe, (False, type(error)(str(error))))
    except sync_vector_env.FAILURES as error:
        _reply(pipe, (False, cause_of(error)))
    pipe.close()
    _end_group(os.getpid(), signal.SIGTERM)
    if not parent.is_alive():  # it would end, by SIGKILL, what has not ended by now
        _end_after(parent, _DEATH_SECS)


def _end_after(parent: Any, secs: float) -> None:
    """Ends this process and what its environment has started, even if it hangs,
    `secs` after the parent has died.
    """
    parent.join()
    threading.Event().wait(secs)
    _end_group(os.getpid(), signal.SIGKILL)


def _serve(environment: gymnasium.Env, index: int, pipe: connection.Connection, shared_memory: Any) -> None:
    ended = False
    shape = sync_vector_env.reward_shape(environment)
    no_reward: Any = np.zeros(shape, np.float32) if shape else 0.0
    origin = sync_vector_env.origin_of(index, sync_vector_env.name_of(environment))
    batch = sync_vector_env.row_of(_arrays(environment.observation_space, shared_memory), index)
    gather = gathering.gatherer(environment.observation_space, batch, [origin])
    for command, argument in _commands(pipe):
        if command == 'start':
            _reply(pipe, (True, sync_vector_env.progress_setter(environment) is not None))
            continue
        if command == 'progress':
            if setter := sync_vector_env.progress_setter(environment):
                setter(*argument)
            continue
        if command == 'step' and not ended:
            stepped = gathering.step_result(environment.step(argument), shape, origin)
            observation, reward, terminated, truncated, info = stepped
            ended = terminated or truncated
            answer = (reward, terminated, truncated, infos.numeric_info(info))
        else:
            seed = argument if command == 'reset' else None
            observation, info = gathering.reset(environment, origin, seed=seed)
            ended = False
            answer = (no_reward, False, False, infos.numeric_info(info))
        gather([observation])
        _reply(pipe, (True, answer))


def _memory(space: Any, num_environments: int, context: Any) -> Any:
    """Returns shared memory for observations [B, ...]:
    B, and for each part as many bytes as it needs, in order.
    """
    shared: list[Any] = []
    share = lambda batch: shared.append(context.RawArray('b', max(1, batch.nbytes)))  # noqa: E731
    sync_vector_env.mapped(share, create_empty_array(space, num_environments))
    return num_environments, shared


def _arrays(space: Any, memory: Any) -> Any:
    """Returns the observations [B, ...] in shared memory."""
    num_environments, shared = memory
    parts = iter(shared)
    view = lambda batch: np.frombuffer(next(parts), batch.dtype, batch.size).reshape(batch.shape)  # noqa: E731
    return sync_vector_env.mapped(view, create_empty_array(space, num_environments))


def _commands(pipe: connection.Connection) -> Iterator[tuple[str, Any]]:
    """Yields the parent's commands until it closes the environment or dies."""
    while True:
        try:
            command, argument = pipe.recv()
        except (EOFError, OSError):
            return
        if command == 'close':
            return
        yield command, argument


def _reply(pipe: connection.Connection, value: Any) -> None:
    with contextlib.suppress(BrokenPipeError):  # the parent died; the next recv will raise EOFError
        pipe.send(value)


@contextlib.contextmanager
def _without_main_module() -> Iterator[None]:
    """Keeps new processes from importing this program's main module, and TensorFlow with it.

    multiprocessing imports it for pickled objects of that module. cloudpickle, which sends
    `make_one`, pickles such objects by value.
    """
    main = sys.modules['__main__']
    sys.modules['__main__'] = types.ModuleType('__main__')
    try:
        yield
    finally:
        sys.modules['__main__'] = main


@dataclasses.dataclass(frozen=True)
class _Worker:
    process: Any
    pipe: connection.Connection

    def ask(self, command: str, argument: Any = None) -> None:
        with contextlib.suppress(OSError):  # it died; `answer` will return the cause
            self.pipe.send((command, argument))

    def answer(self, deadline: float, signs: life.Signs) -> tuple[bool, Any]:
        """Returns (True, its result) or (False, the cause)."""
        while True:
            try:
                if self.pipe.poll(max(0.0, min(deadline, signs.due) - time.monotonic())):
                    return self.pipe.recv()
            except (EOFError, OSError):
                self.process.join(_DEATH_SECS)
                exitcode = self.process.exitcode
                cause = f'exit code {exitcode}' if (exitcode or 0) >= 0 else signal.Signals(-exitcode).name
                return False, f'its process (pid {self.process.pid}) died ({cause})'
            if time.monotonic() >= deadline:
                break
            signs.give()
        return False, f'its process (pid {self.process.pid}) did not answer in time and counts as hanging'


class WorkerVectorEnv(sync_vector_env.RebuildingVectorEnv):
    """Has one process per environment. An error closes it."""

    def __init__(self, make_one: Callable[[], gymnasium.Env], num_environments: int, step_timeout_secs: float):
        """Starts one process per environment and waits until each has made its own.

        Args:
          make_one: makes an environment; it is sent with cloudpickle, and called in this process
            too, for the spaces.

        Raises:
          RuntimeError: if a worker died or could not make its environment.
        """
        with sync_vector_env.closing(sync_vector_env.made(make_one)) as example:
            of_one = sync_vector_env.spaces_of(example)
            super().__init__(num_environments, sync_vector_env.name_of(example), of_one)
        gathering.check_space(self.single_observation_space, 'observation')
        gathering.check_space(self.single_action_space, 'action')
        self._make_one = CloudpickleWrapper(make_one)
        self._timeout_secs = step_timeout_secs
        # 'fork' would copy TensorFlow's locks while its threads hold them. 'spawn' would work, but
        # the fork server imports gymnasium only once for all workers.
        self._context = multiprocessing.get_context('forkserver')
        self._context.set_forkserver_preload([__name__])
        self._action_space = batch_space(self.single_action_space, num_environments)
        self._memory = _memory(self.single_observation_space, num_environments, self._context)
        self._batch = _arrays(self.single_observation_space, self._memory)
        self._environments = []  # they are in the workers
        self._workers: list[_Worker] = []
        # It also runs at exit, before multiprocessing joins the remaining processes.
        self._end = util.Finalize(self, _end_workers, args=(self._workers,), exitpriority=100)
        with self._closed_after_errors():
            for i in range(num_environments):
                self._workers.append(self._start(i))
            started, failed = self._ask(dict.fromkeys(range(num_environments), ('start', None)), _START_TIMEOUT_SECS)
            for i, cause in failed.items():
                raise RuntimeError(f'environment {i} failed in its worker process: {cause}')
        self._takes_progress = all(started.values())

    def reset(self, seed: int | None) -> Any:
        """See `sync_vector_env.RebuildingVectorEnv`."""
        self._seed = seed if seed is not None else self._seed
        with self._closed_after_errors():
            commands = {i: ('reset', seed_of(seed, i, num_rebuilt=0)) for i in range(self.num_envs)}
            _, failed = self._ask(commands, self._timeout_secs)
            self._rebuild(failed)
        return self._batch

    def step(self, action: Any) -> sync_vector_env.Step:
        """See `sync_vector_env.RebuildingVectorEnv`."""
        with self._closed_after_errors():
            commands = {i: ('step', own) for i, own in enumerate(iterate(self._action_space, action))}
            results, failed = self._ask(commands, self._timeout_secs)
            self._rebuild(failed)
        of_failed: tuple[Any, bool, bool, dict[str, Any]] = (np.zeros(self.reward_shape, np.float32), False, False, {})
        all_results = [results.get(i, of_failed) for i in range(self.num_envs)]
        return self._step_of(self._batch, all_results, action, failed)

    def rebuild(self, causes: Mapping[int, str]) -> tuple[Any, np.ndarray]:
        """See `sync_vector_env.RebuildingVectorEnv`."""
        with self._closed_after_errors():
            self._rebuild(dict(causes))
        return self._batch, self._rows(causes)

    def set_progress(self, train_step: int, env_steps: int) -> None:
        """See `sync_vector_env.RebuildingVectorEnv`."""
        self._progress = train_step, env_steps
        if self._takes_progress:
            for worker in self._workers:
                worker.ask('progress', self._progress)

    def close(self) -> None:
        """Ends the workers, and what they started;
        kills those that do not end within `_CLOSE_SECS`.
        """
        self._end()

    def _start(self, index: int) -> _Worker:
        own_pipe, its_pipe = self._context.Pipe()
        process = self._context.Process(
            target=run_worker,
            args=(index, self._make_one, its_pipe, self._memory, _CLOSE_SECS),
            name=f'environment_{index}',
        )  # not a daemon, which could have no processes of its own
        with _without_main_module():
            process.start()
        its_pipe.close()
        return _Worker(process, own_pipe)

    def _ask(self, commands: dict[int, tuple[str, Any]], timeout_secs: float) -> tuple[dict[int, Any], dict[int, str]]:
        """Sends commands to workers. Returns the results, and the causes of those that failed."""
        if not self._end.still_active():
            raise RuntimeError('got a call after an error or close(); need open environments; make new ones')
        for i, command in commands.items():
            self._workers[i].ask(*command)
        deadline, signs = time.monotonic() + timeout_secs, life.Signs()
        results: dict[int, Any] = {}
        failed: dict[int, Any] = {}
        for i in commands:
            good, value = self._workers[i].answer(deadline, signs)
            if isinstance(value, UserError):  # another one would do the same
                raise value
            (results if good else failed)[i] = value
        return results, failed

    def _rebuild(self, failed: dict[int, str]) -> None:
        """Starts new processes for the environments in `failed`, until all of them are reset."""
        while failed:
            for i, cause in failed.items():
                self.failures.add([i], cause)
                self._workers[i].process.kill()
                _end_workers([self._workers[i]])
                self._workers[i] = self._start(i)
                if self._progress and self._takes_progress:
                    self._workers[i].ask('progress', self._progress)
            commands = {i: ('reset', seed_of(self._seed, i, self.failures.num_rebuilt)) for i in failed}
            _, failed = self._ask(commands, max(_START_TIMEOUT_SECS, self._timeout_secs))


def _end_group(process: int, number: signal.Signals) -> None:
    """Sends a signal to what a worker, and programs that it started, may have left running."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process, number)


def _end_workers(workers: Iterable[_Worker]) -> None:
    workers = list(workers)
    for worker in workers:
        worker.ask('close')
    deadline = time.monotonic() + _CLOSE_SECS
    for worker in workers:
        worker.process.join(max(0.0, deadline - time.monotonic()))
        if worker.process.is_alive():
            worker.process.kill()
            worker.process.join()
        # The group outlives the worker as long as a program of the environment is in it, and keeps
        # its number.
        _end_group(worker.process.pid, signal.SIGKILL)
        worker.pipe.close()
