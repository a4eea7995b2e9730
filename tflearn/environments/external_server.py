"""The HTTP server of external simulators: JSON requests -> slots. docs/external-simulators.md is the protocol.

    GET    /v1/specs                  what observations and actions are, and the timeouts
    POST   /v1/episodes               {"observation": ...} -> 201 {"episode": ID, "action": ...}
    POST   /v1/episodes/ID/steps      {"reward": ..., "observation": ..., "terminated": ..., "truncated": ...}
    DELETE /v1/episodes/ID

An error is {"error": ...} with the status 400 for a message that is wrong (the episode goes on), 404 for an unknown
path, 401 without the token, 409 out of turn, 410 for an episode that is gone, 411 and 413 for the size, 503 to try
again.
"""

import json
import re
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

import numpy as np
from absl import logging

from tflearn.core import background, tokens
from tflearn.core.errors import UserValueError
from tflearn.core.settings import PositiveFloat, PositiveInt, checked_dataclass
from tflearn.core.types import EnvironmentSpecs
from tflearn.environments import external_descriptions
from tflearn.environments.external_slots import Busy, Gone, OutOfTurn, Result, Slots
from tflearn.net import http_server
from tflearn.net.renewed import Renewed
from tflearn.net.tls import TlsFiles

_EPISODE = re.compile(r'/v1/episodes/(\w{1,64})(/steps)?')
_STEP_KEYS = {'reward', 'observation', 'terminated', 'truncated', 'step'}
_STATUS = {
    UserValueError: HTTPStatus.BAD_REQUEST,
    Gone: HTTPStatus.GONE,
    OutOfTurn: HTTPStatus.CONFLICT,
    Busy: HTTPStatus.SERVICE_UNAVAILABLE,
}
_LARGEST_REWARD = float(np.finfo(np.float32).max)
_MAX_QUOTED = 300  # characters of an error that a client gets


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
        self._token = tokens.read(options.token, 'ExternalOptions.token') if options.token else ''
        self._slots, self._specs, self._options = slots, specs, options
        tls = Renewed(options.tls.names, options.tls.context) if options.tls else None
        given = (options.host, options.ports, self._handler(), options.max_connections)
        self._server = http_server.listen(*given, tls, 'ExternalOptions.ports')
        scheme = 'https' if options.tls else 'http'
        self.address = f'{scheme}://{options.host}:{self._server.server_address[1]}'
        self._thread = background.Thread(target=self._server.serve_forever, name='external_server')
        self._thread.start()
        logging.info('external simulators can connect to %s', self.address)

    def close(self) -> None:
        """Tells waiting clients that there are no more actions, and stops listening. May be called twice."""
        self._slots.close()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10.0)

    def answer(self, method: str, path: str, body: bytes) -> tuple[HTTPStatus, dict[str, Any]]:
        """Returns the status and the response to a request; raises nothing that a client causes."""
        try:
            match = _EPISODE.fullmatch(path)
            if (method, path) == ('GET', '/v1/specs'):
                return HTTPStatus.OK, self._describe()
            if (method, path) == ('POST', '/v1/episodes'):
                return HTTPStatus.CREATED, self._begin(_parsed(body, {'observation'}, {'observation'}))
            if method == 'POST' and match and match[2]:
                return HTTPStatus.OK, self._step(match[1], _parsed(body, {'reward', 'observation'}, _STEP_KEYS))
            if method == 'DELETE' and match and not match[2]:
                self._slots.drop(match[1])
                return HTTPStatus.OK, {}
            return HTTPStatus.NOT_FOUND, {
                'error': f'got {method} {path[:_MAX_QUOTED]}; need GET /v1/specs, POST /v1/episodes, POST '
                '/v1/episodes/ID/steps or DELETE /v1/episodes/ID'
            }
        except tuple(_STATUS) as error:
            status = next(status for kind, status in _STATUS.items() if isinstance(error, kind))
            logging.log_first_n(logging.WARNING, 'refused a request of a simulator: %s', 20, error)
            return status, {'error': str(error)[:_MAX_QUOTED]}

    def _describe(self) -> dict[str, Any]:
        return {
            'observation': external_descriptions.describe(self._specs.observation),
            'action': external_descriptions.describe(self._specs.action),
            'step_timeout_secs': self._options.step_timeout_secs,
            'slots': len(self._slots.slots),
        }

    def _begin(self, message: Mapping[str, Any]) -> dict[str, Any]:
        observation = external_descriptions.from_json(message['observation'], self._specs.observation, 'observation')
        episode, action = self._slots.begin(observation, self._options.slot_timeout_secs)
        return {'episode': episode, 'step': 0, 'action': external_descriptions.to_json(action, self._specs.action)}

    def _step(self, episode: str, message: Mapping[str, Any]) -> dict[str, Any]:
        ends = [message.get(name, False) for name in ('terminated', 'truncated')]
        if not all(isinstance(end, bool) for end in ends):
            raise UserValueError(f'got terminated, truncated = {ends}; need true or false')
        number = message.get('step')
        if number is not None and type(number) is not int:
            raise UserValueError(f'got step={number!r}; need the number of the step, counted from 0')
        result = Result(
            _reward(message['reward']),
            external_descriptions.from_json(message['observation'], self._specs.observation, 'observation'),
            *ends,
        )
        answer = self._slots.step(episode, number, result)
        if answer.action is None:
            return {'steps': answer.num_steps, 'return': answer.total}
        return {'step': answer.num_steps, 'action': external_descriptions.to_json(answer.action, self._specs.action)}

    def _handler(self) -> type['_Handler']:
        attributes = {'server_of': self, 'max_bytes': self._options.max_request_bytes}
        return type('Handler', (_Handler,), {**attributes, 'token': self._token})


class _Handler(http_server.Handler):
    """Handles the requests of one connection.

    Attributes:
      server_of: answers them; set by a subclass, as is the other.
      max_bytes: the size of the largest request.
    """

    server_of: Server
    max_bytes: int

    def answer(self) -> None:
        """See `http_server.Handler`."""
        if self.command != 'POST':
            self._respond(b'')
        elif (length := self.length_of_body(self.max_bytes)) is not None:
            body = self.read_body(length)
            if body is not None:
                self._respond(bytes(body))

    def _respond(self, body: bytes) -> None:
        try:
            status, message = self.server_of.answer(self.command, self.path, body)
        except Exception as error:
            logging.error('a request failed', exc_info=error)
            status = HTTPStatus.INTERNAL_SERVER_ERROR
            message = {'error': f'{type(error).__name__}: the collector has the details in its log'}
        if status == HTTPStatus.SERVICE_UNAVAILABLE:  # after the end a client finds out that nobody listens
            self.close_connection = True
        self.send_json(status, message)


def _parsed(body: bytes, needed: set[str], known: set[str]) -> Mapping[str, Any]:
    """Returns the JSON object in a request's body; raises ValueError if there is none, or one with other keys."""
    try:
        message = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise UserValueError(f'got a body that is no JSON ({error}); need a JSON object') from error
    if not isinstance(message, dict):
        raise UserValueError(f'got a JSON {type(message).__name__}; need an object with {", ".join(sorted(needed))}')
    if missing := needed - message.keys():
        raise UserValueError(f'got a message without {", ".join(sorted(missing))}; need {", ".join(sorted(needed))}')
    if unknown := message.keys() - known:
        raise UserValueError(f'got a message with {", ".join(sorted(unknown))}; need only {", ".join(sorted(known))}')
    return message


def _reward(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= _LARGEST_REWARD:
        raise UserValueError(f'got reward={value!r}; need a finite number')
    return float(value)
