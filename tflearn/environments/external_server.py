"""The HTTP server of external simulators: JSON requests -> slots. docs/external-simulators.md is the protocol.

    GET    /v1/specs                  what observations and actions are, and the timeouts
    POST   /v1/episodes               {"observation": ...} -> 201 {"episode": ID, "action": ...}
    POST   /v1/episodes/ID/steps      {"reward": ..., "observation": ..., "terminated": ..., "truncated": ...}
    DELETE /v1/episodes/ID

An error is {"error": ...} with the status 400 for a message that is wrong (the episode goes on), 404 for an unknown
path, 405 for another method, 401 without the token, 409 out of turn, 410 for an episode that is gone, 411 and 413 for
the size, 503 to try again.
"""

from collections.abc import Sequence
from http import HTTPStatus
from typing import Any

import numpy as np
from absl import logging

from tflearn.core.errors import UserValueError
from tflearn.core.settings import PositiveFloat, PositiveInt, checked_dataclass
from tflearn.core.types import EnvironmentSpecs
from tflearn.environments import external_descriptions
from tflearn.environments.external_slots import Busy, Gone, OutOfTurn, Result, Slots
from tflearn.net.http_request import Request, Response, json_response
from tflearn.net.http_server import HttpServer, Route
from tflearn.net.server_options import ServerOptions
from tflearn.net.tls import TlsFiles

_STATUS = {Gone: HTTPStatus.GONE, OutOfTurn: HTTPStatus.CONFLICT, Busy: HTTPStatus.SERVICE_UNAVAILABLE}
_LARGEST_REWARD = float(np.finfo(np.float32).max)


@checked_dataclass(frozen=True)
class ExternalOptions:
    """Where external simulators connect to, and how long they may take.

    Attributes:
      host: the name or address to listen at; '0.0.0.0' is all networks.
      ports: the ports to listen at: the first free one is taken, so that several collectors of one machine can share
        the list. 0 takes any free port.
      step_timeout_secs: how long the other simulators wait for one that steps; one that takes longer loses its episode.
      begin_wait_secs: how long they wait for one whose episode has ended to begin the next.
      slot_timeout_secs: how long a simulator waits for a slot before it is told to try again.
      max_connections: connections at the same time.
      max_request_bytes: the size of the largest request.
      tls: the files for encryption; None listens without it.
      token: where the token is that simulators must show: a file's path, or 'env:NAME' for an environment variable.
        None asks for none.
    """

    host: str = 'localhost'
    ports: Sequence[int] = (8600, 8601, 8602, 8603, 8604, 8605, 8606, 8607)
    step_timeout_secs: PositiveFloat = 10.0
    begin_wait_secs: PositiveFloat = 1.0
    slot_timeout_secs: PositiveFloat = 60.0
    max_connections: PositiveInt = 256
    max_request_bytes: PositiveInt = 4 << 20
    tls: TlsFiles | None = None
    token: str | None = None

    def __post_init__(self) -> None:
        ports = self.ports if isinstance(self.ports, list | tuple) else ()
        if not ports or not all(type(port) is int and 0 <= port <= 65535 for port in ports):
            raise UserValueError(f'got ExternalOptions.ports={self.ports!r}; need a list of ports from 0 to 65535')

    @property
    def server(self) -> ServerOptions:
        """Where the server listens, and its limits."""
        limits = self.max_connections, self.max_request_bytes, self.tls, self.token
        return ServerOptions(self.host, self.ports, *limits)


class Server:
    """Answers clients from its construction until `close`, each connection in a thread of its own.

    Attributes:
      address: 'http://host:port', or https.
    """

    def __init__(self, slots: Slots, specs: EnvironmentSpecs, options: ExternalOptions):
        """Starts to listen.

        Raises:
          ValueError: if it cannot listen at one of the ports, a file of TLS is invalid, or there is no token.
        """
        self._slots, self._specs, self._options = slots, specs, options
        routes: dict[str, Route] = {
            'GET /v1/specs': self._describe,
            'POST /v1/episodes': self._begin,
            'POST /v1/episodes/ID/steps': self._step,
            'DELETE /v1/episodes/ID': self._drop,
        }
        settings = 'ExternalOptions.ports', 'ExternalOptions.token'
        self._server = HttpServer(options.server, routes, 'external_server', settings, statuses=_STATUS)
        self.address = f'{"https" if options.tls else "http"}://{options.host}:{self._server.port}'
        self._server.start()
        logging.info('external simulators can connect to %s', self.address)

    def close(self) -> None:
        """Tells waiting clients that there are no more actions, and stops listening. May be called twice."""
        self._slots.close()
        self._server.close(end_connections=False)

    def _describe(self, request: Request) -> Response:
        return json_response(
            {
                'observation': external_descriptions.describe(self._specs.observation),
                'action': external_descriptions.describe(self._specs.action),
                'step_timeout_secs': self._options.step_timeout_secs,
                'slots': len(self._slots.slots),
            }
        )

    def _begin(self, request: Request) -> Response:
        message = request.json({'observation'}, {'observation'})
        episode, action = self._slots.begin(self._observation(message), self._options.slot_timeout_secs)
        begun = {'episode': episode, 'step': 0, 'action': self._action(action)}
        return json_response(begun, HTTPStatus.CREATED)

    def _step(self, request: Request, episode: str) -> Response:
        known = {'reward', 'observation', 'terminated', 'truncated', 'step'}
        message = request.json({'reward', 'observation'}, known)
        ends = [message.get(name, False) for name in ('terminated', 'truncated')]
        if not all(isinstance(end, bool) for end in ends):
            raise UserValueError(f'got terminated, truncated = {ends}; need true or false')
        number = message.get('step')
        if number is not None and type(number) is not int:
            raise UserValueError(f'got step={number!r}; need the number of the step, counted from 0')
        result = Result(_reward(message['reward']), self._observation(message), *ends)
        answer = self._slots.step(episode, number, result)
        if answer.action is None:
            return json_response({'steps': answer.num_steps, 'return': answer.total})
        return json_response({'step': answer.num_steps, 'action': self._action(answer.action)})

    def _drop(self, request: Request, episode: str) -> Response:
        self._slots.drop(episode)
        return json_response({})

    def _observation(self, message: dict[str, Any]) -> Any:
        return external_descriptions.from_json(message['observation'], self._specs.observation, 'observation')

    def _action(self, action: Any) -> Any:
        return external_descriptions.to_json(action, self._specs.action)


def _reward(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= _LARGEST_REWARD:
        raise UserValueError(f'got reward={value!r}; need a finite number')
    return float(value)
