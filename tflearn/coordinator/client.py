"""Coordinator: a job's client of that server. Messages sent while it is down are lost;
their senders repeat them.
"""

import contextlib
import dataclasses
import http.client
import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from types import MappingProxyType
from typing import Any

from absl import logging

from tflearn.coordinator import control
from tflearn.coordinator.state import ENDED, RELAY, REPLAY, TRAIN, WORKING
from tflearn.coordinator.weights_transport import (
    PATH,
    SLOWEST_BYTES_PER_SEC,
    STATUS_PATH,
    CoordinatorLost,
    Message,
    RequestRefused,
    WeightsReader,
)
from tflearn.core import background, tokens
from tflearn.core.access import Access
from tflearn.core.errors import UserRuntimeError, UserValueError, first_few
from tflearn.core.table_counts import TableCounts, summed
from tflearn.core.waiting import LOG_EVERY_SECS, PEER_TIMEOUT_SECS, PeerLost, wait_until
from tflearn.net.http_client import HttpClient

INCARNATION, CLAIM = 'Tflearn-Incarnation', 'Tflearn-Claim'
_MESSAGE_SECS = 3.0
_PUT_SECS = 15.0
_MAX_ANSWER = 64 << 20
_BEAT_SECS, _JOIN_SECS = 1.0, 0.5
_TRIES = 3
_OLD_COUNTS_SECS = 10.0
_WHAT = {
    'formats': 'another version of tflearn',
    'variables': 'another network',
    'signature': 'other data',
    'settings': 'other settings',
    'shards': 'another number of replay servers',
    'feed': 'another version of TensorFlow in a worker of the feed',
}
_MAX_COUNTED_SECS = 30.0  # of the time between two looks


class Restarted(CoordinatorLost):
    """The coordinator was started again, and knows nothing of what was sent before."""


@dataclasses.dataclass(frozen=True)
class Role:
    """What a job is in a run.

    Attributes:
      role: 'replay', 'train', 'relay', or another one that nobody asks for.
      index: tells several of one role apart.
      address: where others reach it, 'host:port'; '' if they do not.
      contract: what must be equal in all jobs, see `contract`.
      epoch: a learner's, from the lock of its run directory.
    """

    role: str
    index: int = 0
    address: str = ''
    contract: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    epoch: int | None = None


