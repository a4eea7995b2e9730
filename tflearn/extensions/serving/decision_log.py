"""DecisionLog: decisions of a server and their outcomes, on the way to the process that writes `decision_files`.

A request only appends to a queue; a thread sends what waits, decisions of one kind as one, and seldom: when it takes
Python's lock from the requests, these wait for a processor again. SIGKILL loses what waits: that of `WAKE_SECS`.

Outcomes are checked as clients report them, and are one line of JSON each.
"""

import collections
import itertools
import json
import multiprocessing
import operator
import pathlib
import threading
import time
import uuid
import zlib
from collections.abc import Callable, Mapping, Sequence
from multiprocessing import util
from typing import Any, NamedTuple

import numpy as np
from absl import logging

from tflearn.core import background
from tflearn.extensions.serving import decision_files
from tflearn.extensions.serving.decision_files import DecisionFiles, DecisionLogOptions, Decisions, Packed, RequestOf
from tflearn.extensions.serving.exploration import PROBABILITY, Arrays
from tflearn.extensions.serving.served_version import InvalidRequest

WAKE_SECS = 0.2
_END_SECS = 30.0
MAX_BYTES = 256 << 20  # that wait
_PIECE = 1024  # requests that are packed together


class _Waiting(NamedTuple):
    """A request that waits; `inputs` and `outputs` are arrays of its rows."""

    size: int
    request: RequestOf
    model: str
    version: int
    mask: str
    inputs: Arrays
    outputs: Arrays

    @property
    def kind(self) -> tuple[Any, ...]:
        """What those have in common that are packed together."""
        shapes = [(name, array.shape[1:]) for part in (self.inputs, self.outputs) for name, array in part.items()]
        return self.model, self.version, self.mask, shapes


class DecisionLog:
    """Takes the decisions of a server."""

    def __init__(
        self,
        options: DecisionLogOptions,
        spool: pathlib.Path,
        count: Callable[[str, str, int], object] = lambda kind, result, number: None,
    ):
        """Starts the process that writes.

        Args:
          options: what is logged, and where.
          spool: the directory of files on their way to a store.
          count: called with 'decisions' or 'outcomes', 'logged', 'dropped' or 'not_chosen', and their number.

        Raises:
          ValueError: if the URL cannot be used.
          OSError: if the directory cannot be written to.
        """
        self._options, self._spool, self._count = options, spool, count
        DecisionFiles(options, spool, 'decisions').close()  # here, for its errors
        self._waiting: collections.deque[_Waiting | list[bytes]] = collections.deque()
        self._bytes = [0, 0]  # that came, and that were sent: each is written by one thread
        prefix = uuid.uuid4().hex[:16]  # once: its system call would give up Python's lock in each request
        self._ids = (f'{prefix}-{number}' for number in itertools.count())
        self._stop = threading.Event()
        self._start()
        self._thread = background.Thread(target=self._send_all, name='decision_log')
        self._thread.start()

    def record(
        self,
        model: str,
        version: int,
        inputs: Arrays,
        outputs: Arrays,
        mask: str = '',
        event_id: str = '',
        arm: str = '',
    ) -> str:
        """Logs the decisions of one request; never waits. Like `record_outcomes` it is called on one thread.

        Args:
          model: the policy's name.
          version: its version.
          inputs: arrays [B, ...] by name, which nobody changes.
          outputs: arrays [B, ...] as `Chooser` returns them.
          mask: the input that says which actions were legal, '' for none.
          event_id: the request's id, if the caller gave one.
          arm: the caller's arm of an experiment, else the version's state.

        Returns:
          The request's id, see `decision_files.ids`.
        """
        event_id = event_id or next(self._ids)
        rows = len(next(iter(outputs.values())))
        if self._options.share < 1 and zlib.crc32(event_id.encode()) >= self._options.share * 2**32:
            self._count('decisions', 'not_chosen', rows)
            return event_id
        size = sum(array.nbytes for array in inputs.values())
        request = event_id, rows, time.time(), arm
        if not self._add(_Waiting(size, request, model, version, mask, inputs, outputs), size):
            self._count('decisions', 'dropped', rows)
        return event_id

    def record_outcomes(self, lines: list[bytes]) -> bool:
        """Takes the lines of some outcomes; never waits. Returns whether it did: all, or none of them."""
        taken = self._add(lines, sum(map(len, lines)))
        if not taken:
            self._count('outcomes', 'dropped', len(lines))
        return taken

    def _add(self, entry: _Waiting | list[bytes], size: int) -> bool:
        if len(self._waiting) >= self._options.max_waiting or self._bytes[0] - self._bytes[1] + size > MAX_BYTES:
            return False
        self._bytes[0] += size
        self._waiting.append(entry)
        return True

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
                self._send([self._waiting.popleft() for _ in range(min(_PIECE, len(self._waiting)))])
            if stopping:
                return

    def _send(self, piece: list[_Waiting | list[bytes]]) -> None:
        requests = [entry for entry in piece if isinstance(entry, _Waiting)]
        lines = [line for entry in piece if isinstance(entry, list) for line in entry]
        counts = {'decisions': sum(entry.request[1] for entry in requests), 'outcomes': len(lines)}
        result = 'logged'
        try:
            groups = itertools.groupby(requests, operator.attrgetter('kind'))
            self._pipe.send(([_packed(list(group)) for _, group in groups], b''.join(lines)))
        except OSError as error:
            logging.warning('the process of the decision log died (%s); it is started again', error)
            result = 'dropped'
            self._close_pipe()
            self._start()
        for kind, number in counts.items():
            if number:
                self._count(kind, result, number)
        self._bytes[1] += sum(entry.size for entry in requests) + sum(map(len, lines))


