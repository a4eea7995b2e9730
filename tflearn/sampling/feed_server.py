"""The feed's dispatcher: tf.data service's, and an HTTP server with the contract of its elements; and its client.

GET /v1/feed  {"dispatcher": "host:port", "workers": 2, "dataset_id": ..., "element": ...}
PUT /v1/feed  a worker's announcement, every second: {"worker": ..., "dataset_id": ..., ...}
"""

import contextlib
import http.client
import json
import pathlib
import threading
import time
from collections.abc import Iterator, Mapping
from http import HTTPStatus
from typing import Any

import tensorflow as tf
from absl import logging

from tflearn.core.errors import UserValueError
from tflearn.core.texts import check_text
from tflearn.net.http_client import HttpClient
from tflearn.net.http_messages import HttpRefusal, Response, json_response
from tflearn.net.http_server import HttpServer, Request
from tflearn.net.server_options import ServerOptions

FEED = '/v1/feed'
_MAX_BODY = 2 << 20
_MAX_CONNECTIONS = 64
_ANNOUNCED_SECS = 10.0
_MAX_WORKERS = 10_000
_ANNOUNCED = {'worker': str, 'dataset_id': str, 'protocol': int, 'element': list, 'row': str}
_WORKER_TIMEOUT_MS = 5_000
_GC_CHECK_MS = 2_000
_GC_TIMEOUT_MS = 30_000  # after that the readers of a learner that is gone are ended
_TIMEOUT_SECS = 10.0
_MAX_BYTES = 16 << 20


class FeedServer:
    """Serves from its construction until `close`.

    The first worker that announces itself decides the contract, which holds as long as any of them lives.

    Attributes:
      port: where it listens.
    """

    def __init__(self, host: str, port: int, dispatcher: str):
        """Starts to listen.

        Args:
          host: the name or address to listen at; '' is all networks.
          port: 0 takes a free one.
          dispatcher: the address of the dispatcher of tf.data service, 'host:port'.

        Raises:
          ValueError: if it cannot listen there.
        """
        self._dispatcher = dispatcher
        self._lock = threading.Lock()  # guards the attributes below
        self._contract: dict[str, Any] = {}
        self._seen: dict[str, float] = {}  # when each worker announced itself last
        routes = {f'GET {FEED}': lambda request: json_response(self.state()), f'PUT {FEED}': self._announce}
        options = ServerOptions(host, port, _MAX_CONNECTIONS, _MAX_BODY)
        self._server = HttpServer(options, routes, 'feed_server', ('--feed_address', ''), shared=True)
        self.port = self._server.port
        self._server.start()

    def state(self) -> dict[str, Any]:
        """Returns what GET /v1/feed answers."""
        with self._lock:
            self._forget()
            return {'dispatcher': self._dispatcher, **self._contract, 'workers': len(self._seen)}

    def close(self) -> None:
        """Stops listening."""
        self._server.close()

    def _announce(self, request: Request) -> Response:
        contract = request.json(_ANNOUNCED, _ANNOUNCED)
        worker = contract.pop('worker')
        check_text('worker', worker)
        check_text('dataset_id', contract['dataset_id'])
        if not all(isinstance(each, str) for each in contract['element']):
            raise UserValueError(f'got element={contract["element"]!a:.80}; need a list of texts')
        if refusal := self._put(worker, contract):
            raise HttpRefusal(HTTPStatus.CONFLICT, refusal)
        return json_response({})

    def _put(self, worker: str, contract: dict[str, Any]) -> str | None:
        """Takes a worker's contract. Returns why not, if others announced another one."""
        with self._lock:
            self._forget()
            if not self._seen:  # whatever was announced before is gone
                self._contract = contract
            if contract != self._contract:
                return f'got the contract {contract} of {worker}; need that of the other workers: {self._contract}'
            if worker not in self._seen:
                if len(self._seen) >= _MAX_WORKERS:
                    return f'got a worker beyond {_MAX_WORKERS}; need fewer'
                logging.info('worker %s feeds %s', worker, contract.get('dataset_id'))
            self._seen[worker] = time.monotonic()
        return None

    def _forget(self) -> None:
        oldest = time.monotonic() - _ANNOUNCED_SECS
        for worker in [worker for worker, at in self._seen.items() if at < oldest]:
            del self._seen[worker]
            logging.warning('worker %s has announced nothing for %g s', worker, _ANNOUNCED_SECS)


@contextlib.contextmanager
def dispatching(work_dir: pathlib.Path, port: int) -> Iterator[int]:
    """Runs a dispatcher for the time of the block; gives its port.

    Args:
      work_dir: where it keeps its journal.
      port: 0 takes a free one. After a restart it must be the same.

    Raises:
      ValueError: if it cannot listen there.
    """
    work_dir.mkdir(parents=True, exist_ok=True)
    config = tf.data.experimental.service.DispatcherConfig(
        port=port,
        work_dir=str(work_dir),
        fault_tolerant_mode=True,
        worker_timeout_ms=_WORKER_TIMEOUT_MS,
        job_gc_check_interval_ms=_GC_CHECK_MS,
        job_gc_timeout_ms=_GC_TIMEOUT_MS,
    )
    try:
        server = tf.data.experimental.service.DispatchServer(config)
    except tf.errors.OpError as error:
        raise UserValueError(
            f'got port {port} and the directory {work_dir} for the dispatcher of tf.data service, which does not start '
            f'({error.message}); need a free port, and a journal of this version of TensorFlow; remove the directory'
        ) from error
    try:
        yield int(server.target.rpartition(':')[2])
    finally:
        del server  # which stops it


def state_of(address: str) -> dict[str, Any] | None:
    """Returns dispatcher, contract and number of workers of the feed at 'host:port'; None if it does not answer."""
    status, answer = _ask(address, 'GET', FEED)
    return answer if status == HTTPStatus.OK else None


def announce(address: str, worker: str, contract: Mapping[str, Any]) -> None:
    """Announces a worker at the feed at 'host:port'; silently nothing if that does not answer.

    Raises:
      ValueError: if other workers feed other elements.
    """
    status, answer = _ask(address, 'PUT', FEED, json.dumps({'worker': worker, **contract}))
    if status == HTTPStatus.CONFLICT:
        raise UserValueError(f'{answer.get("error")}; start all jobs with the same gin file')


def _ask(address: str, method: str, path: str, body: str | None = None) -> tuple[int, dict[str, Any]]:
    """Returns the status and the JSON object of an answer; (0, {}) if there is none."""
    client = HttpClient(address)  # a connection of its own, since many threads ask
    try:
        response = client.ask(method, path, _TIMEOUT_SECS, body=None if body is None else [body.encode()])
        answer = json.loads(response.read(_MAX_BYTES))
        return response.status, answer if isinstance(answer, dict) else {}
    except (OSError, http.client.HTTPException, ValueError):
        return 0, {}
    finally:
        client.drop()
