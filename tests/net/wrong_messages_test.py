"""Half-valid messages to every port but the policy server's; `benchmarks/attacks.py` sends 10,000 to each."""

import contextlib

import numpy as np
import prometheus_client
import pytest

from benchmarks import wrong_forms, wrong_messages
from benchmarks.wrong_messages import Port, Sent
from tests.environments.playing import Playing, make
from tflearn.coordinator.client import Coordinator, Role
from tflearn.coordinator.server import CoordinatorServer
from tflearn.core.access import Access
from tflearn.environments.external_server import ExternalOptions
from tflearn.net import metrics_server
from tflearn.net.server_options import ServerOptions

COUNT, SEED = 300, 1
LOCAL = ServerOptions('127.0.0.1', max_request_bytes=1 << 30)


@contextlib.contextmanager
def sending(server):
    port = Port(server.port)
    with contextlib.closing(server), contextlib.closing(port):
        yield port
        assert port.faults == []
        assert port.statuses.keys() > {200}, port.statuses


def send_all(port, forms, count=COUNT):
    for sent in wrong_messages.requests(forms, count, SEED):
        port.send(sent)


def test_a_coordinator_answers_or_names_the_field_and_its_jobs_can_read_what_it_took():
    server = CoordinatorServer(LOCAL)
    with sending(server) as port:
        wrong_forms.take_over(port)
        send_all(port, wrong_forms.coordinator(), 2 * COUNT)
        access = Access(f'127.0.0.1:{server.port}')
        collector, learner = Coordinator(access, 'collect_0'), Coordinator(access, 'train')
        with contextlib.closing(collector), contextlib.closing(learner):
            collector.join(Role('collect'), 20.0)
            assert collector.credits(0, 5.0)[1].items_per_version >= 0
            learner.join(Role('train', epoch=500), 20.0)
            assert learner.reports(0, {})[1][0].lease.owner
            assert learner.counts()['replay'].size >= 0
            assert 'localhost:1' in learner.addresses('collect')


def test_a_relay_answers_or_names_the_field():
    with sending(CoordinatorServer(LOCAL, relays=True)) as port:
        send_all(port, wrong_forms.coordinator())


def test_metrics_are_answered():
    with sending(metrics_server.serve(prometheus_client.CollectorRegistry(), '127.0.0.1', 0, '--port')) as port:
        send_all(port, wrong_forms.METRICS)


def test_simulators_are_answered_or_told_the_field():
    options = ExternalOptions('127.0.0.1', (0,), begin_wait_secs=0.01)
    environment = make(1, options, wrong_forms.OBSERVATION_SPEC)
    with Playing(environment, lambda observation: np.zeros(1, np.int64)):
        port = Port(int(environment.address.rpartition(':')[2]))
        with contextlib.closing(port):
            wrong_forms.play(port, COUNT, SEED)
        assert port.faults == [] and {200, 201, 400} <= port.statuses.keys()


@pytest.mark.parametrize(
    ('path', 'message', 'error'),
    [
        ('PUT /v1/counts/0', {'replay': {'size': float('nan')}}, 'got replay with'),
        ('PUT /v1/counts/0', {'replay': {**wrong_forms.COUNTS, 'min_diff': 10**400}}, 'got replay.min_diff=1000'),
        ('PUT /v1/counts/10000', {}, "got the index '10000'"),
        ('PUT /v1/counts/0', {str(i): {} for i in range(9)}, 'got the counts of 9 tables; need at most 8'),
        ('POST /v1/credits', {'number': 0, 'wait': float('inf')}, 'got wait=inf'),
        ('POST /v1/beat', {'state': 'x' * 1000}, 'got state='),
        ('PUT /v1/credits', {'protocol': 3, 'kind': 'Credits'}, 'shares'),
    ],
)
def test_what_a_job_could_not_read_is_refused_where_it_enters(path, message, error):
    method, _, path = path.partition(' ')
    with contextlib.closing(CoordinatorServer(LOCAL)) as server, contextlib.closing(Port(server.port)) as port:
        wrong_forms.take_over(port)
        headers = dict(wrong_forms.LEARNER.headers)
        status, answer = port.send(Sent(method, path, headers, wrong_messages.encoded(message), None, ''))
        assert status == 400 and error in answer['error'], answer


def test_the_addresses_and_parts_of_a_contract_that_a_coordinator_keeps_are_bounded(monkeypatch):
    monkeypatch.setattr('tflearn.coordinator.state._MAX_ADDRESSES', 3)
    with contextlib.closing(CoordinatorServer(LOCAL)) as server, contextlib.closing(Port(server.port)) as port:

        def register(index, **changed):
            message = {**wrong_forms.LEARNER.message, 'role': 'replay', 'address': 'a:1', 'index': index, **changed}
            return port.send(Sent('POST', '/v1/register', {}, wrong_messages.encoded(message), None, ''))[0]

        assert [register(i) for i in range(5)] == [200, 200, 200, 409, 409]
        assert register(0) == 200, 'a server that was started again'
        assert [register(0, contract={f'part{i}_{j}': {} for j in range(10)}) for i in range(4)] == [200, 200, 409, 409]