def _packed(entries: list[_Waiting]) -> Decisions:
    first = entries[0]
    inputs = {name: np.concatenate([each.inputs[name] for each in entries]) for name in first.inputs}
    outputs = {
        name: np.concatenate([each.outputs[name] for each in entries])
        for name in first.outputs
        if name == PROBABILITY or name.startswith('action')
    }
    probabilities = outputs.pop(PROBABILITY).tolist() if PROBABILITY in outputs else None
    mask: Packed = _pack({'mask': inputs[first.mask] != 0}) if first.mask in inputs else {}
    requests = [entry.request for entry in entries]
    return Decisions(requests, first.model, first.version, _pack(inputs), _pack(outputs), probabilities, mask)


def _pack(arrays: Arrays) -> Packed:
    found = {name: array if array.dtype != object else _texts(array) for name, array in arrays.items()}
    return {name: (array.dtype.str, array.shape, array.tobytes()) for name, array in found.items()}


def _texts(array: np.ndarray) -> np.ndarray:
    return np.array([value.decode(errors='replace') for value in array.ravel()], np.str_).reshape(array.shape)


MAX_ID = 200  # characters of an id
_MOST, _LARGEST = 10_000, 1e100  # outcomes of a message; a number, of which sums of squares are finite
_KEYS = {'event_id', 'reward', 'time', 'outcome_id'}
_FORM = 'need {"event_id": "...", "reward": 1.0} each, and if known "time" [s since 1970] and "outcome_id"'


def outcome_lines(message: Mapping[str, Any], now: float) -> list[bytes]:
    """Returns the lines of a message.

    Args:
      message: an outcome, or {"outcomes": [...]}; see docs/your-logs.md.
      now: the time of those that have none.

    Raises:
      InvalidRequest: if it has another form.
    """
    given = message.get('outcomes', [message]) if message.keys() <= {'outcomes'} else [message]
    if not isinstance(given, Sequence) or not 1 <= len(given) <= _MOST:
        raise InvalidRequest(f'got other "outcomes"; need a list of 1 to {_MOST}')
    return [_line(each, i, now) for i, each in enumerate(given)]


def _line(outcome: Any, index: int, now: float) -> bytes:
    if not isinstance(outcome, Mapping) or not outcome.keys() <= _KEYS:
        raise InvalidRequest(f'got the outcome {index} with other keys; {_FORM}')
    for key in ('event_id', 'outcome_id'):
        value = outcome.get(key, '' if key == 'event_id' else 'none')
        if not isinstance(value, str) or not 0 < len(value) <= MAX_ID + 8:  # with the number of its row
            raise InvalidRequest(
                f'got the outcome {index} with another {key}; need text of 1 to {MAX_ID + 8} characters'
            )
        if not value.isprintable():  # half a character, say, which no file can hold
            raise InvalidRequest(f'got the outcome {index} with {key}={value!a}; need printable characters')
    for key in ('reward', 'time'):
        value = outcome.get(key, now if key == 'time' else None)
        if type(value) not in (int, float) or not -_LARGEST < value < _LARGEST:
            need = f'a number between {-_LARGEST:g} and {_LARGEST:g}'
            raise InvalidRequest(f'got the outcome {index} with another {key}; need {need}; {_FORM}')
    line = {
        'event_id': outcome['event_id'],
        'time': float(outcome.get('time', now)),
        'reward': float(outcome['reward']),
    }
    line |= {'outcome_id': outcome['outcome_id']} if 'outcome_id' in outcome else {}
    return json.dumps(line).encode() + b'\n'
