"""DecisionLog: what a server has decided, on its way to the process that writes `decision_files`.

A request only appends to a queue; a thread sends what waits, in small pieces, since it must not keep Python's lock from
the requests. SIGKILL loses what waits: the decisions of `WAKE_SECS`.
"""

import collections
import itertools
import multiprocessing
import pathlib
import threading
import time
import uuid
import zlib
from collections.abc import Callable, Mapping
from multiprocessing import util
from typing import Any

import numpy as np
from absl import logging

from tflearn.core import background
from tflearn.serving import decision_files
from tflearn.serving.decision_files import DecisionFiles, DecisionLogOptions, Decisions, Packed
from tflearn.serving.exploration import Arrays, Choices

WAKE_SECS = 0.2
_END_SECS = 30.0
_PIECE = 16  # requests that are packed together


class DecisionLog:
    """Takes the decisions of a server."""

    def __init__(
        self,
        options: DecisionLogOptions,
        spool: pathlib.Path,
        count: Callable[[str, int], object] = lambda result, number: None,
    ):
        """Starts the process that writes.

        Args:
          options: what is logged, and where.
          spool: the directory of files on their way to a store.
          count: called with 'logged', 'dropped' or 'not_chosen', and the number of decisions.

        Raises:
          ValueError: if the URL cannot be used.
          OSError: if the directory cannot be written to.
        """
        self._options, self._spool, self._count = options, spool, count
        DecisionFiles(options, spool).close()  # here, for its errors
        self._waiting: collections.deque[tuple[Any, ...]] = collections.deque()
        self._ids = (f'{uuid.uuid4().hex[:16]}-{number}' for number in itertools.count())
        self._stop = threading.Event()
        self._start()
        self._thread = background.Thread(target=self._send_all, name='decision_log')
        self._thread.start()

    def record(
        self, model: str, version: int, inputs: Arrays, chosen: Choices, event_id: str = '', arm: str = ''
    ) -> list[str]:
        """Logs the decisions of one request; never waits.

        Args:
          model: the policy's name.
          version: its version.
          inputs: arrays [B, ...] by name, which nobody changes.
          chosen: the actions.
          event_id: the request's id, if the caller gave one.
          arm: the caller's arm of an experiment.

        Returns:
          The ids of the B decisions: the request's; of several rows with '-0', '-1', ... behind it.
        """
        event_id = event_id or next(self._ids)
        rows = len(next(iter(chosen.actions.values())))
        if self._options.share < 1 and zlib.crc32(event_id.encode()) >= self._options.share * 2**32:
            self._count('not_chosen', rows)
        elif len(self._waiting) >= self._options.max_waiting:
            self._count('dropped', rows)
        else:
            self._waiting.append((event_id, rows, time.time(), model, version, arm, inputs, chosen))
        return decision_files.ids(event_id, rows)

    def close(self) -> None:
        """Sends what waits, and waits until it is written."""
        self._stop.set()
        self._thread.join(_END_SECS)
        self._close_pipe()
        self._process.join(_END_SECS)

    def _start(self) -> None:
        context = multiprocessing.get_context('spawn')  # a fork would copy TensorFlow's locks
        theirs, self._pipe = context.Pipe(duplex=False)
        arguments = self._options, self._spool, theirs
        self._process = context.Process(target=decision_files.write, args=arguments, name='decision_log', daemon=True)
        self._process.start()
        theirs.close()
        # It also runs at exit, before multiprocessing joins the process.
        self._close_pipe = util.Finalize(self, self._pipe.close, exitpriority=100)

    def _send_all(self) -> None:
        while True:
            stopping = self._stop.wait(WAKE_SECS)
            while self._waiting:
                piece = [self._waiting.popleft() for _ in range(min(_PIECE, len(self._waiting)))]
                rows = sum(entry[1] for entry in piece)
                try:
                    self._pipe.send([_packed(*entry) for entry in piece])
                    self._count('logged', rows)
                except OSError as error:
                    logging.warning('the process of the decision log died (%s); it is started again', error)
                    self._count('dropped', rows)
                    self._close_pipe()
                    self._start()
            if stopping:
                return


def _packed(
    event_id: str, rows: int, at: float, model: str, version: int, arm: str, inputs: Arrays, chosen: Choices
) -> Decisions:
    probabilities = None if chosen.probabilities is None else chosen.probabilities.tolist()
    mask: Mapping[str, np.ndarray] = {} if chosen.mask is None else {'mask': chosen.mask}
    packed = (_pack(inputs), _pack(chosen.actions), probabilities, _pack(mask))
    return Decisions(event_id, rows, at, model, version, arm, *packed)


def _pack(arrays: Arrays) -> Packed:
    return {name: (array.dtype.str, array.shape, array.tobytes()) for name, array in arrays.items()}
