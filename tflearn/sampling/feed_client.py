"""FeedClient: asks the feed's HTTP server; a learner without Reverb reaches the replay servers through it."""

import http.client
import json
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from absl import logging

from tflearn.core.errors import UserValueError
from tflearn.core.table_counts import TableCounts
from tflearn.net.http_client import HttpClient
from tflearn.sampling.feed_server import FEED, TABLES

_TIMEOUT_SECS = 10.0  # the feed itself waits two seconds for each replay server
_MAX_BYTES = 16 << 20


class FeedClient:
    """A `connection.Relay`, for many threads: each request has a connection, and a deadline, of its own."""

    def __init__(self, address: str):
        """Asks nothing yet; `address` is the feed's, 'host:port'."""
        self.address = address

    def state(self) -> dict[str, Any] | None:
        """Returns dispatcher, contract and number of workers; None if the feed does not answer."""
        status, answer = self._ask('GET', FEED)
        return answer if status == HTTPStatus.OK else None

    def announce(self, worker: str, contract: Mapping[str, Any]) -> None:
        """Announces a worker; silently nothing if the feed does not answer.

        Raises:
          ValueError: if other workers feed other elements.
        """
        status, answer = self._ask('PUT', FEED, json.dumps({'worker': worker, **contract}))
        if status == HTTPStatus.CONFLICT:
            raise UserValueError(f'{answer.get("error")}; start all jobs with the same gin file')

    def counts(self) -> dict[str, TableCounts] | None:
        """See `connection.Relay`."""
        status, answer = self._ask('GET', TABLES)
        if status != HTTPStatus.OK:
            return None
        try:
            return {name: TableCounts.parse(counts) for name, counts in answer.items()}
        except (KeyError, TypeError, ValueError) as error:
            logging.warning('got an answer of the feed at %s that is none: %r', self.address, error)
            return None

    def send(self, table: str, name: str, text: str) -> bool:
        """See `connection.Relay`."""
        status, answer = self._ask('POST', f'{TABLES}/{table}/{name}', text)
        return status == HTTPStatus.OK and answer.get('sent') is True

    def receive(self, table: str, max_texts: int) -> list[bytes]:
        """See `connection.Relay`. What a broken connection does not deliver is lost."""
        status, answer = self._ask('DELETE', f'{TABLES}/{table}', json.dumps({'most': max_texts}))
        texts = answer.get('texts') if status == HTTPStatus.OK else None
        return [str(text).encode() for text in texts or ()]

    def _ask(self, method: str, path: str, body: str | None = None) -> tuple[int, dict[str, Any]]:
        """Returns the status and the JSON object of an answer; (0, {}) if there is none."""
        client = HttpClient(self.address)
        try:
            response = client.ask(method, path, _TIMEOUT_SECS, body=None if body is None else [body.encode()])
            answer = json.loads(response.read(_MAX_BYTES))
            return response.status, answer if isinstance(answer, dict) else {}
        except (OSError, http.client.HTTPException, ValueError):
            return 0, {}
        finally:
            client.drop()
