"""The feed's HTTP server: the contract of its elements, and the control messages of learners without Reverb.

GET    /v1/feed               {"dispatcher": "host:port", "workers": 2, "dataset_id": ..., "element": ...}
PUT    /v1/feed               a worker's announcement, every second: {"worker": ..., "dataset_id": ..., ...}
GET    /v1/tables             the counts of the replay servers' tables; 503 while the first one does not answer
POST   /v1/tables/TABLE/NAME  a message for the replay servers, in the column NAME of TABLE: {"sent": true}
DELETE /v1/tables/TABLE       {"most": 10} takes messages: {"texts": [...]}

Messages are reports, credits and heartbeats; no other table can be reached.
"""

import json
import threading
import time
from http import HTTPStatus
from typing import Any

from absl import logging

from tflearn.coordinator.credits import CREDITS
from tflearn.coordinator.heartbeat import HEARTBEATS
from tflearn.coordinator.reports import REPORTS
from tflearn.core import background
from tflearn.core.errors import UserValueError
from tflearn.net import http_server
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


class RelayServer:
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
        handler = type('Handler', (_Handler,), {'relay': self})
        self._server = http_server.listen(host, [port], handler, _MAX_CONNECTIONS, setting='--feed_address', held=True)
        self.port = int(self._server.server_address[1])
        self._thread = background.Thread(target=self._server.serve_forever, name='feed_relay')
        self._thread.start()

    def state(self) -> dict[str, Any]:
        """Returns what GET /v1/feed answers."""
        return {'dispatcher': self._dispatcher, **self.announcements.state()}

    def close(self) -> None:
        """Stops listening."""
        self._server.shutdown()
        self._server.end_connections()
        self._server.server_close()
        self._thread.join(10.0)

    def tables(self) -> dict[str, Any] | None:
        """Returns the counts of the first server's tables, those of the experience summed over all servers."""
        tables = self.shards.counts()
        return None if tables is None else {name: table.as_json() for name, table in tables.items()}

    def send(self, table: str, name: str, text: str) -> bool:
        """Sends a message to the first server; heartbeats to all."""
        addresses = self.shards.addresses if table == HEARTBEATS else self.shards.addresses[:1]
        sent = [connection.send(address, table, name, text) for address in addresses]
        return all(sent)

    def take(self, table: str, most: int) -> list[str]:
        """Takes at most so many messages from the first server, of those that it has."""
        tables = connection.counts(self.shards.control)
        most = min(most, tables[table].size, _MAX_TEXTS) if tables and table in tables else 0
        return [text.decode() for text in connection.receive(self.shards.control, table, most)] if most > 0 else []


class _Handler(http_server.Handler):
    """Handles the requests of one connection.

    Attributes:
      relay: the server; set by a subclass.
    """

    relay: RelayServer

    def answer(self) -> None:
        """See `http_server.Handler`."""
        try:
            status, message = self._answer()
        except (ValueError, TypeError) as error:
            self.refuse(HTTPStatus.BAD_REQUEST, str(error))
            return
        if message is not None:
            self.send_json(status, message)

    def _answer(self) -> tuple[HTTPStatus, dict[str, Any] | None]:
        """Returns status and answer; the latter is None if the request was refused already."""
        if (self.command, self.path) == ('GET', FEED):
            return HTTPStatus.OK, self.relay.state()
        if (self.command, self.path) == ('GET', TABLES):
            tables = self.relay.tables()
            if tables is None:
                return HTTPStatus.SERVICE_UNAVAILABLE, {'error': 'the replay server does not answer'}
            return HTTPStatus.OK, tables
        if self.command == 'GET':
            self.refuse(HTTPStatus.NOT_FOUND, f'got GET {self.path[:80]}; need {FEED} or {TABLES}')
            return HTTPStatus.NOT_FOUND, None
        length = self.length_of_body(_MAX_BODY)
        if length is None:
            return HTTPStatus.BAD_REQUEST, None
        body = self.read_body(length)
        if body is None:
            return HTTPStatus.REQUEST_TIMEOUT, None
        return self._change(bytes(body).decode())

    def _change(self, body: str) -> tuple[HTTPStatus, dict[str, Any]]:
        if (self.command, self.path) == ('PUT', FEED):
            contract = _object(body)
            worker = str(contract.pop('worker', ''))[:_MAX_NAME]
            refusal = self.relay.announcements.put(worker, contract)
            return (HTTPStatus.CONFLICT, {'error': refusal}) if refusal else (HTTPStatus.OK, {})
        for table, name in _NAMES.items():
            if (self.command, self.path) == ('POST', f'{TABLES}/{table}/{name}'):
                return HTTPStatus.OK, {'sent': self.relay.send(table, name, body)}
            if (self.command, self.path) == ('DELETE', f'{TABLES}/{table}'):
                return HTTPStatus.OK, {'texts': self.relay.take(table, int(_object(body).get('most', 1)))}
        known = ', '.join(f'POST {TABLES}/{table}/{name}, DELETE {TABLES}/{table}' for table, name in _NAMES.items())
        return HTTPStatus.NOT_FOUND, {'error': f'got {self.command} {self.path[:80]}; need PUT {FEED}, {known}'}


def _object(body: str) -> dict[str, Any]:
    value = json.loads(body)
    if not isinstance(value, dict):
        raise UserValueError(f'got {body[:80]!r}; need a JSON object')
    return value
