"""Publisher: sends the policy's variables to the replay server, off the training thread."""

import threading
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import reverb
import tensorflow as tf
from absl import logging

from tflearn.finite import FiniteCheck
from tflearn.waiting import is_listening
from tflearn.weights import contract

_FLUSH_TIMEOUT_MS = 5_000
_CHECK_SECS = 3.0


class Publisher:
    """Publishes a policy's variables with increasing versions."""

    def __init__(self, address: str, variables: Sequence[tf.Variable]):
        """Starts the sending thread; nothing is published yet.

        Args:
          address: the replay server's address, 'host:port'. It must be running.

        Raises:
          ValueError: if the server's table is made for other variables.
        """
        self._variables = list(variables)
        self._columns = contract.signature(self._variables)
        self._check_finite = FiniteCheck(self._weights())
        contract.check_server(address, self._columns)
        self._address = address
        # Only the newest publication matters: it replaces one that waits.
        self._newest: dict[str, Any] | None = None
        self._sent: dict[str, Any] | None = None
        self._wake, self._closing, self._given_up = threading.Event(), threading.Event(), threading.Event()
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name='publisher', daemon=True)
        self._thread.start()

    def newest_version(self) -> int:
        """Returns the policy version that actors currently get; 0 if there is none."""
        counts = contract.counts(self._address)
        there = counts is not None and counts[0] > 0
        data = contract.fetch(self._address, contract.dataset(self._address, self._columns)) if there else None
        return 0 if data is None else int(data['policy_version'])

    def publish(self, train_step: int, policy_version: int, env_steps: int, finished: bool = False) -> None:
        """Takes a snapshot of the variables and schedules it to be sent.

        Weights that are not finite are not sent: it logs an error and sends the previous weights again with the new
        version, since collectors may wait for it.

        Raises:
          RuntimeError: if the thread that sends has failed.
        """
        if self._error:
            raise RuntimeError('got a failed thread that publishes weights') from self._error
        counters = {
            'train_step': np.int64(train_step),
            'policy_version': np.int64(policy_version),
            'env_steps': np.int64(env_steps),
            'finished': np.bool_(finished),
            'published_at': np.int64(time.time_ns() // 1000),
        }
        weights = self._weights()
        try:
            self._check_finite(weights, f'weights at train step {train_step}')
            self._newest = dict(zip(self._columns, [*counters.values(), *weights.values()], strict=True))
        except FloatingPointError as error:
            logging.error('did not publish the weights of version %d: %s', policy_version, error)
            if self._newest is not None:
                self._newest = {**self._newest, **counters}
        self._wake.set()

    def _weights(self) -> dict[str, np.ndarray]:
        return {f'{variable.name} ({i})': variable.numpy() for i, variable in enumerate(self._variables)}

    def _run(self) -> None:
        try:
            self._send_all()
        except Exception as error:  # the next publication raises it
            logging.exception('can publish no more weights to %s', self._address)
            self._error = error

    def _send_all(self) -> None:
        """Sends the newest publication until the server has it, and again when a restarted server has none."""
        while not (self._given_up.is_set() or (self._closing.is_set() and self._sent is self._newest)):
            self._wake.wait(_CHECK_SECS)
            self._wake.clear()
            newest = self._newest
            if newest is None or (newest is self._sent and not self._is_lost()):
                continue
            try:
                self._send(newest)
                self._sent = newest
            except (reverb.ReverbError, RuntimeError) as error:
                # Actors use older weights until the server is back.
                version = newest['policy_version']
                logging.warning('could not publish version %d to %s: %s', version, self._address, error)

    def _is_lost(self) -> bool:
        """Returns whether the server answers but has no publication, since it was restarted."""
        counts = contract.counts(self._address)
        return counts is not None and counts[0] == 0

    def _send(self, publication: dict[str, Any]) -> None:
        if not is_listening(self._address):
            raise RuntimeError('no server listens there')
        # Validation would first ask the server for its signatures, without a deadline; they were checked at the start.
        writer = reverb.Client(self._address).trajectory_writer(num_keep_alive_refs=1, validate_items=False)
        writer.append(publication)
        item = {name: writer.history[name][-1] for name in publication}
        writer.create_item(contract.VARIABLES, 1.0, item)
        writer.flush(timeout_ms=_FLUSH_TIMEOUT_MS)

    def close(self, timeout_secs: float = 15.0) -> None:
        """Sends the last publication, then ends the thread; logs an error if the server did not receive it in time."""
        self._closing.set()
        self._wake.set()
        self._thread.join(timeout_secs)
        self._given_up.set()
        if self._sent is not self._newest:
            logging.error('gave up publishing the last weights to %s', self._address)
