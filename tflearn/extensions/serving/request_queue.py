"""Requests on an event loop, computed by a few threads.
Requests that wait at the same time share a call.

A thread for each request would spend most of its time on waking up.
"""

import asyncio
import dataclasses
from collections.abc import Mapping, Sequence
from concurrent import futures

import numpy as np
import tensorflow as tf

from tflearn.extensions.serving.served_version import Decisions, Signature
from tflearn.net.grpc_server import GrpcRefusal

Arrays = Mapping[str, np.ndarray]
Computed = Signature | Decisions


@dataclasses.dataclass(eq=False)
class _Request:
    inputs: Arrays
    rows: int
    answer: asyncio.Future[Arrays]


class _SignatureQueue:
    """The waiting requests of a signature in order of their arrival, and their number of rows.

    Attributes:
      timer: ends the wait of an incomplete batch for more requests.
      has_waited: whether it has waited.
    """

    def __init__(self) -> None:
        self.rows = 0
        self.timer: asyncio.TimerHandle | None = None
        self.has_waited = False
        self._requests: dict[_Request, None] = {}

    def add(self, request: _Request) -> None:
        self._requests[request] = None
        self.rows += request.rows

    def remove(self, request: _Request) -> None:
        """Removes a request if it still waits."""
        if request in self._requests:
            del self._requests[request]
            self.rows -= request.rows

    def take(self, max_rows: int) -> list[_Request]:
        """Takes the requests of one call, at least one, and drops cancelled ones."""
        if self.timer:
            self.timer.cancel()
        self.timer, self.has_waited = None, False
        taken: list[_Request] = []
        rows = 0
        for request in list(self._requests):
            cancelled = request.answer.done()
            if not cancelled and taken and rows + request.rows > max_rows:
                break
            self.remove(request)
            if not cancelled:
                taken.append(request)
                rows += request.rows
        return taken


class RequestQueue:
    """Computes requests in order of their arrival; those of one signature share calls."""

    def __init__(self, num_threads: int):
        self._pool = futures.ThreadPoolExecutor(num_threads, 'policy_server')
        self._idle = num_threads
        self._scheduled = False  # whether `_start` will run
        self._waiting: dict[Computed, _SignatureQueue] = {}

    async def run(self, signature: Computed, inputs: Arrays) -> Arrays:
        """Computes the outputs, by name.

        A request whose task is cancelled while it waits is not computed, and no longer counts as
        waiting.

        Args:
          signature: the signature to compute.
          inputs: the arguments of `signature.run`.

        Raises:
          GrpcRefusal: if too many requests wait.
          InvalidRequest: as `signature.run`.
          tf.errors.InvalidArgumentError: if the policy cannot compute these values.
        """
        queue = self._waiting.get(signature) or _SignatureQueue()
        rows = next(iter(inputs.values())).shape[0] if signature.batched else 1
        self.check_room(signature, rows)
        request = _Request(inputs, rows, asyncio.get_running_loop().create_future())
        queue.add(request)
        self._waiting[signature] = queue
        if not self._scheduled:  # after all requests that have arrived by now
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._start)
        try:
            return await request.answer
        finally:
            queue.remove(request)

    def check_room(self, signature: Computed, rows: int) -> None:
        """Checks that this number of further rows may wait. Raises GrpcRefusal if not."""
        waiting = self._waiting[signature].rows if signature in self._waiting else 0
        if waiting + rows > signature.max_waiting_rows:
            error = f'got {rows} rows, and {waiting} wait already; send less at a time, or try again later'
            raise GrpcRefusal('RESOURCE_EXHAUSTED', error)

    def close(self) -> None:
        """Starts no more calls."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _start(self) -> None:
        self._scheduled = False
        loop = asyncio.get_running_loop()
        while self._idle and (signature := next(filter(self._is_due, self._waiting), None)):
            queue = self._waiting.pop(signature)
            requests = queue.take(signature.rows_per_call)
            if queue.rows:
                self._waiting[signature] = queue  # behind the other signatures
            if requests:
                self._idle -= 1
                self._pool.submit(self._compute, loop, signature, requests)
        for signature, queue in self._waiting.items():
            if signature.wait_secs and not queue.timer:
                queue.timer = loop.call_later(signature.wait_secs, self._end_wait, queue)

    def _is_due(self, signature: Computed) -> bool:
        """Returns whether the signature's requests wait for no others."""
        queue = self._waiting[signature]
        is_full = queue.rows >= signature.rows_per_call
        return is_full or queue.has_waited or not (signature.wait_secs and queue.rows)

    def _end_wait(self, queue: _SignatureQueue) -> None:
        queue.has_waited = True
        self._start()

    def _compute(self, loop: asyncio.AbstractEventLoop, signature: Computed, requests: list[_Request]) -> None:
        loop.call_soon_threadsafe(self._finish, requests, _results(signature, requests))

    def _finish(self, requests: list[_Request], results: Sequence[Arrays | Exception]) -> None:
        self._idle += 1
        for request, result in zip(requests, results, strict=True):
            if request.answer.done():  # cancelled
                continue
            if isinstance(result, Exception):
                request.answer.set_exception(result)
            else:
                request.answer.set_result(result)
        self._start()


def _results(signature: Computed, requests: list[_Request]) -> Sequence[Arrays | Exception]:
    try:
        if len(requests) == 1:
            return [signature.run(requests[0].inputs)]
        names = requests[0].inputs
        outputs = signature.run({name: np.concatenate([each.inputs[name] for each in requests]) for name in names})
        ends = np.cumsum([request.rows for request in requests]).tolist()
        return [
            {name: output[end - request.rows : end] for name, output in outputs.items()}
            for end, request in zip(ends, requests, strict=True)
        ]
    except tf.errors.InvalidArgumentError:  # caused by one request, which must not fail the others
        return [_separately(signature, request.inputs) for request in requests]
    except Exception as error:
        return [error] * len(requests)


def _separately(signature: Computed, inputs: Arrays) -> Arrays | Exception:
    try:
        return signature.run(inputs)
    except Exception as error:
        return error
