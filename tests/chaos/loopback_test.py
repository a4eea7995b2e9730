"""A machine without IPv4: whose only address is `::1`, a network namespace of its own."""

import subprocess
import sys

import pytest

from tests.chaos.chaos_run import ROOT, ChaosRun

HOSTS = '::1 localhost\n::1 {}\n'
ALONE = 'ip link set lo up && ip addr del 127.0.0.1/8 dev lo && mount --bind "$0" /etc/hosts && exec "$@"'


def prefix(hosts, *command):
    """Returns a command as that machine runs it."""
    return ['unshare', '--net', '--mount', 'sh', '-c', ALONE, str(hosts), *command]


def has_namespaces(tmp_path):
    hosts = tmp_path / 'hosts'
    hosts.write_text('')
    return subprocess.run(prefix(hosts, 'true'), capture_output=True, check=False).returncode == 0


@pytest.mark.chaos
@pytest.mark.parametrize('backend', ['reverb', 'valkey'])
def test_a_run_and_its_servers_work_by_ipv6_alone(tmp_path, backend):
    if not has_namespaces(tmp_path):
        pytest.skip('needs root, unshare and ip, to make a network namespace')
    name = subprocess.run(['hostname'], capture_output=True, text=True, check=True).stdout.strip()
    (tmp_path / 'hosts').write_text(HOSTS.format(name))
    bindings = ('train.StopConditions.num_train_steps=600', 'evaluate.evaluate.target_return=None')
    run = ChaosRun(tmp_path, 'dqn_cartpole', bindings, [f'--replay_backend={backend}'])
    run._command = prefix(tmp_path / 'hosts', *run._command)
    with run.started():
        assert run.wait() == 0, run.output.read_text()[-3000:]
    asked = subprocess.run(
        prefix(tmp_path / 'hosts', sys.executable, '-m', 'tests.chaos.loopback_program', str(run.run_dir.root)),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300.0,
        check=False,
    )
    lines = asked.stdout.splitlines()
    assert [line for line in lines if line.startswith(('localhost', '[::1]'))] == [
        f'{host} {answer}'
        for host in ('localhost', '[::1]')
        for answer in ('gRPC 600', '/v1/models/greedy_policy 200', '/metrics 200', '/metrics 200')
    ], asked.stdout[-2000:] + asked.stderr[-3000:]
