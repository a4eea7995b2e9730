"""The protocol of external simulators: an HTTP server of JSON requests -> slots.
See docs/external-simulators.md.

    GET    /v1/specs                  what observations and actions are, and the timeouts
    POST   /v1/episodes               {"observation": ...} -> 201 {"episode": ID, "action": ...}
    POST   /v1/episodes/ID/steps      {"reward": ..., "observation": ..., "terminated": ..., "truncated": ...}
    DELETE /v1/episodes/ID

An error is {"error": ...} with the status 400 for a message that is wrong (the episode goes on),
404 for an unknown path, 405 for another method, 401 without the token, 409 out of turn, 410 for an
episode that is gone, 411 and 413 for the size, 503 to try again.

Observations and actions are described by dicts: with 'shape' for numbers, or with 'choices' for
integers from 0 on; any other dict is a nest:

    {'shape': (4,)}                                          float32 numbers
    {'shape': (84, 84, 1), 'dtype': 'uint8', 'low': 0, 'high': 255}
    {'choices': 3}          {'choices': (3, 2)}              one integer; several
    {'position': {'shape': (2,)}, 'gear': {'choices': 5}}    a nest

In JSON a value is a number, or lists of numbers in its shape, or a string: the base64 of its
little-endian bytes.
"""

import base64
import binascii
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging
from tf_agents.specs import tensor_spec
from tf_agents.typing import types

from tflearn.core.errors import UserValueError
from tflearn.core.settings import PositiveFloat, PositiveInt, checked_dataclass
from tflearn.core.types import EnvironmentSpecs
from tflearn.environments.external_slots import Result, Slots
from tflearn.net import json_arrays
from tflearn.net.http_messages import Response, json_response
from tflearn.net.http_server import HttpServer, Request, Route
from tflearn.net.server_options import ServerOptions, url_host
from tflearn.net.tls import TlsFiles

_KEYS = ('shape', 'dtype', 'low', 'high')


def to_spec(description: Any, name: str) -> types.NestedTensorSpec:
    """Returns the spec that a description stands for: bounded tensor specs in its nest.

    Args:
      description: see above.
      name: 'observation' or 'action', the name of the leaf, or the prefix of the leaves' names
        `name/key`.

    Raises:
      ValueError: for anything else than such a description.
    """
    if not isinstance(description, Mapping) or not description:
        raise UserValueError(
            f"got {description!r} as description of {name}; need a dict such as {{'shape': (4,)}} or {{'choices': 2}}"
        )
    try:
        if 'choices' in description:
            return _integers(name, **description)
        if 'shape' in description:
            return _numbers(name, **description)
    except (TypeError, ValueError) as error:
        raise UserValueError(
            f"got {dict(description)!r} as description of {name} ({error}); need 'choices' with counts of at least "
            f'1, or {", ".join(_KEYS)}'
        ) from error
    return {key: to_spec(part, f'{name}/{key}') for key, part in description.items()}


def _integers(name: str, choices: Any) -> types.BoundedTensorSpec:
    counts = np.asarray(choices, np.int64)
    if counts.ndim > 1 or np.any(counts < 1):
        raise UserValueError(f'choices={choices!r}')
    return tensor_spec.BoundedTensorSpec(counts.shape, tf.int64, np.zeros_like(counts), counts - 1, name)


def _numbers(name: str, shape: Any, dtype: str = 'float32', low: Any = None, high: Any = None) -> Any:
    kind = np.dtype(dtype)
    if kind.kind not in 'iuf' or kind == np.float64:
        raise UserValueError(f'dtype={dtype!r}, not float32 or an integer')
    limits: Any = np.finfo(kind) if kind.kind == 'f' else np.iinfo(kind)
    bounds = [limits.min if low is None else low, limits.max if high is None else high]
    least, greatest = (np.asarray(bound, kind) for bound in bounds)
    if np.any(least > greatest):
        raise UserValueError(f'low={low!r} above high={high!r}')
    return tensor_spec.BoundedTensorSpec(tuple(shape), tf.as_dtype(kind), least, greatest, name)


