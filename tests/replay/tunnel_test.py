"""A replay server behind a tunnel: writers and samplers work, strangers do not reach it."""

import dataclasses

import pytest

from tests.testing import certificates
from tests.testing.replay import BATCH, draw, experience, fill
from tflearn.coordinator import reports
from tflearn.core.waiting import wait_until
from tflearn.net import tls
from tflearn.net.tunnel import Address, Side, TunnelOptions, opened
from tflearn.replay import connection

DEADLINE_SECS = 30.0


@pytest.fixture(scope='module')
def files(tmp_path_factory):
    """The files of the server, of a collector and of two strangers."""
    folder = tmp_path_factory.mktemp('certificates')
    own, other = (certificates.make_authority(folder, name) for name in ('own_ca', 'other_ca'))
    found = {}
    for name, authority in (('server', own), ('collector', own), ('stranger', other)):
        key, certificate = certificates.signed(folder, name, authority)
        found[name] = tls.TlsFiles(certificate, key, own[1])
    return found


def client(server, files):
    to = Address('localhost', server.port)
    return opened(TunnelOptions(Side.CLIENT, Address('localhost', 0), to, files))


@pytest.mark.parametrize('sampling', ['learner', 'server'])
def test_a_writer_and_a_sampler_work_and_strangers_do_not_reach_the_server(serve, open_source, files, sampling):
    served = serve(experience(sampling, sequence_length=3))
    options = TunnelOptions(
        Side.SERVER, Address('localhost', 0), Address('localhost', served.server.port), files['server']
    )
    with opened(options) as server, client(server, files['collector']) as here:
        through = dataclasses.replace(served, address=f'localhost:{here.port}')
        writer = fill(through)
        trajectory, info = draw(open_source(through), 3)
        writer.join(DEADLINE_SECS)
        assert trajectory.observation.shape == (3, BATCH, 3, 2)
        assert (info['policy_version'].numpy() == 7).all(), 'the version that was written'
        assert connection.send(through.address, reports.REPORTS, 'report', 'a report')
        assert connection.receive(served.address, reports.REPORTS, 1) == [b'a report']
        inserted = served.table(reports.REPORTS).rate_limiter_info.insert_stats.completed
        with client(server, files['stranger']) as strange:
            for port in (strange.port, server.port):  # with another authority's certificate, and without one
                assert connection.server_info(f'localhost:{port}') is None
                assert not connection.send(f'localhost:{port}', reports.REPORTS, 'report', 'a lie')
        assert served.table(reports.REPORTS).rate_limiter_info.insert_stats.completed == inserted == 1


def test_jobs_find_out_that_the_server_behind_a_tunnel_is_down(files):
    nobody = Address('localhost', 1)
    options = TunnelOptions(Side.SERVER, Address('localhost', 0), nobody, files['server'])
    with opened(options) as server, client(server, files['collector']) as here:
        address = f'localhost:{here.port}'
        assert connection.server_info(address) is None
        assert not connection.send(address, reports.REPORTS, 'report', 'a report')
        wait_until(lambda: not server.num_connections, 'the end of the connections', DEADLINE_SECS)
