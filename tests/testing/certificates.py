"""Certificates for tests of encrypted servers."""

import subprocess

import pytest


def make(folder, name):
    """Makes a key and a self-signed certificate for localhost. Returns their paths."""
    key, file = folder / f'{name}.key', folder / f'{name}.pem'
    command = ['openssl', 'req', '-x509', '-newkey', 'rsa:2048', '-nodes', '-days', '2', '-subj', f'/CN={name}']
    command += ['-addext', 'subjectAltName=DNS:localhost', '-keyout', str(key), '-out', str(file)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60.0)
    if ended.returncode:
        pytest.skip(f'needs an openssl that can sign: {ended.stderr}')
    return key, file
