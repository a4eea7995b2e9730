"""Stores in memory, in a directory, and of a local server."""

import contextlib
import functools

import pytest

from tests.testing import s3_server


@pytest.fixture(params=['memory', 'file', s3_server.S3])
def url(request, tmp_path, s3_bucket):
    if request.param == 's3':
        return f'{s3_bucket()}/{tmp_path.name}/run'
    return f'memory://{tmp_path.name}-{id(request)}/run' if request.param == 'memory' else f'file://{tmp_path}/store'


@pytest.fixture(scope='module')
def s3_bucket():
    """Returns a function that returns the URL of a bucket, and starts its server first."""
    with pytest.MonkeyPatch.context() as monkeypatch, contextlib.ExitStack() as opened:
        yield functools.cache(lambda: opened.enter_context(s3_server.bucket(monkeypatch)))
