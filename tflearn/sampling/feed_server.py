"""The feed's HTTP server: the contract of its elements, and the control messages of learners without Reverb.

GET    /v1/feed               {"dispatcher": "host:port", "workers": 2, "dataset_id": ..., "element": ...}
PUT    /v1/feed               a worker's announcement, every second: {"worker": ..., "dataset_id": ..., ...}
GET    /v1/tables             the counts of the replay servers' tables; 503 while the first one does not answer
POST   /v1/tables/TABLE/NAME  a message for the replay servers, in the column NAME of TABLE: {"sent": true}
DELETE /v1/tables/TABLE       {"most": 10} takes messages: {"texts": [...]}

Messages are reports, credits and heartbeats; no other table can be reached.
"""

import functools
import threading
import time
from http import HTTPStatus
from typing import Any

from absl import logging

from tflearn.coordinator.credits import CREDITS
from tflearn.coordinator.heartbeat import HEARTBEATS
from tflearn.coordinator.reports import REPORTS
from tflearn.core.errors import UserValueError
from tflearn.net.http_request import Refused, Request, Response, json_response
from tflearn.net.http_server import HttpServer, Route
from tflearn.net.server_options import ServerOptions
from tflearn.replay import connection
from tflearn.replay.shards import Shards

FEED, TABLES = '/v1/feed', '/v1/tables'
_MAX_BODY = 2 << 20
_MAX_CONNECTIONS = 64
_ANNOUNCED_SECS = 10.0
_MAX_WORKERS = 10_000
_MAX_TEXTS = 1_000
_MAX_NAME = 64
_NAMES = {REPORTS: 'report', CREDITS: 'credits', HEARTBEATS: 'state'}  # of the column of each table's messages


class Announcements:
    """The workers that have announced themselves lately, for many threads. The first one decides the contract."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._contract: dict[str, Any] = {}
        self._seen: dict[str, float] = {}

    def put(self, worker: str, contract: dict[str, Any]) -> str | None:
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

    def state(self) -> dict[str, Any]:
        """Returns the contract, and the number of workers."""
        with self._lock:
            self._forget()
            return {**self._contract, 'workers': len(self._seen)}

    def _forget(self) -> None:
        oldest = time.monotonic() - _ANNOUNCED_SECS
        for worker in [worker for worker, at in self._seen.items() if at < oldest]:
            del self._seen[worker]
            logging.warning('worker %s has announced nothing for %g s', worker, _ANNOUNCED_SECS)


class FeedServer:
    """Serves from its construction until `close`.

    Attributes:
      port: where it listens.
    """

    def __init__(self, host: str, port: int, shards: Shards, dispatcher: str):
        """Starts to listen.

        Args:
          host: the name or address to listen at; '' is all networks.
          port: 0 takes a free one.
          shards: the replay servers.
          dispatcher: the address of the dispatcher of tf.data service, 'host:port'.

        Raises:
          ValueError: if it cannot listen there.
        """
        self.shards, self._dispatcher = shards, dispatcher
        self.announcements = Announcements()
        routes: dict[str, Route] = {
            f'GET {FEED}': lambda request: json_response(self.state()),
            f'PUT {FEED}': self._announce,
            f'GET {TABLES}': self._tables,
        }
        for table, name in _NAMES.items():
            routes[f'POST {TABLES}/{table}/{name}'] = functools.partial(self._send, table, name)
            routes[f'DELETE {TABLES}/{table}'] = functools.partial(self._take, table)
        options = ServerOptions(host, port, _MAX_CONNECTIONS, _MAX_BODY)
        self._server = HttpServer(options, routes, 'feed_server', ('--feed_address', ''), shared=True)
        self.port = self._server.port
        self._server.start()

    def state(self) -> dict[str, Any]:
        """Returns what GET /v1/feed answers."""
        return {'dispatcher': self._dispatcher, **self.announcements.state()}

    def close(self) -> None:
        """Stops listening."""
        self._server.close()

    def _announce(self, request: Request) -> Response:
        contract = request.json()
        worker = str(contract.pop('worker', ''))[:_MAX_NAME]
        if refusal := self.announcements.put(worker, contract):
            raise Refused(HTTPStatus.CONFLICT, refusal)
        return json_response({})

    def _tables(self, request: Request) -> Response:
        """Returns the counts of the first server's tables, those of the experience summed over all servers."""
        tables = self.shards.counts()
        if tables is None:
            raise Refused(HTTPStatus.SERVICE_UNAVAILABLE, 'the replay server does not answer')
        return json_response({name: table.as_json() for name, table in tables.items()})

    def _send(self, table: str, name: str, request: Request) -> Response:
        """Sends a message to the first server; heartbeats to all."""
        text = request.text()
        addresses = self.shards.addresses if table == HEARTBEATS else self.shards.addresses[:1]
        sent = [connection.send(address, table, name, text) for address in addresses]
        return json_response({'sent': all(sent)})

    def _take(self, table: str, request: Request) -> Response:
        """Takes at most so many messages from the first server, of those that it has."""
        most = request.json().get('most', 1)
        if type(most) is not int:
            raise UserValueError(f'got most={most!r}; need the number of messages')
        tables = connection.counts(self.shards.control)
        most = min(most, tables[table].size, _MAX_TEXTS) if tables and table in tables else 0
        texts = connection.receive(self.shards.control, table, most) if most > 0 else ()
        return json_response({'texts': [text.decode() for text in texts]})
