"""Publisher: pushes the policy's variables, off the training thread."""

import contextlib
import queue
import threading
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import reverb
import tensorflow as tf
from absl import logging

from tflearn.variables import contract

_FLUSH_TIMEOUT_MS = 5_000


class Publisher:
    """Publishes the variables of a policy under rising versions."""

    def __init__(self, address: str, variables: Sequence[tf.Variable]):
        """Starts the sending thread; nothing is published yet.

        Args:
          address: the replay server, 'host:port'. It must be there.
          variables: of the policy that the actors run.

        Raises:
          ValueError: if the server's table is made for other variables.
        """
        self._variables = list(variables)
        self._columns = contract.signature(self._variables)
        contract.check_server(address, self._columns)
        self._address = address
        # Only the newest publication matters: one that waits is replaced by the next.
        self._newest: queue.Queue[dict[str, Any] | None] = queue.Queue(maxsize=1)
        self._thread = threading.Thread(target=self._send_all, name='publisher', daemon=True)
        self._thread.start()

    def newest_version(self) -> int:
        """Returns the policy version that actors see now; 0 if there is none."""
        data = contract.fetch(self._address, self._columns)
        return 0 if data is None else int(data['policy_version'])

    def publish(self, train_step: int, policy_version: int, env_steps: int, finished: bool = False) -> None:
        """Takes a snapshot of the variables and has it sent.

        Args:
          train_step: of the weights.
          policy_version: rises by one with each publication of a run.
          env_steps: of the run so far.
          finished: tells the actors that training is over.
        """
        counters = [np.int64(train_step), np.int64(policy_version), np.int64(env_steps), np.bool_(finished)]
        values = [*counters, np.int64(time.time_ns() // 1000), *(variable.numpy() for variable in self._variables)]
        publication = dict(zip(self._columns, values, strict=True))
        with contextlib.suppress(queue.Empty):
            self._newest.get_nowait()
        self._newest.put(publication)

    def _send_all(self) -> None:
        while (publication := self._newest.get()) is not None:
            try:
                self._send(publication)
            except (reverb.ReverbError, RuntimeError) as error:
                # Actors go on with older weights; the next publication brings them up to date.
                version = publication['policy_version']
                logging.warning('could not publish version %d to %s: %s', version, self._address, error)

    def _send(self, publication: dict[str, Any]) -> None:
        # Validation asks the server for its signatures first, without a deadline; they were checked at the start.
        writer = reverb.Client(self._address).trajectory_writer(num_keep_alive_refs=1, validate_items=False)
        writer.append(publication)
        item = {name: writer.history[name][-1] for name in publication}
        writer.create_item(contract.VARIABLES, 1.0, item)
        writer.flush(timeout_ms=_FLUSH_TIMEOUT_MS)

    def close(self, timeout_secs: float = 15.0) -> None:
        """Sends what waits, then ends the thread."""
        if self._thread.is_alive():
            self._newest.put(None)
            self._thread.join(timeout_secs)
