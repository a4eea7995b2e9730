"""EvaluationProcesses: processes that play shares of an evaluation's episodes beside the process of the job."""

import contextlib
import dataclasses
import itertools
import multiprocessing
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

from absl import logging

from tflearn.actors.evaluator import EpisodeStatistics
from tflearn.core.errors import UserError, UserValueError
from tflearn.core.waiting import Stopped

_POLL_SECS = 0.5
_JOIN_SECS = 30.0

# Plays the share of a process of the episodes of the policy that is asked for.
Play = Callable[[Any], EpisodeStatistics]


class EvaluationProcesses:
    """Forks of this process, which has loaded TensorFlow but not used it,
    so that they have its configuration.

    They play when they are asked to, and keep their environments in between.
    """

    def __init__(
        self, make_player: Callable[[int], Play], num_processes: int, num_episodes: int, stop: threading.Event
    ):
        """Starts all processes but the first, which is this one.

        Args:
          make_player: called with its index in each new process; returns what plays there.
          num_processes: the number of processes, with this one.
          num_episodes: the episodes that they share.
          stop: ends waiting.

        Raises:
          ValueError: for more processes than episodes.
        """
        if num_processes > num_episodes:
            raise UserValueError(
                f'got num_processes={num_processes} for num_episodes={num_episodes}; need at most as many'
            )
        self._stop = stop
        self._others: list[tuple[BaseProcess, Connection]] = []
        context = multiprocessing.get_context('fork')
        for index in range(1, num_processes):
            ours, theirs = context.Pipe()
            inherited = [ours, *(pipe for _, pipe in self._others)]
            process: BaseProcess = context.Process(
                target=_play, args=(make_player, index, theirs, inherited), name=f'evaluation_{index}'
            )
            process.start()
            theirs.close()
            self._others.append((process, ours))

    def play(self, asked: Any, own: Play, alive: Callable[[], None] = lambda: None) -> EpisodeStatistics:
        """Plays the shares of all processes of the policy that is `asked` for,
        one of them by `own` in this one.

        `alive` is called twice a second while the others play longer.

        Raises:
          ValueError: for what a user did wrong, in any process.
          RuntimeError: if another process died.
          Stopped: if `stop` was set.
        """
        for _, pipe in self._others:
            with contextlib.suppress(OSError):  # it has ended; `_result_of` finds why
                pipe.send(asked)
        parts = [own(asked), *(self._result_of(*other, alive) for other in self._others)]
        reasons = dict.fromkeys(part.incomplete for part in parts if part.incomplete)
        return EpisodeStatistics(
            tuple(itertools.chain.from_iterable(part.episodes for part in parts)),
            sum(part.dropped_episodes for part in parts),
            '; '.join(reasons),
        )

    def close(self) -> None:
        """Ends the other processes."""
        for process, pipe in self._others:
            process.kill()
            process.join(_JOIN_SECS)
            pipe.close()

    def _result_of(self, process: BaseProcess, pipe: Connection, alive: Callable[[], None]) -> EpisodeStatistics:
        while not pipe.poll(_POLL_SECS):
            alive()
            if self._stop.is_set():
                raise Stopped(f'stopped while {process.name} was playing')
        try:
            statistics, user_error = pipe.recv()
        except (EOFError, OSError):
            if self._stop.wait(_POLL_SECS):  # an interrupt of the terminal ends all processes
                raise Stopped(f'stopped while {process.name} was playing') from None
            raise _ended(process) from None
        if user_error:
            raise UserValueError(user_error)
        return EpisodeStatistics(**statistics)


def _ended(process: BaseProcess) -> RuntimeError:
    process.join(_JOIN_SECS)
    return RuntimeError(
        f'got no result of {process.name}, which ended with exit code {process.exitcode}; its error is in the log'
    )


def share(num_episodes: int, num_processes: int, index: int) -> int:
    """Returns the episodes of a process."""
    return num_episodes // num_processes + (index < num_episodes % num_processes)


def _play(make_player: Callable[[int], Play], index: int, pipe: Connection, inherited: list[Connection]) -> None:
    """Plays what is asked for until the first process has ended."""
    for end in inherited:  # which would keep its processes from seeing that
        end.close()
    try:
        play = make_player(index)
        while True:
            try:
                asked = pipe.recv()
            except EOFError:  # this evaluation is over
                return
            played = dataclasses.asdict(play(asked))
            # The first process has ended; so says the next `recv`.
            with contextlib.suppress(BrokenPipeError):
                pipe.send((played, None))
    except Stopped:
        pass
    except UserError as error:
        pipe.send((None, str(error)))
    except Exception:
        logging.exception('process %d of the evaluation failed', index)
        raise
    finally:
        pipe.close()
