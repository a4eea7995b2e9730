"""DecisionLog: decisions of a server and their outcomes,
on the way to the process that writes `decision_files`.

A request only appends to a queue; a thread sends what waits, decisions of one kind as one, and
seldom: when it takes Python's lock from the requests, these wait for a processor again. SIGKILL
loses what waits: that of `WAKE_SECS`.

The process answers when lines are in their file, and only then they count as logged. Decisions
that could not be written (a full disk, a process that died) stay here and are sent again; the next
process truncates files to what is known to be in them, so that each is written once.

Outcomes are checked as clients report them, and are one line of JSON each. A client waits until its
outcomes are written; if they cannot be, it is told to send them again.
"""

import collections
import itertools
import json
import math
import multiprocessing
import operator
import pathlib
import threading
import time
import types
import uuid
import zlib
from collections.abc import Callable, Mapping, Sequence
from concurrent import futures
from multiprocessing import util
from typing import Any, NamedTuple

import numpy as np

from tflearn.core import background, side_tasks
from tflearn.core.errors import UserOSError
from tflearn.extensions.serving import decision_files
from tflearn.extensions.serving.apprentice import POLICY_ACTION
from tflearn.extensions.serving.decision_files import (
    CLOCK_SECS,
    KINDS,
    DecisionFiles,
    DecisionLogOptions,
    Decisions,
    Packed,
    RequestOf,
    Written,
)
from tflearn.extensions.serving.exploration import PROBABILITY, Arrays
from tflearn.extensions.serving.served_version import InvalidRequest

WAKE_SECS = 0.2
_END_SECS = 30.0  # in which the rest is written
_LAST_SECS = 5.0  # in which a process or a thread ends after it
MAX_BYTES = 256 << 20  # that wait
_PIECE = 1024  # requests that are packed together
_MAX_FAILURES = 3  # in a row while the process handles the same requests, which are then dropped


class _Waiting(NamedTuple):
    """A request that waits; `inputs` and `outputs` are arrays of its rows."""

    size: int
    request: RequestOf
    model: str
    version: int
    mask: str
    inputs: Arrays
    outputs: Arrays
    texts: Arrays
    unknown: Arrays

    @property
    def kind(self) -> tuple[Any, ...]:
        """What those have in common that are packed together."""
        shapes = [(name, array.shape[1:]) for part in (self.inputs, self.outputs) for name, array in part.items()]
        return self.model, self.version, self.mask, shapes