class Coordinator:
    """Asks the coordinator. For many threads: each has a connection of its own.

    Attributes:
      access: how it is reached.
      name: the job's.
    """

    def __init__(self, access: Access, name: str, stop: threading.Event | None = None):
        """Asks nothing yet; `stop` ends all waiting."""
        self.access, self.name = access, name
        self._token = tokens.read(access.token, '--coordinator_token') if access.token else ''
        self._stop = stop or threading.Event()
        self._local, self._connections = threading.local(), list[tuple[HttpClient, threading.Lock]]()
        self._joining, self._closed = threading.Lock(), threading.Event()
        self._incarnation, self._run_id, self._role = '', '', Role('')
        self._owner, self._epoch = control.new_owner(), 0
        self._answered_at = self._warned_at = time.monotonic()
        self._silent_since: float | None = None
        self._thread: background.Thread | None = None

    @property
    def incarnation(self) -> str:
        """Tells the coordinator from the one before a restart; '' before it has answered."""
        return self._incarnation

    @property
    def is_silent(self) -> bool:
        """Whether nothing answered the newest question,
        and its machine did not refuse the connection either.
        """
        return self._silent_since is not None

    @property
    def epoch(self) -> int:
        """A learner's epoch."""
        return self._epoch

    @property
    def what(self) -> str:
        """What it is called in messages."""
        return f'the coordinator at {self.access.address}'

    def join(self, role: Role, timeout_secs: float) -> None:
        """Registers the job; waits for the coordinator, and until the run has a contract.

        A learner beats from now on, until `close`.

        Raises:
          ValueError: if the job does not belong to this run.
          RuntimeError: if it is refused, such as a second learner.
          TimeoutError: if it was not taken in in time.
          Stopped: if the job is asked to stop.
        """
        role = dataclasses.replace(role, contract=json.loads(json.dumps(role.contract)))
        state = ['']

        def registered() -> bool:
            try:
                found = self._register(role)
            except CoordinatorLost:
                state[0] = 'which does not answer'
                return False
            except RequestRefused as refused:
                if not refused.facts.get('lives'):
                    raise UserRuntimeError(str(refused)) from refused
                # One that was killed lives for a few seconds.
                state[0] = f'where another learner is ({refused})'
                return False
            state[0] = f'where no replay server has registered yet ({found["phase"]})'
            return bool(found['contract'])

        wait_until(registered, lambda: f'{self.what}, {state[0]}', timeout_secs, self._stop, _JOIN_SECS)
        if role.role == TRAIN:
            self._thread = background.Thread(target=self._beat, name='beat')
            self._thread.start()

    def announce(self, role: Role) -> None:
        """Registers a job without a contract, now and whenever the coordinator was started again,
        in a thread.
        """

        def run() -> None:
            while not self._closed.wait(_BEAT_SECS):
                with contextlib.suppress(CoordinatorLost, RequestRefused):
                    if not self._incarnation:
                        self._register(role)
                    self.addresses(role.role)
            self._connection()[0].drop()  # which may have been opened in the moment of `close`

        background.Thread(target=run, name='announce').start()

    def _register(self, role: Role, had_epoch: bool = False) -> dict[str, Any]:
        claim = (self._epoch if had_epoch else role.epoch) if role.role == TRAIN else None
        message = {'role': role.role, 'index': role.index, 'address': role.address, 'contract': role.contract}
        headers = {} if claim is None else {CLAIM: f'{claim}/{self._owner}'}
        found = self._ask('POST', '/v1/register', {**message, 'had_epoch': had_epoch}, headers, anonymous=True)
        if self._run_id and found['run_id'] not in ('', self._run_id):
            raise UserValueError(
                f'got {self.what} of the run {found["run_id"]}; need that of {self._run_id}, to which this job '
                'belongs; check --coordinator_address'
            )
        if found['contract']:
            self._run_id, self._epoch, self._role = found['run_id'], found['epoch'], role
            self._incarnation = found['incarnation']
        return found

    def _beat(self) -> None:
        while not self._closed.wait(_BEAT_SECS):
            try:
                self.beat()
            except (CoordinatorLost, RequestRefused, UserValueError) as error:  # who sends something gets it too
                logging.log_every_n_seconds(logging.WARNING, '%s', LOG_EVERY_SECS, error)

    def beat(self, state: str = WORKING) -> None:
        """Reports how the learner is."""
        self._ask('POST', '/v1/beat', {'state': state})

    def addresses(self, role: str) -> list[str]:
        """Returns the addresses of a role's jobs by index, '' for one that has not registered."""
        found = self._ask('GET', f'/v1/addresses/{role}')
        by_index = {int(index): str(address) for index, address in found['addresses'].items()}
        count = max((found['shards'] if role == REPLAY else 0), 1 + max(by_index, default=-1))
        return [by_index.get(i, '') for i in range(count)]

    def replay(self, timeout_secs: float) -> tuple[str, ...]:
        """Waits for all replay servers, and returns their addresses by index."""

        def found() -> tuple[str, ...]:
            with contextlib.suppress(CoordinatorLost):
                addresses = self.addresses(REPLAY)
                return tuple(addresses) if all(addresses) else ()
            return ()

        return wait_until(found, f'the replay servers of {self.what}', timeout_secs, self._stop)

    def weights(self) -> WeightsReader:
        """Returns a reader of the newest weights, from a relay if there are any."""

        def relays() -> Sequence[str]:
            with contextlib.suppress(CoordinatorLost, RequestRefused):
                return [address for address in self.addresses(RELAY) if address]
            return ()

        return WeightsReader(self.access.address, self.name, self._token, relays)

    def put_weights(self, message: Message) -> None:
        """Publishes weights; raises RequestRefused with the fact 'newest_version' if these are old ones."""
        parts = message.parts()
        self._ask('PUT', PATH, body=parts, secs=_PUT_SECS + sum(map(len, parts)) / SLOWEST_BYTES_PER_SEC)

    def report(self, report: control.Report) -> dict[str, Any]:
        """Sends a report; see `State.put_report`. Raises Restarted if it has to be another one."""
        return self._ask('POST', '/v1/report', body=[control.encode(report).encode()], again=False)

    def reports(
        self, after: int, acknowledged: Mapping[str, int], env_steps: Mapping[str, int] = MappingProxyType({})
    ) -> tuple[int, list[control.Report]]:
        """Returns new reports; see `State.reports`.
        Raises Restarted if they are counted from 0 again.
        """
        message = {'after': after, 'acknowledged': acknowledged, 'env_steps': {**env_steps}}
        found = self._ask('POST', '/v1/reports', message, again=False)
        # The coordinator joins the episodes of several reports of one sender.
        return found['number'], [control.decode(text, control.Report, _MAX_ANSWER) for text in found['reports']]

    def put_credits(self, credits: control.Credits) -> None:
        """Replaces the newest credits."""
        self._ask('PUT', '/v1/credits', body=[control.encode(credits).encode()])

    def credits(self, number: int, wait_secs: float) -> tuple[int, control.Credits | None]:
        """Returns the newest credits and their number;
        waits while it is `number`, and then returns None.
        """
        message = {'number': number, 'wait': wait_secs}
        found = self._ask('POST', '/v1/credits', message, secs=wait_secs + _MESSAGE_SECS)
        return found['number'], control.decode(found['credits'], control.Credits) if found['credits'] else None

    def put_counts(self, index: int, tables: Mapping[str, TableCounts]) -> dict[str, Any]:
        """Sends the counts of a replay server's tables. Returns how the learner is;
        see `State.put_counts`.
        """
        return self._ask('PUT', f'/v1/counts/{index}', {name: table.as_json() for name, table in tables.items()})

    def counts(self) -> dict[str, TableCounts] | None:
        """Returns the counts by table, summed over the replay servers that send theirs;
        None if nothing answers.
        """
        try:
            found = self._ask('GET', '/v1/counts')
        except (CoordinatorLost, RequestRefused):
            return None
        parts: dict[str, list[TableCounts]] = {}
        for shard in found.values():
            for name, fields in shard['tables'].items() if shard['secs'] < _OLD_COUNTS_SECS else ():
                parts.setdefault(name, []).append(TableCounts.parse(fields))
        return {name: summed(tables) for name, tables in parts.items()} or None

    def status(self) -> dict[str, Any]:
        """Returns what the coordinator says of itself."""
        return self._ask('GET', STATUS_PATH, anonymous=True)

    def check(self, until_then: str, timeout_secs: float = PEER_TIMEOUT_SECS, last: object = '') -> None:
        """Warns while nothing answers.

        Args:
          until_then: what the job does while there is no answer, for the warning.
          timeout_secs: how long nothing may answer at all. A machine that refuses the connection is
            there: the coordinator may be started again on it.
          last: what was known before, for the error.

        Raises:
          PeerLost: if nothing has answered for too long.
        """
        now, since = time.monotonic(), self._silent_since
        if since is not None and (secs := now - since) >= timeout_secs:
            raise PeerLost(
                f'got no answer from {self.what} for {secs:.0f} s; need one within {timeout_secs:g} s '
                f'(server_timeout_secs); check the network and the server, and start again; when it last answered: '
                f'{last}'
            )
        silent_secs = now - self._answered_at
        if now - max(self._warned_at, self._answered_at) >= LOG_EVERY_SECS:
            self._warned_at = now
            logging.warning('%s has not answered for %.0f s; %s', self.what, silent_secs, until_then)

    def close(self) -> None:
        """Reports that the learner ends, and ends all waiting."""
        if self._thread is not None:
            self._closed.set()
            self._thread.join(_MESSAGE_SECS)
            with contextlib.suppress(CoordinatorLost, RequestRefused, UserValueError):
                self.beat(ENDED)
        self._closed.set()
        for client, asking in list(self._connections):
            client.close()
            with asking:  # which ends soon
                client.drop()

    def _ask(
        self,
        method: str,
        path: str,
        message: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        body: Sequence[bytes | memoryview] | None = None,
        secs: float = _MESSAGE_SECS,
        again: bool = True,
        anonymous: bool = False,
    ) -> dict[str, Any]:
        """Returns the JSON object of an answer.

        Args:
          again: whether to ask a coordinator again that was started again, when it has taken the
            job in.
          anonymous: whether it need not have.

        Raises:
          CoordinatorLost: if no answer came in time.
          Restarted: without `again`.
          RequestRefused: if the coordinator refuses it.
          ValueError: if the job does not belong to the run.
        """
        body = [json.dumps(message).encode()] if message is not None else body
        for _ in range(_TRIES):
            incarnation, all_headers = self._incarnation, dict(headers or {})
            if incarnation and not anonymous:
                all_headers[INCARNATION] = incarnation
                if self._role.role == TRAIN:
                    all_headers[CLAIM] = f'{self._epoch}/{self._owner}'
            status, answer = self._answer(method, path, secs, all_headers, body)
            if status == HTTPStatus.PRECONDITION_FAILED:
                self._join_again(incarnation)
                if not again:
                    raise Restarted(f'{self.what} was started again')
                continue
            if status == HTTPStatus.OK:
                return answer
            if status == HTTPStatus.CONFLICT and (theirs := answer.get('contract')):
                raise UserValueError(differences(self._contract_of(body), theirs, self.what))
            advice = "; give the run's --coordinator_token=FILE" if status == HTTPStatus.UNAUTHORIZED else ''
            raise RequestRefused(f'{self.what} answers {status}: {answer.get("error", "")}{advice}', answer)
        raise CoordinatorLost(f'{self.what} is started again all the time')

    @staticmethod
    def _contract_of(body: Sequence[bytes | memoryview] | None) -> Mapping[str, Any]:
        return dict(json.loads(bytes(body[0]))['contract']) if body else {}

    def _join_again(self, incarnation: str) -> None:
        """Registers at a coordinator that was started again, unless another thread has."""
        with self._joining:
            if self._incarnation == incarnation:
                logging.warning('%s was started again', self.what)
                if not self._register(self._role, had_epoch=True)['contract']:
                    raise CoordinatorLost(f'{self.what} waits for a replay server')

    def _answer(
        self,
        method: str,
        path: str,
        secs: float,
        headers: Mapping[str, str],
        body: Sequence[bytes | memoryview] | None,
    ) -> tuple[int, dict[str, Any]]:
        """Returns the status and the JSON object of an answer;
        raises CoordinatorLost if there is none.
        """
        client, asking = self._connection()
        try:
            with asking:
                response = client.ask(method, path, secs, headers, body)
                answer = json.loads(response.read(_MAX_ANSWER))
        except (OSError, http.client.HTTPException, ValueError) as error:
            client.drop()
            refused = isinstance(error, ConnectionRefusedError)
            self._silent_since = None if refused else self._silent_since or time.monotonic()
            raise CoordinatorLost(f'{self.what} does not answer ({error or type(error).__name__})') from error
        now = time.monotonic()
        if self._warned_at > self._answered_at:
            logging.warning('%s answers again, after %.0f s', self.what, now - self._answered_at)
        self._answered_at, self._silent_since = now, None
        return response.status, answer if isinstance(answer, dict) else {}

    def _connection(self) -> tuple[HttpClient, threading.Lock]:
        """Returns this thread's connection."""
        if not hasattr(self._local, 'connection'):
            self._local.connection = HttpClient(self.access.address, self._token), threading.Lock()
            self._connections.append(self._local.connection)
        connection: tuple[HttpClient, threading.Lock] = self._local.connection
        return connection


