"""A client of gRPC that never ends its messages: HTTP/2 by hand, as gRPC's own clients have no such thing."""

import contextlib
import socket
import struct
import time
from collections.abc import Iterator

_DATA, _HEADERS, _RESET, _SETTINGS, _PING, _GO_AWAY, _WINDOW = 0, 1, 3, 4, 6, 7, 8
_ACK, _END_STREAM, _END_HEADERS = 1, 1, 4
_INITIAL_WINDOW, _LARGEST_FRAME = 65_535, 16_384
_OPENED_EVERY_SECS = 0.05


class Streams:
    """One connection with so many streams, each of which sends all of a message but its last byte."""

    def __init__(self, address: tuple[str, int], streams: int, size: int, method: str):
        """Connects."""
        self._wanted, self._size, self._method = streams, size, method
        self._socket = socket.create_connection(address, 5.0)
        self._socket.setblocking(False)
        self._unsent = bytearray(b'PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n' + _frame(_SETTINGS, 0, 0))
        self._received = bytearray()
        self._window, self._initial, self._next = _INITIAL_WINDOW, _INITIAL_WINDOW, 1
        self._left: dict[int, int] = {}  # bytes of each stream
        self._windows: dict[int, int] = {}
        self._opened_at = 0.0
        self.ended = False

    def turn(self) -> None:
        """Sends and receives what can be sent and received now."""
        now = time.monotonic()
        if len(self._left) < self._wanted and now - self._opened_at > _OPENED_EVERY_SECS:
            self._opened_at = now
            while len(self._left) < self._wanted:
                self._open()
        for stream, left in list(self._left.items()):
            while left and len(self._unsent) < 1 << 20:
                count = min(left, self._window, self._windows[stream], _LARGEST_FRAME)
                if count <= 0:
                    break
                self._unsent += _frame(_DATA, 0, stream, bytes(count))
                self._window -= count
                self._windows[stream] -= count
                left = self._left[stream] = left - count
        try:
            with contextlib.suppress(BlockingIOError):
                del self._unsent[: self._socket.send(self._unsent[: 1 << 18])]
            with contextlib.suppress(BlockingIOError):
                data = self._socket.recv(1 << 18)
                self.ended = self.ended or not data
                self._received += data
        except OSError:
            self.ended = True
        for kind, flags, stream, payload in self._frames():
            self._take(kind, flags, stream, payload)

    def close(self) -> None:
        """Closes the connection."""
        self._socket.close()

    def _open(self) -> None:
        stream, self._next = self._next, self._next + 2
        literal = lambda name, value: b'\x00' + _text(name) + _text(value)  # noqa: E731
        head = b'\x83\x86\x04' + _text(self._method) + b'\x01' + _text('localhost')  # POST, http, the path, authority
        head += literal('te', 'trailers') + literal('content-type', 'application/grpc')
        prefix = struct.pack('>BI', 0, self._size)
        self._unsent += _frame(_HEADERS, _END_HEADERS, stream, head) + _frame(_DATA, 0, stream, prefix)
        self._window -= len(prefix)
        self._left[stream], self._windows[stream] = self._size - 1, self._initial - len(prefix)

    def _frames(self) -> Iterator[tuple[int, int, int, bytes]]:
        while len(self._received) >= 9:
            length = int.from_bytes(self._received[:3], 'big')
            if len(self._received) < 9 + length:
                return
            kind, flags = self._received[3], self._received[4]
            stream = int.from_bytes(self._received[5:9], 'big')
            payload = bytes(self._received[9 : 9 + length])
            del self._received[: 9 + length]
            yield kind, flags, stream, payload

    def _take(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if kind == _SETTINGS and not flags & _ACK:
            for at in range(0, len(payload), 6):
                name, value = struct.unpack('>HI', payload[at : at + 6])
                if name == 4:
                    self._windows = {each: left + value - self._initial for each, left in self._windows.items()}
                    self._initial = value
                if name == 3:
                    self._wanted = min(self._wanted, value)
            self._unsent += _frame(_SETTINGS, _ACK, 0)
        elif kind == _PING and not flags & _ACK:
            self._unsent += _frame(_PING, _ACK, 0, payload)
        elif kind == _WINDOW:
            more = int.from_bytes(payload, 'big')
            if not stream:
                self._window += more
            elif stream in self._windows:
                self._windows[stream] += more
        elif kind == _RESET or (kind == _HEADERS and flags & _END_STREAM):
            self._left.pop(stream, None)
            self._windows.pop(stream, None)
        elif kind == _GO_AWAY:
            self.ended = True


def _text(value: str) -> bytes:
    return bytes([len(value)]) + value.encode()


def _frame(kind: int, flags: int, stream: int, payload: bytes = b'') -> bytes:
    return len(payload).to_bytes(3, 'big') + struct.pack('>BBI', kind, flags, stream) + payload
