"""A local server of the S3 protocol (moto), for tests of run directories in object stores."""

import contextlib
import importlib.util
import os
import shutil
import subprocess
import threading
import time
import urllib.request
from collections.abc import Iterator

import pytest

from tflearn.launch.local import free_port

_PROGRAM = os.environ.get('TFLEARN_MOTO_SERVER') or shutil.which('moto_server')
_MISSING = [] if _PROGRAM else ['moto_server (moto[server] in any environment; TFLEARN_MOTO_SERVER=FILE says where)']
_MISSING += [] if importlib.util.find_spec('s3fs') else ['s3fs (the extra stores)']

# A parameter of a fixture whose tests need the server.
S3 = pytest.param('s3', marks=[pytest.mark.skipif(bool(_MISSING), reason=f'needs {" and ".join(_MISSING)}')])
SECRET = 'testing-secret'
_DEADLINE_SECS = 60.0


@contextlib.contextmanager
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Gives the URL of an empty bucket of a server, whose address and credentials are in the environment."""
    port = free_port()
    with subprocess.Popen([str(_PROGRAM), '-H', '127.0.0.1', '-p', str(port)], stderr=subprocess.DEVNULL) as server:
        try:
            monkeypatch.setenv('AWS_ACCESS_KEY_ID', 'testing')
            monkeypatch.setenv('AWS_SECRET_ACCESS_KEY', SECRET)
            monkeypatch.setenv('AWS_DEFAULT_REGION', 'us-east-1')
            monkeypatch.setenv('AWS_ENDPOINT_URL', f'http://127.0.0.1:{port}')
            _make_bucket(port)
            yield 's3://bucket'
        finally:
            server.terminate()


def _make_bucket(port: int) -> None:
    request = urllib.request.Request(f'http://127.0.0.1:{port}/bucket', method='PUT')
    deadline = time.monotonic() + _DEADLINE_SECS
    while True:
        try:
            urllib.request.urlopen(request, timeout=10).close()
            return
        except OSError:  # it is starting
            assert time.monotonic() < deadline
            threading.Event().wait(0.2)
