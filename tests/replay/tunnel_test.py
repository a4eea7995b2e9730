"""A replay server behind stunnel as docs/security.md sets it up: writers and samplers work, strangers are refused."""

import contextlib
import dataclasses
import pathlib
import shutil
import subprocess

import pytest

from tests.testing import certificates, docs_blocks
from tests.testing.replay import BATCH, draw, experience, fill
from tflearn.core.waiting import wait_until
from tflearn.launch.local import free_port
from tflearn.replay import backend

DEADLINE_SECS = 30.0
STUNNEL = shutil.which('stunnel') or '/usr/bin/stunnel'


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
    """A folder with the certificates that the page's commands make, and one of a stranger's authority."""
    folder = tmp_path_factory.mktemp('certificates')
    (block,) = [each.text for each in docs_blocks.of('bash') if 'run-authority' in each.text]
    subprocess.run(['bash', '-e'], input=block, cwd=folder, text=True, capture_output=True, timeout=60, check=True)
    key, certificate = certificates.signed(folder, 'stranger', certificates.make_authority(folder, 'other_ca'))
    assert (key.name, certificate.name) == ('stranger.key', 'stranger.pem')
    return folder


def configuration(name, **values):
    """Returns a configuration of the page, with other values; None removes the line."""
    (block,) = [each.text for each in docs_blocks.of('text') if each.text.startswith(f'; {name}.conf\n')]
    lines = []
    for line in block.splitlines():
        key = line.partition(' = ')[0]
        value = values.pop(key, line.partition(' = ')[2])
        lines += [f'{key} = {value}' if ' = ' in line else line] if value is not None else []
    assert not values, 'the page has these lines'
    return '\n'.join(lines) + '\n'


@contextlib.contextmanager
def stunnel(folder, name, **values):
    """Runs stunnel with a configuration of the page and other ports. Yields the port that it listens at."""
    port = free_port()
    file = folder / f'{port}.conf'
    file.write_text(configuration(name, accept=f'localhost:{port}', **values))
    with file.with_suffix('.log').open('wb') as log:
        process = subprocess.Popen([STUNNEL, file.name], cwd=folder, stdout=log, stderr=log)
    try:
        text = lambda: file.with_suffix('.log').read_text(errors='replace')  # noqa: E731
        wait_until(lambda: 'Configuration successful' in text() or process.poll(), 'stunnel', DEADLINE_SECS)
        assert process.poll() is None, text()
        yield port
    finally:
        process.terminate()
        process.wait(DEADLINE_SECS)


def test_the_commands_of_the_page_make_certificates_of_one_authority(folder):
    verify = ['openssl', 'verify', '-CAfile', 'ca.pem']
    for name, valid in (('replay', True), ('collector', True), ('stranger', False)):
        ended = subprocess.run([*verify, f'{name}.pem'], cwd=folder, capture_output=True, timeout=DEADLINE_SECS)
        assert (ended.returncode == 0) == valid


@pytest.mark.skipif(not pathlib.Path(STUNNEL).exists(), reason='needs stunnel')
@pytest.mark.parametrize('sampling', ['learner', 'server'])
def test_a_writer_and_a_sampler_work_and_strangers_do_not_reach_the_server(serve, open_source, folder, sampling):
    served = serve(experience(sampling, sequence_length=3))
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(stunnel(folder, 'replay', connect=f'localhost:{served.server.port}'))
        to = f'localhost:{server}'
        through = stack.enter_context(stunnel(folder, 'collector', connect=to))
        strangers = [
            server,  # without TLS
            stack.enter_context(stunnel(folder, 'collector', connect=to, cert=None, key=None)),
            stack.enter_context(stunnel(folder, 'collector', connect=to, cert='stranger.pem', key='stranger.key')),
            stack.enter_context(stunnel(folder, 'collector', connect=to, checkHost='elsewhere')),
        ]
        here = dataclasses.replace(served, address=f'localhost:{through}')
        writer = fill(here)
        trajectory, info = draw(open_source(here), 3)
        writer.join(DEADLINE_SECS)
        assert trajectory.observation.shape == (3, BATCH, 3, 2)
        assert (info['policy_version'].numpy() == 7).all(), 'the version that was written'
        assert backend.counts(here.address)['replay'].inserts > 0
        for port in strangers:
            assert backend.counts(f'localhost:{port}') is None
