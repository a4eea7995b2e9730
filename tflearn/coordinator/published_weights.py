"""What is published: the policy's variables, the train step, the policy's version,
and whether training is over. By a Publisher off the training thread;
a Subscriber pulls it into live variables.

Variables are identified by their index; names are only for messages (without the numbers that Keras
appends within a process).
"""

import dataclasses
import re
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging

from tflearn.coordinator import control, weights_transport
from tflearn.coordinator.client import Coordinator, differences
from tflearn.coordinator.weights_transport import CoordinatorLost, Message, RequestRefused
from tflearn.core import background
from tflearn.core.errors import UserValueError
from tflearn.core.finite import finite_check
from tflearn.core.waiting import wait_until

# As the policy version: the learner trains on data that are there already; nobody should act yet.
PRETRAINING = -1
_COUNTED = re.compile(r'_\d+(?=[/:])')
_CHECK_SECS = 0.5
_RETRY_SECS = 1.0
_CLOSE_SECS = 2.0


@dataclasses.dataclass(frozen=True)
class Publication:
    """The counters of a publication; before the first one all are zero.

    Attributes:
      policy_version: counts the run's publications.
      published_at: its time [microseconds since 1970], which distinguishes it: a restored learner
        may repeat versions.
    """

    train_step: int = 0
    policy_version: int = 0
    env_steps: int = 0
    finished: bool = False
    published_at: int = 0


_COUNTERS = [field.name for field in dataclasses.fields(Publication)]


def specs(variables: Sequence[tf.Variable]) -> list[tf.TensorSpec]:
    """Returns the specs of variables.

    Raises:
      ValueError: if one has an unknown dimension.
    """
    for variable in variables:
        if not variable.shape.is_fully_defined():
            raise UserValueError(f'got variable {variable.name} of shape {variable.shape}; need fixed dimensions')
    return [tf.TensorSpec(each.shape, each.dtype, _COUNTED.sub('', each.name)) for each in variables]


def of_variables(columns: Sequence[tf.TensorSpec]) -> dict[str, dict[str, str]]:
    """Returns the part of a contract that is about variables, and their names,
    which are for messages only.
    """
    return {
        'variables': {f'{i:04d}': f'{spec.dtype.name}{list(spec.shape)}' for i, spec in enumerate(columns)},
        '_names': {f'{i:04d}': spec.name for i, spec in enumerate(columns)},
    }


def contract(
    variables: Sequence[tf.Variable],
    signature: Mapping[str, str],
    settings: Mapping[str, str],
    num_shards: int | None = None,
) -> dict[str, Any]:
    """Returns the contract of a job: what must be equal in all jobs of a run, as JSON.

    Signatures compare shapes and types; with another discount or reward all would fit, so settings
    are in it too. The first replay server makes the run's, from its own environment and agent, or
    else the learner.

    Args:
      variables: those that the learner publishes.
      signature: the text of each column of an item of the replay.
      settings: those that all jobs must agree on and that no signature shows.
      num_shards: the number of replay servers; None if the job does not know it.

    Raises:
      ValueError: if a variable has an unknown dimension.
    """
    made: dict[str, Any] = {
        **of_variables(specs(variables)),
        'formats': {'weights': weights_transport.PROTOCOL, 'messages': control.PROTOCOL},
        'signature': dict(signature),
        'settings': dict(settings),
    }
    return made if num_shards is None else {**made, 'shards': {'number': num_shards}}


