"""The weights server as a job; a relay is one whose publications come from another server."""

import contextlib
import threading
from collections.abc import Callable, Mapping
from typing import Any

from absl import logging

from tflearn.coordinator.weights_client import Client, Lost, Refused
from tflearn.coordinator.weights_server import Newest, WeightsServer
from tflearn.core import background
from tflearn.net.server_options import ServerOptions

_REPORT_SECS = 1.0


def serve(
    options: ServerOptions,
    upstream: str | None,
    report: Callable[[Mapping[str, Any]], object],
    stop: threading.Event,
) -> None:
    """Serves until `stop` is set.

    Args:
      options: where it listens, and its limits.
      upstream: the server that it relays, 'host:port'; None takes publications from the learner.
      report: called every second with the server's status.

    Raises:
      ValueError: if it cannot listen there, or there is no token.
    """
    with contextlib.ExitStack() as ending:
        server = ending.enter_context(contextlib.closing(WeightsServer(options, takes=not upstream)))
        whose = f'those of {upstream}' if upstream else 'those that train publishes'
        logging.info('serves weights at port %d: %s', server.port, whose)
        if upstream:
            client = Client([upstream], 'relay', options.read_token('--weights_token'))
            ending.enter_context(contextlib.closing(client))
            given = (server.newest, client, stop)
            background.Thread(target=follow, args=given, name='relay').start()
        while not stop.wait(_REPORT_SECS):
            report(server.status())


def follow(newest: Newest, client: Client, stop: threading.Event) -> None:
    """Puts each new publication of another server into `newest`, until `stop` is set and `client` is closed.

    While the other server is down, the relay serves what it has.
    """
    known = newest.message
    was_lost = False
    while not stop.is_set():
        try:
            message = client.get(known)
        except (Lost, Refused) as error:
            if not (was_lost or stop.is_set()):
                logging.warning('%s; what is there is served until it does', error)
            was_lost = True
            client.pause()
            continue
        if was_lost:
            logging.info('the weights server at %s answers again', client.address)
        was_lost = False
        if message is not None:
            known = message
            if not newest.put(message):
                logging.warning('left out a publication of epoch %d: a newer learner has published', message.epoch)
