"""Publisher: sends the policy's variables to those who act, off the training thread."""

import contextlib
import threading
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging

from tflearn.coordinator import weights_channels, weights_contract
from tflearn.coordinator.weights_channels import Plane
from tflearn.core import background
from tflearn.core.errors import UserValueError
from tflearn.core.finite import FiniteCheck

_CHECK_SECS = 3.0


class Publisher:
    """Publishes a policy's variables with increasing versions."""

    def __init__(self, address: str, variables: Sequence[tf.Variable], plane: Plane = Plane(), epoch: int = 0):
        """Starts the sending thread; nothing is published yet.

        Args:
          address: the replay server's address, 'host:port'. It must be running.
          plane: where weights travel, if not through the replay server.
          epoch: the learner's: a weights server refuses publications of an older one.

        Raises:
          ValueError: if what the server has is made for other variables.
        """
        if len(plane.addresses) > 1:
            raise UserValueError(f'got weights servers at {", ".join(plane.addresses)}; need one to publish to')
        self._variables = list(variables)
        self._columns = weights_contract.signature(self._variables)
        self._check_finite = FiniteCheck(self._weights())
        self._connect = lambda: weights_channels.connect(address, self._variables, plane, epoch=epoch)
        self._channel = self._connect()
        # Only the newest publication matters: it replaces one that waits.
        self._newest: dict[str, Any] | None = None
        self._sent: dict[str, Any] | None = None
        self._wake, self._closing, self._given_up = threading.Event(), threading.Event(), threading.Event()
        self._error: Exception | None = None
        self._thread = background.Thread(target=self._run, name='publisher')
        self._thread.start()

    def newest_version(self) -> int:
        """Returns the policy version that actors currently get; 0 if there is none."""
        with contextlib.closing(self._connect()) as channel:  # the other one is the sending thread's
            return channel.newest_version()

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
            logging.exception('can publish no more weights to %s', self._channel.what)
            self._error = error

    def _send_all(self) -> None:
        """Sends the newest publication until the server has it, and again when a restarted server has none."""
        while not (self._given_up.is_set() or (self._closing.is_set() and self._sent is self._newest)):
            self._wake.wait(_CHECK_SECS)
            self._wake.clear()
            newest = self._newest
            if newest is None or (newest is self._sent and not self._channel.is_lost()):
                continue
            try:
                self._channel.send(newest)
                self._sent = newest
            except RuntimeError as error:
                # Actors use older weights until the server is back.
                version = newest['policy_version']
                logging.warning('could not publish version %d to %s: %s', version, self._channel.what, error)

    def close(self, timeout_secs: float = 15.0) -> None:
        """Sends the last publication, then ends the thread; logs an error if the server did not receive it in time."""
        self._closing.set()
        self._wake.set()
        self._thread.join(timeout_secs)
        self._given_up.set()
        if self._sent is not self._newest:
            logging.error('gave up publishing the last weights to %s', self._channel.what)
        self._channel.close()