class Publisher:
    """Publishes a policy's variables with increasing versions.

    Attributes:
      least_version: versions below are refused, since somebody acts with a newer one: the next one
        is at least this.
    """

    def __init__(self, coordinator: Coordinator, variables: Sequence[tf.Variable]):
        """Starts the sending thread; nothing is published yet.
        The coordinator must have taken the learner in.
        """
        self._coordinator, self._variables = coordinator, list(variables)
        dtype = coordinator.access.weights_dtype
        self._narrow = None if dtype == 'float32' else tf.as_dtype(dtype).as_numpy_dtype
        self._names = [str(spec.name) for spec in specs(self._variables)]
        self._check_finite = finite_check(self._named(self._values()))
        self.least_version = 0
        # Only the newest publication matters: it replaces one that waits.
        self._newest: tuple[dict[str, Any], list[np.ndarray]] | None = None
        self._sent: object = None
        self._sent_to = ''
        self._wake, self._closing, self._given_up = threading.Event(), threading.Event(), threading.Event()
        self._error: Exception | None = None
        self._thread = background.Thread(target=self._run, name='publisher')
        self._thread.start()

    def newest_version(self) -> int:
        """Returns the newest policy version that anybody acts with,
        as far as the coordinator knows; 0 if none is.
        """
        try:
            return int(self._coordinator.status()['newest_version'])
        except (CoordinatorLost, RequestRefused):
            return 0

    def publish(self, train_step: int, policy_version: int, env_steps: int, finished: bool = False) -> None:
        """Takes a snapshot of the variables and schedules it to be sent.

        Weights that are not finite are not sent: it logs an error and sends the previous weights
        again with the new version, since collectors may wait for it.

        Raises:
          RuntimeError: if the thread that sends has failed.
        """
        if self._error:
            raise RuntimeError('got a failed thread that publishes weights') from self._error
        counts = int(train_step), int(policy_version), int(env_steps), bool(finished), time.time_ns() // 1000
        counters = dataclasses.asdict(Publication(*counts))
        values = self._values()
        try:
            self._check_finite(self._named(values), f'weights at train step {train_step}')
            self._newest = counters, values
        except FloatingPointError as error:
            logging.error('did not publish the weights of version %d: %s', policy_version, error)
            if self._newest is not None:
                self._newest = counters, self._newest[1]
        self._wake.set()

    def _values(self) -> list[np.ndarray]:
        return [variable.numpy() for variable in self._variables]

    def _named(self, values: list[np.ndarray]) -> dict[str, np.ndarray]:
        return {f'{name} ({i})': value for i, (name, value) in enumerate(zip(self._names, values, strict=True))}

    def _run(self) -> None:
        try:
            self._send_all()
        except Exception as error:  # the next publication raises it
            logging.exception('can publish no more weights to %s', self._coordinator.what)
            self._error = error

    def _send_all(self) -> None:
        """Sends the newest publication until the coordinator has it,
        and again when it was started again.
        """
        failed = ''
        while not (self._given_up.is_set() or (self._closing.is_set() and self._sent is self._newest)):
            self._wake.wait(_RETRY_SECS if failed else _CHECK_SECS)
            self._wake.clear()
            newest = self._newest
            if newest is None or (newest is self._sent and self._sent_to == self._coordinator.incarnation):
                continue
            counters, values = newest
            if 0 <= counters['policy_version'] < self.least_version:
                counters = {**counters, 'policy_version': self.least_version}
            message = weights_transport.make(counters, self._names, values, self._narrow)
            try:
                self._coordinator.put_weights(message)
                self._sent, self._sent_to, failed = newest, self._coordinator.incarnation, ''
            except (CoordinatorLost, RequestRefused) as error:
                if isinstance(error, RequestRefused) and (newest_version := error.facts.get('newest_version')):
                    self.least_version = newest_version + 1
                    self._wake.set()
                elif str(error) != failed:  # actors use older weights until the coordinator is back
                    failed = str(error)
                    logging.warning('could not publish version %d: %s', counters['policy_version'], error)

    def close(self, timeout_secs: float = 15.0) -> None:
        """Sends the last publication, then ends the thread;
        logs an error if the server did not receive it in time.
        """
        self._closing.set()
        self._wake.set()
        self._thread.join(timeout_secs)
        self._given_up.set()
        if self._sent is not self._newest:
            logging.error('gave up publishing the last weights to %s', self._coordinator.what)


