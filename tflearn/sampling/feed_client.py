"""FeedClient: asks the feed's HTTP server."""

import http.client
import json
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from tflearn.core.errors import UserValueError
from tflearn.net.http_client import HttpClient
from tflearn.sampling.feed_server import FEED

_TIMEOUT_SECS = 10.0
_MAX_BYTES = 16 << 20


class FeedClient:
    """Asks a feed, for many threads: each request has a connection, and a deadline, of its own."""

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
