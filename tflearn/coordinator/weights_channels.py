"""How publications travel from the learner to those who act: through the replay server's table, or a weights server."""

import threading
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol

import numpy as np
import tensorflow as tf

from tflearn.coordinator import weights_contract, weights_messages
from tflearn.coordinator.weights_client import Client, Lost, Refused
from tflearn.coordinator.weights_messages import Message
from tflearn.core import tokens
from tflearn.core.errors import UserValueError
from tflearn.core.settings import checked_dataclass
from tflearn.core.waiting import Jitter
from tflearn.replay import connection

_NO_WAIT_SECS = 0.0


@checked_dataclass(frozen=True)
class Plane:
    """Where weights travel.

    Attributes:
      addresses: weights servers or relays, 'host:port', one of which is asked; none: the replay server has the weights.
        The learner publishes to the only one.
      token: where the token is that they ask for: a file's path, or 'env:NAME'.
      dtype: what variables of float32 are sent as: 'float32', or 'bfloat16', which takes half of the bytes and keeps
        three digits. Collectors then act with rounded weights.
    """

    addresses: tuple[str, ...] = ()
    token: str | None = None
    dtype: Literal['float32', 'bfloat16'] = 'float32'


class Channel(Protocol):
    """A way of publications. Used by one thread, but `close`."""

    what: str

    def check(self) -> None:
        """Raises ValueError if what the other end holds is made for other variables."""

    def newest_version(self) -> int:
        """Returns the policy version that can be fetched now; 0 if there is none."""

    def send(self, publication: Mapping[str, Any]) -> None:
        """Sends counters and variables, by column; raises RuntimeError if that fails."""

    def is_lost(self) -> bool:
        """Returns whether the other end answers, but has no publication, since it was started again."""

    def next(self) -> Mapping[str, Any] | None:
        """Returns the newest publication if it is another one than that of the last call; waits a while for one."""

    def close(self) -> None:
        """Ends waiting."""


def connect(
    address: str,
    variables: Sequence[tf.Variable],
    plane: Plane,
    name: str = 'train',
    epoch: int = 0,
    interval_secs: float = 0.5,
) -> Channel:
    """Returns the channel of a plane, whose other end holds nothing for other variables.

    Args:
      address: the replay server's.
      name: the job's, by which it chooses a relay and when it asks.
      epoch: the learner's, for who publishes.
      interval_secs: the mean time between two questions to the replay server [s].

    Raises:
      ValueError: if what the other end holds is made for other variables.
    """
    columns = weights_contract.signature(variables)
    channel: Channel
    if plane.addresses:
        channel = _ServerChannel(plane, columns, name, epoch)
    else:
        channel = _TableChannel(address, columns, interval_secs, name)
    try:
        channel.check()
    except BaseException:
        channel.close()
        raise
    return channel


class _TableChannel:
    """The replay server's table of one publication. It is polled, since Reverb waits for a lost server for ever."""

    def __init__(self, address: str, columns: dict[str, tf.TensorSpec], interval_secs: float, name: str):
        self.what = f'the replay server at {address}'
        self._address, self._columns, self._interval_secs = address, columns, interval_secs
        self._seen: tuple[int, int] | None = None
        self._closed = threading.Event()
        self._jitter = Jitter(f'{name}/weights')
        self._pause_secs = self._jitter.first(interval_secs)

    def check(self) -> None:
        weights_contract.check_server(self._address, self._columns)

    def newest_version(self) -> int:
        data = self._fetch(weights_contract.counts(self._address))
        return 0 if data is None else int(data['policy_version'])

    def send(self, publication: Mapping[str, Any]) -> None:
        # The signature was checked at the start.
        if not connection.insert(
            self._address, weights_contract.VARIABLES, publication, weights_contract.num_bytes(self._columns)
        ):
            raise RuntimeError('it does not answer')

    def is_lost(self) -> bool:
        counts = weights_contract.counts(self._address)
        return counts is not None and counts[0] == 0

    def next(self) -> Mapping[str, Any] | None:
        self._closed.wait(self._pause_secs)
        self._pause_secs = self._jitter.next(self._interval_secs)
        # Reading the counts takes a tenth of the time of fetching the weights.
        counts, data = weights_contract.counts(self._address), None
        if counts and counts != self._seen:
            data = self._fetch(counts)
        self._seen = counts if data is not None or counts == self._seen else None
        return data

    def close(self) -> None:
        self._closed.set()

    def _fetch(self, counts: tuple[int, int] | None) -> Mapping[str, Any] | None:
        return weights_contract.fetch(self._address, self._columns) if counts and counts[0] else None


class _ServerChannel:
    """A weights server, which answers as soon as there is a publication."""

    def __init__(self, plane: Plane, columns: dict[str, tf.TensorSpec], name: str, epoch: int):
        self.what = f'the weights server at {",".join(plane.addresses)}'
        token = tokens.read(plane.token, '--weights_token') if plane.token else ''
        self._client = Client(plane.addresses, name, token)
        self._columns, self._epoch = columns, epoch
        self._narrow = None if plane.dtype == 'float32' else tf.as_dtype(plane.dtype).as_numpy_dtype
        self._known: Message | None = None
        self._failed = False

    def check(self) -> None:
        try:
            message = self._client.get(None, _NO_WAIT_SECS)
        except Lost:
            return  # it is checked as soon as it answers
        if message:
            self._check(message)

    def newest_version(self) -> int:
        try:
            message = self._client.get(None, _NO_WAIT_SECS)
        except (Lost, Refused):
            return 0
        return int(message.counters.get('policy_version', 0)) if message else 0

    def send(self, publication: Mapping[str, Any]) -> None:
        counters = {name: np.asarray(publication[name]).item() for name in weights_contract.COUNTERS}
        variables = {key: spec for key, spec in self._columns.items() if key not in weights_contract.COUNTERS}
        names = [str(spec.name) for spec in variables.values()]
        values = [publication[key] for key in variables]
        message = weights_messages.make(self._epoch, counters, names, values, self._narrow)
        self._client.put(message)
        self._known = message

    def is_lost(self) -> bool:
        try:
            return self._known is not None and self._client.status().get('tag') != self._known.tag
        except (Lost, Refused):
            return False

    def next(self) -> Mapping[str, Any] | None:
        try:
            message = self._client.get(self._known)
        except Lost:
            self._client.pause()
            return None
        if message is None:
            return None
        self._known = message
        return self._check(message)

    def close(self) -> None:
        self._client.close()

    def _check(self, message: Message) -> dict[str, Any]:
        """Returns the columns of a message; raises ValueError if they are not those of our variables."""
        theirs = {
            name: weights_contract.COUNTERS[name] for name in message.counters if name in weights_contract.COUNTERS
        }
        try:
            for i, each in enumerate(message.variables):
                theirs[weights_contract.column(i)] = tf.TensorSpec(each.shape, tf.as_dtype(each.dtype), each.name)
            weights_contract.check(self.what, theirs, self._columns)
            values = weights_messages.values(message, lambda name: np.dtype(tf.as_dtype(name).as_numpy_dtype))
        except (TypeError, ValueError) as error:
            raise UserValueError(str(error)) from error
        columns = [weights_contract.column(i) for i in range(len(values))]
        return {**message.counters, **dict(zip(columns, values, strict=True))}