class Subscriber:
    """Keeps a policy's variables at the newest published version.

    A thread waits for new publications. The acting thread assigns them between two steps.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        variables: Sequence[tf.Variable],
        train_step: tf.Variable,
        stop: threading.Event | None = None,
    ):
        """Starts to wait.

        Args:
          variables: the acting policy's variables, in the publisher's order.
          train_step: the variable that is set to the published train step, for schedules.
          stop: ends all waiting when set.
        """
        self._variables, self._train_step, self._stop = [*variables], train_step, stop
        self._contract = of_variables(specs(self._variables))
        self._reader, self._what = coordinator.weights(), coordinator.what
        self._error: UserValueError | None = None
        self.newest = Publication()
        self._found: list[tuple[dict[str, Any], list[np.ndarray]]] = []
        self._closed, self._news = threading.Event(), threading.Event()
        self._thread = background.Thread(target=self._receive, name='subscriber')
        self._thread.start()

    def pull(self) -> bool:
        """Assigns the newest publication, if it is a new one. Never waits.

        Raises:
          ValueError: if it is made for other variables.
        """
        self._news.clear()  # before the check: a publication found after it sets the event again
        if self._error:
            raise self._error
        if not self._found:
            return False
        counters, values = self._found.pop()
        for variable, value in zip(self._variables, values, strict=True):
            # `assign` takes three times as long; shapes and types were compared when they came.
            tf.raw_ops.AssignVariableOp(resource=variable.handle, value=value)
        self._train_step.assign(counters['train_step'])
        self.newest = Publication(**counters)
        return True

    def wait(self, timeout_secs: float) -> None:
        """Waits for the first publication of a learner that is still training,
        and whose policy should act.

        Each publication of a learner that trains on demonstrations first begins the time limit
        again. If training ends meanwhile, it returns too.

        Raises:
          TimeoutError: if no learner publishes in time.
          Stopped: if the job is asked to stop.
        """
        what = f'weights from a learner that trains, through {self._what}'
        wait_until(lambda: self.pull() and not self.newest.finished, what, timeout_secs, self._stop)
        while self.newest.policy_version == PRETRAINING and not self.newest.finished:
            wait_until(self.pull, what, timeout_secs, self._stop)

    def wait_for_next(self, secs: float) -> None:
        """Waits until there is a publication to pull, for at most `secs`."""
        self._news.wait(secs)

    def close(self) -> None:
        """Stops waiting."""
        self._closed.set()
        self._reader.close()
        self._thread.join(_CLOSE_SECS)

    def _receive(self) -> None:
        known, published_at, version = None, None, 0
        while not self._closed.is_set():
            try:
                message = self._reader.get(known)
                if message is None:
                    continue
                known = message
                counters = {name: message.counters[name] for name in _COUNTERS}
                # Of a learner that does not know ours yet.
                is_old = 0 <= counters['policy_version'] < version
                if is_old or counters['published_at'] == published_at:  # or sent again
                    continue
                published_at, version = counters['published_at'], max(version, counters['policy_version'])
                self._found[:] = [(counters, self._values(message))]
                self._news.set()
            except CoordinatorLost:
                self._reader.pause()
            except UserValueError as error:
                self._error = error
                self._news.set()
                return
            except Exception:  # without this thread a collector would use old weights forever
                if not self._closed.is_set():
                    logging.exception('could not read weights from %s', self._what)
                self._closed.wait(_RETRY_SECS)

    def _values(self, message: Message) -> list[np.ndarray]:
        """Returns the variables of a message; raises ValueError if they are not those of our variables."""
        try:
            theirs = [tf.TensorSpec(each.shape, tf.as_dtype(each.dtype), each.name) for each in message.variables]
            contract = of_variables(theirs)
            if contract['variables'] != self._contract['variables']:
                raise UserValueError(differences(self._contract, contract, self._what))
            return weights_transport.values(message, lambda name: np.dtype(tf.as_dtype(name).as_numpy_dtype))
        except (TypeError, ValueError) as error:
            raise UserValueError(str(error)) from error
