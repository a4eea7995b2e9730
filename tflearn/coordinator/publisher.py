"""Publisher: sends the policy's variables to those who act, off the training thread."""

import dataclasses
import threading
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging

from tflearn.coordinator import weights_contract, weights_messages
from tflearn.coordinator.client import Coordinator
from tflearn.coordinator.weights_reader import Lost, Refused
from tflearn.core import background
from tflearn.core.finite import FiniteCheck

_CHECK_SECS = 0.5
_RETRY_SECS = 1.0


class Publisher:
    """Publishes a policy's variables with increasing versions.

    Attributes:
      least_version: versions below are refused, since somebody acts with a newer one: the next one is at least this.
    """

    def __init__(self, coordinator: Coordinator, variables: Sequence[tf.Variable]):
        """Starts the sending thread; nothing is published yet. The coordinator must have taken the learner in."""
        self._coordinator, self._variables = coordinator, list(variables)
        dtype = coordinator.access.weights_dtype
        self._narrow = None if dtype == 'float32' else tf.as_dtype(dtype).as_numpy_dtype
        self._names = [str(spec.name) for spec in weights_contract.specs(self._variables)]
        self._check_finite = FiniteCheck(self._named(self._values()))
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
        """Returns the newest policy version that anybody acts with, as far as the coordinator knows; 0 if none is."""
        try:
            return int(self._coordinator.status()['newest_version'])
        except (Lost, Refused):
            return 0

    def publish(self, train_step: int, policy_version: int, env_steps: int, finished: bool = False) -> None:
        """Takes a snapshot of the variables and schedules it to be sent.

        Weights that are not finite are not sent: it logs an error and sends the previous weights again with the new
        version, since collectors may wait for it.

        Raises:
          RuntimeError: if the thread that sends has failed.
        """
        if self._error:
            raise RuntimeError('got a failed thread that publishes weights') from self._error
        counts = int(train_step), int(policy_version), int(env_steps), bool(finished), time.time_ns() // 1000
        counters = dataclasses.asdict(weights_contract.Publication(*counts))
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
        """Sends the newest publication until the coordinator has it, and again when it was started again."""
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
            message = weights_messages.make(counters, self._names, values, self._narrow)
            try:
                self._coordinator.put_weights(message)
                self._sent, self._sent_to, failed = newest, self._coordinator.incarnation, ''
            except (Lost, Refused) as error:
                if isinstance(error, Refused) and (newest_version := error.facts.get('newest_version')):
                    self.least_version = newest_version + 1
                    self._wake.set()
                elif str(error) != failed:  # actors use older weights until the coordinator is back
                    failed = str(error)
                    logging.warning('could not publish version %d: %s', counters['policy_version'], error)

    def close(self, timeout_secs: float = 15.0) -> None:
        """Sends the last publication, then ends the thread; logs an error if the server did not receive it in time."""
        self._closing.set()
        self._wake.set()
        self._thread.join(timeout_secs)
        self._given_up.set()
        if self._sent is not self._newest:
            logging.error('gave up publishing the last weights to %s', self._coordinator.what)