def from_json(value: Any, spec: types.NestedTensorSpec, name: str) -> Any:
    """Returns the arrays of a JSON value, in the nest of `spec`.

    Raises:
      ValueError: if the value has another structure, shape or kind of numbers, or numbers that are
        not finite or out of their bounds; it names the part.
    """
    if isinstance(spec, Mapping):
        if not isinstance(value, Mapping) or value.keys() != spec.keys():
            got = f'the keys {sorted(value)}' if isinstance(value, Mapping) else type(value).__name__
            raise UserValueError(f'got {name} with {got}; need an object with the keys {sorted(spec)}')
        return {key: from_json(value[key], spec[key], f'{name}.{key}') for key in spec}
    dtype = np.dtype(spec.dtype.as_numpy_dtype)
    array = _decoded(value, spec, dtype, name) if isinstance(value, str) else _listed(value, dtype, name)
    if array.shape != tuple(spec.shape):
        raise UserValueError(f'got {name} with shape {list(array.shape)}; need {list(spec.shape)}')
    if not np.isfinite(array).all():
        raise UserValueError(f'got {name} with numbers that are not finite; need finite ones')
    if np.any(array < spec.minimum) or np.any(array > spec.maximum):
        raise UserValueError(
            f'got {name} from {array.min()} to {array.max()}; need {spec.minimum.min()} to {spec.maximum.max()}'
        )
    return array


def _listed(value: Any, dtype: np.dtype, name: str) -> np.ndarray:
    array = json_arrays.numbers(name, value)
    if array.dtype.kind not in ('biuf' if dtype.kind == 'f' else 'biu') and array.size:
        raise UserValueError(f'got {name} with {array.dtype.name} values; need {dtype.name}')
    with np.errstate(over='ignore'):
        return array.astype(dtype) if dtype.kind == 'f' else _checked(array, dtype, name)


def _checked(array: np.ndarray, dtype: np.dtype, name: str) -> np.ndarray:
    converted = array.astype(dtype)
    if not np.array_equal(converted, array):
        raise UserValueError(f'got {name} with numbers beyond {dtype.name}')
    return converted


def _decoded(value: str, spec: Any, dtype: np.dtype, name: str) -> np.ndarray:
    try:
        data = base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError) as error:
        raise UserValueError(f'got {name} as a string that is no base64; need base64, or lists of numbers') from error
    size = int(np.prod(spec.shape)) * dtype.itemsize
    if len(data) != size:
        raise UserValueError(f'got {name} of {len(data)} bytes; need {size}')
    return np.frombuffer(data, dtype.newbyteorder('<')).reshape(spec.shape).astype(dtype)


def to_json(action: Any, spec: types.NestedTensorSpec) -> Any:
    """Returns the JSON value of one action: a nest of arrays of `spec`.
    Floats are clipped to their bounds.
    """
    if isinstance(spec, Mapping):
        return {key: to_json(action[key], spec[key]) for key in spec}
    clipped = np.clip(action, spec.minimum, spec.maximum) if spec.dtype.is_floating else action
    return np.asarray(clipped).tolist()


def describe(spec: types.NestedTensorSpec) -> Any:
    """Returns the JSON description of a spec, for clients;
    bounds that all float32 numbers are within are left out.
    """
    if isinstance(spec, Mapping):
        return {key: describe(part) for key, part in spec.items()}
    low, high = np.asarray(spec.minimum), np.asarray(spec.maximum)
    found = {'shape': list(spec.shape), 'dtype': spec.dtype.name}
    bounded = not spec.dtype.is_floating or bool((low > spec.dtype.min).any() or (high < spec.dtype.max).any())
    return found | {'low': low.tolist(), 'high': high.tolist()} if bounded else found


_END_SECS = 5.0  # for the answers to clients that wait
_LARGEST_REWARD = float(np.finfo(np.float32).max)


