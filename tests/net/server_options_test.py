"""Interfaces that others can reach: none in a network namespace of its own."""

import pathlib
import shutil
import subprocess
import sys

import pytest

from tflearn.net import server_options

ROOT = pathlib.Path(__file__).resolve().parents[2]


def test_the_loopback_interface_does_not_count():
    assert 'lo' not in server_options.reachable()


@pytest.mark.skipif(shutil.which('unshare') is None, reason='needs unshare')
def test_a_namespace_of_its_own_is_not_reachable():
    code = 'from tflearn.net import server_options; print(server_options.reachable())'
    command = ['unshare', '--user', '--map-root-user', '--net', sys.executable, '-c', code]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60.0)
    if 'unshare' in ended.stderr:
        pytest.skip(f'needs namespaces of users: {ended.stderr}')
    assert (ended.stdout, ended.stderr) == ('[]\n', '')
