"""Certificates for tests of encrypted servers."""

import subprocess

import pytest

# Made in a moment, unlike those of RSA.
_NEW_KEY = ('-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:prime256v1', '-nodes')


def make(folder, name):
    """Makes a key and a self-signed certificate for localhost. Returns their paths."""
    key, file = folder / f'{name}.key', folder / f'{name}.pem'
    _openssl(
        *('req', '-x509', *_NEW_KEY, '-days', '2', '-subj', f'/CN={name}'),
        *('-addext', 'subjectAltName=DNS:localhost', '-keyout', key, '-out', file),
    )
    return key, file


def make_authority(folder, name):
    """Makes a key and the certificate of an authority. Returns their paths."""
    key, file = folder / f'{name}.key', folder / f'{name}.pem'
    _openssl(
        *('req', '-x509', *_NEW_KEY, '-days', '2', '-subj', f'/CN={name}'),
        *('-addext', 'keyUsage=critical,keyCertSign', '-keyout', key, '-out', file),
    )
    return key, file


def signed(folder, name, authority, host='localhost'):
    """Makes a key and a certificate of `host` that an authority, of `make_authority`, signs. Returns their paths."""
    key, file, request = (folder / f'{name}.{suffix}' for suffix in ('key', 'pem', 'csr'))
    (folder / 'names').write_text(f'subjectAltName=DNS:{host}')
    _openssl('req', '-new', *_NEW_KEY, '-subj', f'/CN={name}', '-keyout', key, '-out', request)
    _openssl(
        *('x509', '-req', '-in', request, '-CA', authority[1], '-CAkey', authority[0], '-CAcreateserial', '-days', '2'),
        *('-extfile', folder / 'names', '-out', file),
    )
    return key, file


def _openssl(*arguments):
    ended = subprocess.run(['openssl', *map(str, arguments)], capture_output=True, text=True, timeout=60.0)
    if ended.returncode:
        pytest.skip(f'needs an openssl that can sign: {ended.stderr}')
