"""Subscribers of weights, many in a process: each line that it prints is a publication that one has received."""

import argparse
import hashlib
import json
import pathlib
import sys
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tflearn.coordinator.client import Coordinator  # noqa: E402
from tflearn.coordinator.weights_transport import CoordinatorLost  # noqa: E402
from tflearn.core.access import Access  # noqa: E402


def main() -> None:
    """Receives until standard input ends."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--count', type=int, required=True)
    parser.add_argument('--name', required=True)
    parser.add_argument('--coordinator', required=True, help='its address')
    parser.add_argument('--megabytes', type=float, required=True)
    options = parser.parse_args()
    stop = threading.Event()
    for i in range(options.count):
        given = (options, f'{options.name}_{i}', stop)
        threading.Thread(target=_receive, args=given, daemon=True).start()
    _print({'ready': options.count})
    sys.stdin.read()
    stop.set()


def _receive(options: argparse.Namespace, name: str, stop: threading.Event) -> None:
    client, known = Coordinator(Access(options.coordinator), name).weights(), None
    while not stop.is_set():
        try:
            message = client.get(known)
        except CoordinatorLost:
            client.pause()
            continue
        if message is not None:
            known = message
            at = time.time()
            first = message.data[0]
            assert first is not None
            digest = hashlib.blake2b(first, digest_size=16).hexdigest() if len(first) < 4 << 20 else None
            _report(name, message.counters, at, digest in (None, message.variables[0].digest), message.num_bytes)


def _report(name: str, counters: dict[str, int], at: float, is_right: bool, num_bytes: int) -> None:
    secs = at - counters['published_at'] / 1e6
    version = counters['policy_version']
    _print({'name': name, 'version': version, 'secs': secs, 'right': is_right, 'bytes': num_bytes})


_LOCK = threading.Lock()


def _print(message: dict[str, object]) -> None:
    with _LOCK:
        print(json.dumps(message), flush=True)


if __name__ == '__main__':
    main()
