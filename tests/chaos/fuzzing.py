"""Malformed messages for a port, and what the process behind it uses before and after them.

    python -m tests.chaos.fuzzing --address=localhost:8600 --pid=1234 --protocol=http --messages=10000

Ends with status 1 if the process has ended, or uses more memory, threads or file handles than before. The seed is
`--seed`. It works for any port: 'http2' is for gRPC, 'tls' begins as a TLS client does, 'noise' is none of these.
"""

import argparse
import contextlib
import dataclasses
import json
import os
import pathlib
import random
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable

_ANSWER_SECS = 0.5
_MOST_BYTES = 1 << 20  # of an answer
_SETTLE_SECS = 60.0
_PAUSE_SECS = 2.0  # for what goes on after the last answer, such as the end of the process
WARM_UP = 1000  # messages
MAX_GROWTH_MB = 30.0
_SPARE = 3  # threads and handles that come and go

Message = Callable[[random.Random], bytes]

_PATHS = (
    b'/', b'/v1/specs', b'/v1/episodes', b'/v1/episodes/x/steps', b'/v1/episodes/', b'/metrics', b'/metrics?name[]=x',
    b'/v1/models/greedy_policy:predict', b'/v1/models/greedy_policy/metadata', b'/v1/models/a/labels/b',
    b'/../../etc/passwd', b'/%00', b'*', b'', b'http://a:b/c', b'/' + b'a' * 70_000, b'/\xff\xfe', b'//', b'/?' * 99,
)  # fmt: skip
_METHODS = (
    b'GET', b'POST', b'DELETE', b'PUT', b'HEAD', b'OPTIONS', b'CONNECT', b'get', b'', b'A' * 999, b'\0', b'GET GET',
)  # fmt: skip
_VERSIONS = (b'HTTP/1.1', b'HTTP/1.0', b'HTTP/9.9', b'HTTP/', b'', b'HTTP/1.1.1', b'http/1.1', b'HTTP/-1.1')
_HEADERS = (
    b'Transfer-Encoding: chunked', b'Expect: 100-continue', b'Content-Length: 3', b'X' * 70_000, b'Connection: close',
    b'\0: \0', b': x', b'A:' + b'b' * 9000, b'\xff: \xfe', *[b'X: y'] * 150,
)  # fmt: skip
_LENGTHS = (b'-1', b'0', b'1', b'10', b'99999999999', b'9' * 5000, b'x', b'', b'1, 2', b'0x10', b'+3', b'\xb2')
_JSON = (
    '0', '1', '-1', '[]', '{}', '[0, 0]', '[0.5, 1e38]', 'null', 'true', '"a"', 'NaN', 'Infinity', '-1e999', '1e400',
    '[[0, 0]]', '[0]', '[0, "a"]', '[0, null]', '[0, NaN]', '{"a": [0, 0]}', '"\\ud800"', '9' * 400, '9' * 5000,
    '[' * 3000, '[' * 3000 + ']' * 3000, '[1, 2', '"' + 'a' * 5000 + '"', '[' + '0, ' * 9999 + '0]', '-0', '1e-400',
)  # fmt: skip


def http(rng: random.Random) -> bytes:
    """A request of HTTP/1.1, with a body of JSON, in which something is wrong."""
    if rng.random() < 0.1:
        return noise(rng)
    keys = ('observation', 'reward', 'terminated', 'truncated', 'step', 'episode', '', 'ü', 'instances')
    pairs = ', '.join(f'"{rng.choice(keys)}": {rng.choice(_JSON)}' for _ in range(rng.choice([0, 1, 1, 2, 3, 5])))
    body = rng.choice([f'{{{pairs}}}', f'{{{pairs}}}', f'{{{pairs}}}', rng.choice(_JSON)]).encode()
    length = str(len(body)).encode() if rng.random() < 0.7 else rng.choice(_LENGTHS)
    headers = [b'Host: a', b'Content-Length: ' + length]
    headers += rng.sample(_HEADERS, rng.choice([0, 0, 1, 2, 150]))
    parts = rng.choice([b'POST', rng.choice(_METHODS)]), rng.choice(_PATHS), rng.choice([b'HTTP/1.1', *_VERSIONS])
    line = b' '.join(parts)
    request = rng.choice([b'\r\n', b'\r\n', b'\n']).join([line, *headers, b'', body])
    return damaged(rng, request * rng.choice([1, 1, 1, 3]))


def http2(rng: random.Random) -> bytes:
    """The beginning of a connection of HTTP/2, as gRPC has it, with frames in which something is wrong."""
    parts = [b'PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n' if rng.random() < 0.9 else rng.randbytes(24)]
    for _ in range(rng.randrange(1, 8)):
        payload = rng.randbytes(rng.choice([0, 1, 4, 5, 6, 8, 40, 20_000]))
        length = rng.choice([len(payload), len(payload), 0, 1 << 23, (1 << 24) - 1])
        kind, flags = rng.choice([*range(10), 77, 255]), rng.randrange(256)
        stream = rng.choice([0, 1, 1, 3, 2, (1 << 31) - 1, 1 << 31])
        parts.append(struct.pack('>I', length)[1:] + bytes([kind, flags]) + struct.pack('>I', stream) + payload)
    return damaged(rng, b''.join(parts))