@checked_dataclass(frozen=True)
class ExternalOptions:
    """Where external simulators connect to, and how long they may take.

    Attributes:
      host: the name or address to listen at; '0.0.0.0' is all networks.
      ports: the ports to listen at: the first free one is taken, so that several collectors of one
        machine can share the list. 0 takes any free port.
      step_timeout_secs: how long the other simulators wait for one that steps; one that takes
        longer loses its episode.
      begin_wait_secs: how long they wait for one whose episode has ended to begin the next.
      slot_timeout_secs: how long a simulator waits for a slot before it is told to try again.
      max_connections: connections at the same time.
      max_request_bytes: the size of the largest request.
      tls: the files for encryption; None listens without it.
      token: where the token is that simulators must show: a file's path, or 'env:NAME' for an
        environment variable. None asks for none.
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


class SimulatorServer:
    """Answers clients from its construction until `close`, each request in a thread of its own.

    Attributes:
      address: 'http://host:port', or https.
    """

    def __init__(self, slots: Slots, specs: EnvironmentSpecs, options: ExternalOptions):
        """Starts to listen.

        Raises:
          ValueError: if it cannot listen at one of the ports, a file of TLS is invalid, or there is
            no token.
        """
        self._slots, self._specs, self._options = slots, specs, options
        routes: dict[str, Route] = {
            'GET /v1/specs': self._describe,
            'POST /v1/episodes': self._begin,
            'POST /v1/episodes/ID/steps': self._step,
            'DELETE /v1/episodes/ID': self._drop,
        }
        settings = 'ExternalOptions.ports', 'ExternalOptions.token'
        self._server = HttpServer(options.server, routes, 'external_server', settings)
        self.address = f'{"https" if options.tls else "http"}://{url_host(options.host)}:{self._server.port}'
        self._server.start()
        logging.info('external simulators can connect to %s', self.address)

    def close(self) -> None:
        """Tells waiting clients that there are no more actions, and stops listening.
        May be called twice.
        """
        self._slots.close()
        self._server.close(_END_SECS)

    def _describe(self, request: Request) -> Response:
        return json_response(
            {
                'observation': describe(self._specs.observation),
                'action': describe(self._specs.action),
                'step_timeout_secs': self._options.step_timeout_secs,
                'slots': len(self._slots.slots),
            }
        )

    def _begin(self, request: Request) -> Response:
        message = request.json({'observation': object}, {'observation'})
        episode, action = self._slots.begin(self._observation(message), self._options.slot_timeout_secs)
        begun = {'episode': episode, 'step': 0, 'action': self._action(action)}
        return json_response(begun, HTTPStatus.CREATED)

    def _step(self, request: Request, episode: str) -> Response:
        known = {'reward', 'observation', 'terminated', 'truncated', 'step'}
        message = request.json({'reward': object, 'observation': object}, known)
        ends = [message.get(name, False) for name in ('terminated', 'truncated')]
        if not all(isinstance(end, bool) for end in ends):
            raise UserValueError(f'got terminated, truncated = {ends}; need true or false')
        number = message.get('step')
        if number is not None and type(number) is not int:
            raise UserValueError(f'got step={number!r}; need the number of the step, counted from 0')
        result = Result(_reward(message['reward']), self._observation(message), *ends)
        action, num_steps, total = self._slots.step(episode, number, result)
        if action is None:
            return json_response({'steps': num_steps, 'return': total})
        return json_response({'step': num_steps, 'action': self._action(action)})

    def _drop(self, request: Request, episode: str) -> Response:
        self._slots.drop(episode)
        return json_response({})

    def _observation(self, message: dict[str, Any]) -> Any:
        return from_json(message['observation'], self._specs.observation, 'observation')

    def _action(self, action: Any) -> Any:
        return to_json(action, self._specs.action)


def _reward(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= _LARGEST_REWARD:
        raise UserValueError(f'got reward={value!r}; need a finite number')
    return float(value)
