"""Requests at the edge of HTTP/1.1, and what each server of ours answers: does a second request hide in the first?

    python benchmarks/edge_requests.py HOST:PORT [PATH]

If a proxy and a server disagree where a request ends, a client can smuggle another one past the proxy's rules. RFC
9112 names the forms; a server that refuses them, or closes the connection after one answer, cannot be used so.
"""

import contextlib
import dataclasses
import json
import re
import socket
import sys
from collections.abc import Iterator

_SMUGGLED = b'GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n'
_STATUS = re.compile(rb'HTTP/1\.[01] (\d{3}) ')
_QUIET_SECS = 1.0  # after which nothing more is expected
_LINE_BYTES = 1 << 20


@dataclasses.dataclass(frozen=True)
class EdgeRequest:
    """A request, and what may be answered.

    Attributes:
      name: what it tries.
      data: its bytes; {path} stands for a path that the server answers.
      allowed: the statuses of the answers, one regular expression for all of them, such as '200 200'.
    """

    name: str
    data: bytes
    allowed: str

    def bytes_for(self, path: str) -> bytes:
        """Returns what is sent to a server that answers GET of `path`."""
        return self.data.replace(b'{path}', path.encode())


def _with_body(headers: bytes, body: bytes) -> bytes:
    return b'POST {path} HTTP/1.1\r\nHost: a\r\n' + headers + b'\r\n' + body


_GET = b'GET {path} HTTP/1.1\r\nHost: a\r\n'
_LENGTH = b'Content-Length: %d\r\n'
_CHUNKED = b'Transfer-Encoding: chunked\r\n'
_LAST_CHUNK = b'0\r\n\r\n'
_REFUSED = r'[45]\d\d'
# No answer is a refusal too: some servers close the connection.
_NO_SECOND = rf'({_REFUSED})?'
REQUESTS = (
    EdgeRequest(
        'Content-Length with Transfer-Encoding',
        _with_body(_LENGTH % len(_LAST_CHUNK + _SMUGGLED) + _CHUNKED, _LAST_CHUNK + _SMUGGLED),
        _NO_SECOND,
    ),
    EdgeRequest(
        'Transfer-Encoding with a short Content-Length',
        _with_body(_CHUNKED + _LENGTH % 4, b'24\r\n' + _SMUGGLED + _LAST_CHUNK),
        _NO_SECOND,
    ),
    EdgeRequest(
        'two Content-Length',
        _with_body(_LENGTH % 0 + _LENGTH % len(_SMUGGLED), _SMUGGLED),
        _NO_SECOND,
    ),
    EdgeRequest(
        'two Content-Length of a GET',
        _GET + _LENGTH % 0 + _LENGTH % len(_SMUGGLED) + b'\r\n' + _SMUGGLED,
        _NO_SECOND,
    ),
    EdgeRequest('a folded header', _GET + b'X-Fold: a\r\n b\r\n\r\n', rf'200|{_REFUSED}'),
    EdgeRequest(
        'a folded Content-Length',
        _with_body(b'X-Fold: a\r\n' + b' ' + _LENGTH % 0 + _LENGTH % len(_SMUGGLED), _SMUGGLED),
        _NO_SECOND,
    ),
    EdgeRequest(
        'a space before the colon',
        _with_body(b'Content-Length : %d\r\n' % len(_SMUGGLED), _SMUGGLED),
        _NO_SECOND,
    ),
    EdgeRequest('a chunk extension', _with_body(_CHUNKED, b'1;a=b\r\nx\r\n' + _LAST_CHUNK), _NO_SECOND),
    EdgeRequest(
        'a line feed in a chunk extension',
        _with_body(_CHUNKED, b'1;a\nxx\r\n24\r\n0\r\n\r\n' + _SMUGGLED + _LAST_CHUNK),
        _NO_SECOND,
    ),
    EdgeRequest('a request line of 1 MB', b'GET /' + b'a' * _LINE_BYTES + b' HTTP/1.1\r\nHost: a\r\n\r\n', _NO_SECOND),
    EdgeRequest('a header of 1 MB', _GET + b'X-Long: ' + b'a' * _LINE_BYTES + b'\r\n\r\n', _NO_SECOND),
    EdgeRequest('10,000 headers', _GET + b'X-A: b\r\n' * 10_000 + b'\r\n', _NO_SECOND),
    EdgeRequest(
        'Expect: 100-continue without the body',
        _with_body(_LENGTH % 4 + b'Expect: 100-continue\r\n', b''),
        rf'(100 ?)?({_REFUSED})?',
    ),
    EdgeRequest('two requests at once', (_GET + b'\r\n') * 2, '200 200'),
    EdgeRequest('HEAD', b'HEAD {path} HTTP/1.1\r\nHost: a\r\n\r\n', rf'200|{_REFUSED}'),
    EdgeRequest('OPTIONS', b'OPTIONS {path} HTTP/1.1\r\nHost: a\r\n\r\n', _REFUSED),
    EdgeRequest('OPTIONS *', b'OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n', _REFUSED),
    EdgeRequest('no Host', b'GET {path} HTTP/1.1\r\n\r\n', rf'200|{_REFUSED}'),
    EdgeRequest('a method that is none', b'SMUGGLE {path} HTTP/1.1\r\nHost: a\r\n\r\n', _NO_SECOND),
)


def answers(address: tuple[str, int], data: bytes) -> str:
    """Sends the bytes over a connection of its own; returns the statuses of all answers, such as '200 404'."""
    received = bytearray()
    with contextlib.suppress(OSError), socket.create_connection(address, 10.0) as made:
        made.settimeout(_QUIET_SECS)
        # A server may answer, and close, before it has taken all of it.
        with contextlib.suppress(OSError):
            made.sendall(data)
        while more := made.recv(1 << 16):
            received += more
    return ' '.join(status.decode() for status in _STATUS.findall(bytes(received)))


def results(name: str, address: tuple[str, int], path: str) -> Iterator[dict[str, object]]:
    """Returns a row for each request: what was answered, and whether that may be."""
    for request in REQUESTS:
        statuses = answers(address, request.bytes_for(path))
        stood = re.fullmatch(request.allowed, statuses.strip()) is not None
        yield {'server': name, 'request': request.name, 'answered': statuses or 'closed', 'stood': stood}


def main() -> int:
    """Asks the server that the arguments name, and prints a line for each request."""
    host, _, port = sys.argv[1].rpartition(':')
    rows = list(results(sys.argv[1], (host, int(port)), sys.argv[2] if len(sys.argv) > 2 else '/'))
    for row in rows:
        print(json.dumps(row))
    return 0 if all(row['stood'] for row in rows) else 1


if __name__ == '__main__':
    sys.exit(main())