class _Outcomes(NamedTuple):
    """The lines of a message of outcomes; `error` will be why they were not written, or ''."""

    lines: list[bytes]
    error: futures.Future[str]

    @property
    def size(self) -> int:
        return sum(map(len, self.lines))


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
          count: called with 'decisions' or 'outcomes', 'logged', 'dropped' or 'not_chosen', and
            their number.

        Raises:
          ValueError: if the URL cannot be used.
          OSError: if the directory cannot be written to.
        """
        self._options, self._spool, self._count = options, spool, count
        DecisionFiles(options, spool, KINDS[0]).check()  # here, for its errors
        self._waiting: collections.deque[_Waiting] = collections.deque()
        self._outcomes: collections.deque[_Outcomes] = collections.deque()
        self._piece: list[_Waiting] = []  # on its way to the process, until it is written
        self._bytes = [0, 0]  # that came, and that were settled: each is written by one thread
        # Once: its system call would give up Python's lock in each request.
        prefix = uuid.uuid4().hex[:16]
        self._ids = (f'{prefix}-{number}' for number in itertools.count())
        self._token, self._sizes = uuid.uuid4().hex[:8], dict[str, tuple[str, int]]()
        self._failures = 0  # in a row, with the same piece
        self._stop, self._wake = threading.Event(), threading.Event()
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
        is_deferred: bool = False,
        texts: Arrays = types.MappingProxyType({}),
        unknown: Arrays = types.MappingProxyType({}),
        cluster: str = '',
    ) -> str:
        """Logs the decisions of one request; never waits.
        Like `record_outcomes` it is called on one thread.

        Args:
          model: the policy's name.
          version: its version.
          inputs: arrays [B, ...] by name, which nobody changes.
          outputs: arrays [B, ...] as `Chooser` returns them.
          mask: the input that says which actions were legal, '' for none.
          event_id: the request's id, if the caller gave one.
          arm: the caller's arm of an experiment, else the version's state.
          is_deferred: whether the decisions count only once an outcome says that they were shown.
          texts: see `ServedVersion.texts`.
          unknown: of inputs that `texts` has, the texts that it lacks, in UTF-8; None elsewhere.
          cluster: whose decisions they are, if the caller said so.

        Returns:
          The request's id, see `decision_files.ids`.
        """
        event_id = event_id or next(self._ids)
        rows = len(next(iter(outputs.values())))
        if self._options.share < 1 and zlib.crc32(event_id.encode()) >= self._options.share * 2**32:
            self._count('decisions', 'not_chosen', rows)
            return event_id
        size = sum(array.nbytes for array in inputs.values())
        size += sum(len(text) for array in unknown.values() for text in array.flat if text is not None)
        request = event_id, rows, time.time(), arm, is_deferred, cluster
        if self._takes(size):
            self._waiting.append(_Waiting(size, request, model, version, mask, inputs, outputs, texts, unknown))
        else:
            self._count('decisions', 'dropped', rows)
        return event_id

    def record_outcomes(self, lines: list[bytes]) -> futures.Future[str] | None:
        """Takes the lines of some outcomes, all or none of them; never waits.

        Returns:
          What will be why they could not be written, '' if they are; None if too much waits. A
          future that is cancelled before they are sent withdraws them.
        """
        outcomes = _Outcomes(lines, futures.Future())
        if not self._takes(outcomes.size):
            self._count('outcomes', 'dropped', len(lines))
            return None
        self._outcomes.append(outcomes)
        self._wake.set()  # a client waits for it
        return outcomes.error

    def _takes(self, size: int) -> bool:
        is_full = len(self._waiting) + len(self._outcomes) >= self._options.max_waiting
        if is_full or self._bytes[0] - self._bytes[1] + size > MAX_BYTES:
            return False
        self._bytes[0] += size
        return True

    def close(self) -> None:
        """Sends what waits, and waits until it is written: half a minute, if it cannot be."""
        self._stop.set()
        self._wake.set()
        self._thread.join(_END_SECS + _LAST_SECS)
        self._close_pipe()
        self._process.join(_END_SECS)

    def _start(self) -> None:
        context = multiprocessing.get_context('spawn')  # a fork would copy TensorFlow's locks
        theirs, ours = context.Pipe()
        sizes = dict(self._sizes.values())
        process = context.Process(
            target=decision_files.write,
            args=(self._options, self._spool, self._token, sizes, theirs),
            name='decision_log',
            daemon=True,
        )
        try:
            process.start()
        except BaseException:  # without handles or memory
            ours.close()
            raise
        finally:
            theirs.close()
        self._process, self._pipe = process, ours
        # It also runs at exit, before multiprocessing joins the process.
        self._close_pipe = util.Finalize(self, ours.close, exitpriority=100)

    def _send_all(self) -> None:
        due, end = time.monotonic() + WAKE_SECS, math.inf
        while True:
            self._wake.wait(max(0.0, due - time.monotonic()))
            self._wake.clear()
            is_stopping, now = self._stop.is_set(), time.monotonic()
            if is_stopping:
                end = min(end, now + _END_SECS)
            if is_stopping or now >= due:
                due = now + WAKE_SECS
                self._send_decisions()
            if self._outcomes:  # they wake the thread more often, which must not make pieces small
                self._send([])
            if is_stopping and (not self._piece or now > end):
                self._give_up()
                return

    def _send_decisions(self) -> None:
        """Sends those that wait by now, until they cannot be written."""
        for _ in range(bool(self._piece) + -(-len(self._waiting) // _PIECE)):
            if not self._piece:
                count = min(_PIECE, len(self._waiting))
                self._piece = [self._waiting.popleft() for _ in range(count)]
            written = self._send(self._piece)
            if written.again and self._failures < _MAX_FAILURES:
                return
            self._settle('dropped' if written.error else 'logged')

    def _send(self, piece: list[_Waiting]) -> Written:
        """Sends a piece, and all outcomes; returns what became of the piece."""
        found = [self._outcomes.popleft() for _ in range(len(self._outcomes))]
        self._bytes[1] += sum(each.size for each in found)
        outcomes = [each for each in found if each.error.set_running_or_notify_cancel()]
        lines = b''.join(line for each in outcomes for line in each.lines)
        decisions = reported = Written('its process does not run', again=True)
        with side_tasks.guarded(f'write the log of decisions in {self._options.directory}'):
            decisions, reported = self._exchange(piece, lines)
            if error := decisions.error or reported.error:
                raise UserOSError(error)
        for each in outcomes:
            self._count('outcomes', 'dropped' if reported.error else 'logged', len(each.lines))
            each.error.set_result(reported.error)
        return decisions

    def _exchange(self, piece: list[_Waiting], lines: bytes) -> list[Written]:
        """Sends a piece and lines of outcomes; returns what became of them."""
        if not self._process.is_alive():
            self._close_pipe()
            self._start()
        self._failures += bool(piece)  # from here on it may be because of these decisions
        groups = itertools.groupby(piece, operator.attrgetter('kind'))
        message = [_packed(list(group)) for _, group in groups], lines
        try:
            self._pipe.send(message)
            answer: list[Written] = self._pipe.recv()
        except Exception as error:
            self._close_pipe()
            self._process.join(_LAST_SECS)  # before another one looks at its files
            what = f'the process that writes it died ({type(error).__name__})'
            raise UserOSError(what) from error
        if piece:
            self._failures = 0
        # Another process truncates files that this one leaves to what is known to be in them.
        for kind, each in zip(KINDS, answer, strict=True):
            if each.file:
                self._sizes[kind] = each.file, each.size
        return answer

    def _settle(self, result: str) -> None:
        """Counts the decisions of the piece, which no longer waits."""
        if number := sum(entry.request[1] for entry in self._piece):
            self._count('decisions', result, number)
        self._bytes[1] += sum(entry.size for entry in self._piece)
        self._piece, self._failures = [], 0

    def _give_up(self) -> None:
        """Drops what could not be written in time."""
        self._piece += self._waiting
        self._settle('dropped')
        for each in self._outcomes:
            if each.error.set_running_or_notify_cancel():
                self._count('outcomes', 'dropped', len(each.lines))
                each.error.set_result('the server ends')


def _packed(entries: list[_Waiting]) -> Decisions:
    first = entries[0]
    inputs = {name: np.concatenate([each.inputs[name] for each in entries]) for name in first.inputs}
    outputs = {
        name: np.concatenate([each.outputs[name] for each in entries])
        for name in first.outputs
        if name in (PROBABILITY, POLICY_ACTION) or name.startswith('action')
    }
    probabilities = outputs.pop(PROBABILITY).tolist() if PROBABILITY in outputs else None
    mask: Packed = _pack({'mask': inputs[first.mask] != 0}) if first.mask in inputs else {}
    requests = [entry.request for entry in entries]
    actions = [text.decode() for text in first.texts.get('action', ())] if mask else []
    # Texts, which mean the same to whoever reads the log: numbers do so with the policy's vocabulary alone.
    for name in first.texts.keys() & inputs.keys():
        known = [_texts_of(each.inputs[name], first.texts[name], each.unknown.get(name)) for each in entries]
        inputs[name] = np.concatenate(known)
    if 'action' in first.texts:
        outputs = {name: _texts_of(array, first.texts['action']) for name, array in outputs.items()}
    return Decisions(requests, first.model, first.version, _pack(inputs), _pack(outputs), probabilities, mask, actions)


def _texts_of(numbers: np.ndarray, texts: np.ndarray, unknown: np.ndarray | None = None) -> np.ndarray:
    is_known = (numbers >= 0) & (numbers < len(texts))
    found = np.where(is_known, texts[np.where(is_known, numbers, 0)], b'').astype(np.object_)
    return found if unknown is None else np.where(unknown.astype(bool), unknown, found)


def _pack(arrays: Arrays) -> Packed:
    found = {name: array if array.dtype != object else _texts(array) for name, array in arrays.items()}
    return {name: (array.dtype.str, array.shape, array.tobytes()) for name, array in found.items()}


def _texts(array: np.ndarray) -> np.ndarray:
    return np.array([value.decode(errors='replace') for value in array.ravel()], np.str_).reshape(array.shape)


MAX_ID = 200  # characters of an id
# Outcomes of a message; a number, which data sets have as float32.
_MOST, _LARGEST = 10_000, 3.4e38
_KEYS = {'event_id', 'reward', 'time', 'outcome_id', 'activated'}
_FORM = (
    'need {"event_id": "...", "reward": 1.0} or {"event_id": "...", "activated": true} each, and if known "time" '
    '[s since 1970] and "outcome_id"'
)


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
    if not isinstance(outcome, Mapping) or (unknown := outcome.keys() - _KEYS):
        got = f'{min(unknown)!a:.80}' if isinstance(outcome, Mapping) else type(outcome).__name__
        raise InvalidRequest(f'got the outcome {index} with other keys; {_FORM}; got {got}')
    for key in ('event_id', 'outcome_id'):
        value = outcome.get(key, '' if key == 'event_id' else 'none')
        # With the number of its row.
        if not isinstance(value, str) or not 0 < len(value) <= MAX_ID + 8:
            raise InvalidRequest(
                f'got the outcome {index} with another {key}; need text of 1 to {MAX_ID + 8} characters'
            )
        if not value.isprintable():  # half a character, say, which no file can hold
            raise InvalidRequest(f'got the outcome {index} with {key}={value!a}; need printable characters')
    activates = outcome.get('activated', False)
    if type(activates) is not bool:
        raise InvalidRequest(f'got the outcome {index} with another activated; need true or false; {_FORM}')
    for key in ('reward', 'time'):
        value = outcome.get(key, now if key == 'time' else 0 if activates else None)
        if type(value) not in (int, float) or not -_LARGEST < value < _LARGEST:
            need = f'a number between {-_LARGEST:g} and {_LARGEST:g}'
            raise InvalidRequest(f'got the outcome {index} with another {key}; need {need}; {_FORM}')
    at = float(outcome.get('time', now))
    if at > now + CLOCK_SECS:
        what = ', which are milliseconds' if at > 100 * now else ''
        raise InvalidRequest(
            f'got the outcome {index} with time={at!r}{what}; need seconds since 1970, at most {CLOCK_SECS:g} more '
            f'than {now:.0f}, the clock of the server'
        )
    line = {'event_id': outcome['event_id'], 'time': at}
    line |= {'reward': float(outcome['reward'])} if 'reward' in outcome else {}
    line |= {'activated': 1} if activates else {}
    line |= {'outcome_id': outcome['outcome_id']} if 'outcome_id' in outcome else {}
    return json.dumps(line).encode() + b'\n'
