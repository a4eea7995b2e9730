"""A real coordinator in this process, on a free port of localhost, and jobs that it has taken in."""

import contextlib
import threading

import pytest

from tflearn.coordinator.client import Coordinator, Role
from tflearn.coordinator.server import CoordinatorServer
from tflearn.core.access import Access
from tflearn.net.server_options import ServerOptions


class Coordinating:
    """Starts coordinators, and takes jobs in; all are closed with `ending`."""

    def __init__(self, ending):
        self._ending = ending

    def serve(self, port=0, run_id='run', **options):
        """Starts a coordinator."""
        server = CoordinatorServer(ServerOptions('localhost', port, max_request_bytes=1 << 30, **options), run_id)
        return self._ending.enter_context(contextlib.closing(server))

    def job(
        self,
        server,
        name='collect_0',
        role='collect',
        epoch=None,
        contract=None,
        access=None,
        timeout_secs=20.0,
        **given,
    ):
        """Returns a job that `server` has taken in."""
        access = access or Access(f'localhost:{server.port}')
        client = self._ending.enter_context(contextlib.closing(Coordinator(access, name, threading.Event())))
        client.join(
            Role(role, contract={'all': {}} if contract is None else contract, epoch=epoch, **given), timeout_secs
        )
        return client

    def learner(self, server, epoch=1, **given):
        """Returns a learner, which may publish."""
        return self.job(server, 'train', 'train', epoch, **given)


@pytest.fixture
def coordinating():
    with contextlib.ExitStack() as ending:
        yield Coordinating(ending)
