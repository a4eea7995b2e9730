"""Bounds the memory of requests that have arrived in part, and how long they may take."""

import asyncio
from typing import Any

_AT_ONCE_SECS = 0.02  # a request of a few kB is there with its head
_WHOLE_SECS = 30.0
_MAX_BYTES = 16 << 20


class Overloaded(RuntimeError):
    """Too many requests wait; the client gets RESOURCE_EXHAUSTED and this message."""


class NoMessage(RuntimeError):
    """The client ended the request, or its connection, without a message; it gets INVALID_ARGUMENT."""


class _Request:
    """A request that has not arrived as a whole."""

    def __init__(self, task: Any, context: Any):
        self.task, self.context, self.ended = task, context, False

    def end(self) -> None:
        """Ends it, unless it has arrived."""
        self.ended = True
        self.task.cancel()


class PartialRequests:
    """Reads requests of gRPC; used on one event loop.

    gRPC receives at most 64 kB of a request before it is read here, and all of it once reading has begun. So at most a
    few may take longer than a moment at the same time: of more, the connection with most of them loses its oldest one.
    """

    def __init__(self, max_request_bytes: int):
        self._most = max(2, _MAX_BYTES // max_request_bytes)
        self._slow: dict[_Request, asyncio.TimerHandle] = {}

    async def read(self, context: Any) -> bytes:
        """Returns the bytes of a request. Raises Overloaded if it takes too long, NoMessage if there is none."""
        task: Any = asyncio.current_task()
        request = _Request(task, context)
        timer = asyncio.get_running_loop().call_later(_AT_ONCE_SECS, self._is_slow, request)
        try:
            data = await context.read()
            if not isinstance(data, bytes):
                raise NoMessage('got no message; need one')
            return data
        except asyncio.CancelledError:
            if not request.ended:
                raise
            task.uncancel()
            raise Overloaded('got a part of a request; send all of it at once, or try again later') from None
        finally:
            timer.cancel()
            if late := self._slow.pop(request, None):
                late.cancel()

    def _is_slow(self, request: _Request) -> None:
        self._slow[request] = asyncio.get_running_loop().call_later(_WHOLE_SECS, request.end)
        if len(self._slow) > self._most:
            peers = [each.context.peer() for each in self._slow]
            most = max(peers, key=peers.count)
            oldest = next(each for each, peer in zip(self._slow, peers, strict=True) if peer == most)
            self._slow.pop(oldest).cancel()
            oldest.end()