def tls(rng: random.Random) -> bytes:
    """The beginning of a handshake of TLS, in which something is wrong."""
    hello = b'\x03\x03' + rng.randbytes(32) + b'\0' + b'\0\x02\x13\x01' + b'\x01\0' + rng.randbytes(rng.randrange(99))
    handshake = b'\x01' + struct.pack('>I', rng.choice([len(hello), 0, 1 << 23]))[1:] + hello
    kind, version = rng.choice([20, 21, 22, 22, 22, 23, 99]), rng.choice([b'\x03\x01', b'\x03\x03', b'\0\0'])
    record = bytes([kind]) + version + struct.pack('>H', rng.choice([len(handshake), 0, 65_535])) + handshake
    return damaged(rng, record * rng.choice([1, 1, 5]))


def noise(rng: random.Random) -> bytes:
    """Random bytes."""
    return rng.randbytes(rng.choice([0, 1, 9, 99, 9999])) + rng.choice([b'', b'\r\n', b'\r\n\r\n', b'\0'])


def damaged(rng: random.Random, data: bytes) -> bytes:
    """Returns bytes of which some are changed, or the last ones missing, half of the time."""
    if rng.random() < 0.5 or not data:
        return data
    changed = bytearray(data)
    for _ in range(rng.randrange(4)):
        changed[rng.randrange(len(changed))] = rng.randrange(256)
    return bytes(changed[: rng.randrange(len(changed))] if rng.random() < 0.3 else changed)


PROTOCOLS: dict[str, Message] = {'http': http, 'http2': http2, 'tls': tls, 'noise': noise}


def send(address: str, data: bytes) -> bytes:
    """Sends bytes by a connection of its own; returns the answer as far as it comes in time."""
    host, _, port = address.rpartition(':')
    answer = b''
    with contextlib.suppress(OSError), socket.create_connection((host, int(port)), 30.0) as connection:
        connection.settimeout(_ANSWER_SECS)
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        while len(answer) < _MOST_BYTES and (part := connection.recv(1 << 16)):
            answer += part
    return answer


def fuzz(address: str, message: Message, count: int, seed: object) -> int:
    """Sends malformed messages; returns how many were answered."""
    rng = random.Random(str(seed))
    return sum(bool(send(address, message(rng))) for _ in range(count))


@dataclasses.dataclass(frozen=True)
class Usage:
    """What a process uses: its memory [MB], threads and file handles."""

    rss_mb: float
    threads: int
    handles: int

    @classmethod
    def of(cls, pid: int) -> 'Usage':
        """Raises ProcessLookupError if the process has ended."""
        path = pathlib.Path(f'/proc/{pid}')
        try:
            lines = dict(line.split(':', 1) for line in (path / 'status').read_text().splitlines())
            return cls(int(lines['VmRSS'].split()[0]) / 1024, int(lines['Threads']), len(os.listdir(path / 'fd')))
        except (FileNotFoundError, KeyError) as error:  # of a process that ended, nothing or not much is left
            raise ProcessLookupError(f'got process {pid}, which has ended') from error

    def growth(self, after: 'Usage') -> str | None:
        """Returns what has grown; None if nothing has."""
        if after.rss_mb > self.rss_mb + MAX_GROWTH_MB:
            return f'memory, from {self.rss_mb:.0f} to {after.rss_mb:.0f} MB'
        if after.threads > self.threads + _SPARE:
            return f'threads, from {self.threads} to {after.threads}'
        if after.handles > self.handles + _SPARE:
            return f'file handles, from {self.handles} to {after.handles}'
        return None


def settled(pid: int, before: Usage) -> Usage:
    """Returns what a process uses as soon as nothing has grown any more, or after a minute."""
    deadline, pause = time.monotonic() + _SETTLE_SECS, threading.Event()
    while before.growth(after := Usage.of(pid)) and time.monotonic() < deadline:
        pause.wait(0.5)
    return after


def measure(pid: int, attack: Callable[[int, str], object], count: int, seed: int) -> tuple[Usage, Usage]:
    """Returns what a process uses before and after `attack(count, seed)`, which is warmed up by a part of it."""
    attack(min(WARM_UP, count), f'{seed}/warm')
    pause = threading.Event()
    pause.wait(_PAUSE_SECS)
    before = Usage.of(pid)
    attack(count, str(seed))
    pause.wait(_PAUSE_SECS)
    return before, settled(pid, before)


def main() -> int:
    """Fuzzes one port; prints a JSON object; returns 1 if something has grown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--address', required=True)
    parser.add_argument('--pid', type=int, required=True)
    parser.add_argument('--protocol', choices=sorted(PROTOCOLS), default='noise')
    parser.add_argument('--messages', type=int, default=10_000)
    parser.add_argument('--seed', type=int, default=0)
    options = parser.parse_args()
    attack = lambda count, seed: fuzz(options.address, PROTOCOLS[options.protocol], count, seed)  # noqa: E731
    before, after = measure(options.pid, attack, options.messages, options.seed)
    report = {'before': dataclasses.asdict(before), 'after': dataclasses.asdict(after), 'grown': before.growth(after)}
    sys.stdout.write(json.dumps(report) + '\n')
    return int(before.growth(after) is not None)


if __name__ == '__main__':
    sys.exit(main())