def differences(ours: Mapping[str, Any], theirs: Mapping[str, Any], what: str) -> str:
    """Returns the error of a job whose contract is another one; it names the first differences."""
    for part, it_is_of in _WHAT.items():
        if part not in ours or part not in theirs or ours[part] == theirs[part]:
            continue
        here, there = ours[part], theirs[part]
        names = {**theirs.get('_names', {}), **ours.get('_names', {})}
        named = [
            f'{names.get(name, name)} is {there.get(name, "absent")} there, {here.get(name, "absent")} here'
            for name in sorted(here.keys() | there.keys())
            if here.get(name) != there.get(name)
        ]
        return (
            f'got {what} for {it_is_of}: {first_few(named)}; need equal ones in all jobs of a run; '
            'start all with the same gin file'
        )
    return f'got {what} for another run; need equal settings in all jobs; start all with the same gin file'


class LearnerWatch:
    """For how long a replay server has heard nothing of the learner.

    A lost learner cannot be seen otherwise: without a network nothing arrives, no connection ends,
    and a learner that waits for data asks for nothing either. Nothing is watched before the first
    heartbeat, and after one that says that the learner ends.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self._clock, self._updated_at = clock, clock()
        self._beats: int | None = None
        self._heard = False
        self.silent_secs = 0.0  # since the newest heartbeat; 0 before the first one

    def update(self, answer: Mapping[str, Any] | None) -> None:
        """Takes what the coordinator answers to the counts of the tables;
        None if it answers nothing.
        """
        now = self._clock()
        secs, self._updated_at = now - self._updated_at, now
        if answer is not None and answer['beats'] != self._beats:
            self._heard, self.silent_secs = self._beats is not None, 0.0
            self._beats = answer['beats']
        elif self._heard:  # a server that stood still, or saved, could not hear anything
            self.silent_secs += min(secs, _MAX_COUNTED_SECS)
        if answer is not None and answer['learner'] == ENDED:
            self._heard, self.silent_secs = False, 0.0  # until the next one comes

    def is_lost(self, timeout_secs: float) -> bool:
        """Returns whether a learner was there, did not say that it ends,
        and has been silent for so long.
        """
        return self.silent_secs >= timeout_secs
