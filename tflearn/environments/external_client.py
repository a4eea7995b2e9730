"""A client of the server of external simulators. It needs only Python's standard library:
copy this file as it is.

client = SimulatorClient('http://localhost:8600')
while True:
    action = client.begin(observation)
    while action is not None:
        observation, reward, terminated, truncated = simulate(action)
        action = client.step(reward, observation, terminated, truncated)
"""

import http.client
import json
import ssl
import urllib.parse
from typing import Any


class WrongValueError(ValueError):
    """The server cannot use a value; the episode goes on."""


class EpisodeGoneError(LookupError):
    """The episode was dropped: the simulator took too long, or the collector was restarted.
    Begin another one.
    """


class CollectorBusyError(RuntimeError):
    """There is no slot, or the collector has ended: try again later."""


_ERRORS = {400: WrongValueError, 401: PermissionError, 410: EpisodeGoneError, 503: CollectorBusyError}


class SimulatorClient:
    """Plays one episode at a time. Not thread-safe: make one for each simulator.

    Attributes:
      last_return: the sum of rewards of the last complete episode; None before.
    """

    def __init__(self, address: str, timeout_secs: float = 600.0, tls: ssl.SSLContext | None = None, token: str = ''):
        """
        Args:
          address: 'http://host:port', or https.
          timeout_secs: how long to wait for an action; the collector may wait for the learner.
          tls: the TLS settings of an https address; None takes Python's default ones.
          token: what the collector asks for, if it does (`ExternalOptions.token`).
        """
        self._headers = {'Authorization': f'Bearer {token}'} if token else {}
        parts = urllib.parse.urlsplit(address)
        if parts.scheme not in ('http', 'https') or not parts.hostname:
            raise WrongValueError(f"got address={address!r}; need one such as 'http://localhost:8600'")
        self.last_return: float | None = None
        self._episode, self._step = '', 0
        self._connection: http.client.HTTPConnection
        if parts.scheme == 'https':
            context = tls or ssl.create_default_context()
            self._connection = http.client.HTTPSConnection(
                parts.hostname, parts.port, timeout=timeout_secs, context=context
            )
        else:
            self._connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=timeout_secs)

    def specs(self) -> dict[str, Any]:
        """Returns what observations and actions are. Raises PermissionError, as all calls,
        without the right token.
        """
        return self._request('GET', '/v1/specs')

    def begin(self, observation: Any) -> Any:
        """Begins an episode with its first observation: numbers, lists, dicts of them.
        Returns the first action.

        Raises:
          CollectorBusyError: if there is no slot in time.
          WrongValueError: if the observation is wrong.
        """
        answer = self._request('POST', '/v1/episodes', {'observation': observation})
        self._episode, self._step = answer['episode'], 0
        return answer['action']

    def step(self, reward: float, observation: Any, terminated: bool = False, truncated: bool = False) -> Any:
        """Returns the result of the last action, and asks for the next one;
        None at the end of the episode.

        Args:
          reward: the action's reward.
          observation: the observation after it.
          terminated: whether the episode has ended by itself.
          truncated: whether it is cut off, for example by a time limit: the last observation still
            has a value.

        Raises:
          EpisodeGoneError: if the episode was dropped.
          CollectorBusyError: if the collector has ended.
          WrongValueError: if a value is wrong; the episode goes on.
        """
        message = {'reward': float(reward), 'observation': observation, 'step': self._step}
        message |= {'terminated': bool(terminated), 'truncated': bool(truncated)}
        answer = self._request('POST', f'/v1/episodes/{self._episode}/steps', message)
        self._step += 1
        self.last_return = answer.get('return', self.last_return)
        return answer.get('action')

    def give_up(self) -> None:
        """Ends the episode without a result; its last action counts for nothing."""
        self._request('DELETE', f'/v1/episodes/{self._episode}')

    def close(self) -> None:
        """Closes the connection."""
        self._connection.close()

    def _request(self, method: str, path: str, message: Any = None) -> dict[str, Any]:
        body = None if message is None else json.dumps(message).encode()
        headers = {**self._headers, **({'Content-Type': 'application/json'} if body else {})}
        for last in (False, True):
            try:
                self._connection.request(method, path, body, headers)
                response = self._connection.getresponse()
                text = response.read()
                break
            except (http.client.RemoteDisconnected, ConnectionError):
                self._connection.close()  # it connects again with the next request
                # The number of a step keeps it from counting twice; a second episode must not be
                # begun.
                if last or path == '/v1/episodes':
                    raise
        answer: dict[str, Any] = json.loads(text)
        if response.status < 300:
            return answer
        raise _ERRORS.get(response.status, RuntimeError)(answer.get('error', f'HTTP status {response.status}'))
