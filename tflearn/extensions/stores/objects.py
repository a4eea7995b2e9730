"""Objects: the objects below a URL, in any store that fsspec knows.
Each is written whole, by one put.

Every call has a deadline and is repeated for a while; what fails then is an OSError, without
credentials in its text.
"""

import concurrent.futures
import contextlib
import errno
import logging as standard_logging
import os
import pathlib
import random
import re
import threading
import time
import urllib.parse
import uuid
from collections.abc import Callable
from typing import Any, TypeVar

from absl import logging

from tflearn.core import extras
from tflearn.core.errors import UserOSError, UserValueError
from tflearn.extensions.stores import store_layout
from tflearn.files.run_dir import is_inside

with extras.needed_by('a run directory in an object store'):
    import fsspec

_Result = TypeVar('_Result')

_RETRY_SECS = 20.0
_CALL_SECS, _LOCK_CALL_SECS = 60.0, 10.0
_BYTES_PER_SEC = 1e6  # of the slowest store that is waited for
_THREADS = 16
_SECRETS = re.compile(r'SECRET|TOKEN|PASSWORD|ACCESS_KEY|CREDENTIALS')
# An object's version, as the stores name it; which of these there are differs.
_VERSION = ('ETag', 'etag', 'generation', 'md5Hash', 'content_md5', 'LastModified', 'mtime', 'created', 'ino')
_FINAL = (FileNotFoundError, FileExistsError, PermissionError, IsADirectoryError, NotImplementedError, TypeError)

Version = tuple[str, ...]


class Objects:
    """The objects below a URL; names are relative to it and have slashes.

    Attributes:
      url: the URL.
    """

    def __init__(self, url: str):
        """Does not connect yet.

        Raises:
          ValueError: if the URL has credentials or is of no store.
          ImportError: if the package for this kind of store is missing.
        """
        self.url = url.rstrip('/')
        _check(self.url)
        # Their debug logs have the headers of requests.
        for name in ('fsspec', 's3fs', 'gcsfs', 'botocore', 'aiobotocore', 'urllib3'):
            standard_logging.getLogger(name).setLevel(standard_logging.WARNING)
        try:
            # Sizes in a listing that is kept would be those of objects before they were replaced.
            self._fs, self._base = fsspec.core.url_to_fs(self.url, use_listings_cache=False)
        except ImportError as error:
            raise UserValueError(
                f'got {self.url}, for which a package is missing; need it installed: {_clean(error)}'
            ) from error
        except Exception as error:
            raise UserValueError(f'got {self.url}, which cannot be used ({_clean(error)}); need another URL') from error
        self._base = self._base.rstrip('/')
        self._is_local = type(self._fs).__name__ == 'LocalFileSystem'
        # Locks have places of their own: they must be renewed while others wait for large objects.
        self._pools = {urgent: concurrent.futures.ThreadPoolExecutor(_THREADS, 'store') for urgent in (False, True)}

    def check_writable(self) -> None:
        """Writes and deletes an object. Raises ValueError if that is not possible."""
        name = f'.probe-{uuid.uuid4().hex}'
        try:
            self.write(name, b'tflearn')
            self.delete(name)
        except OSError as error:
            raise UserValueError(
                f'got {self.url}, which cannot be written to ({_clean(error)}); need a bucket that exists, credentials '
                "for it, and its address if it is not the provider's own; see docs/operate.md"
            ) from error

    def check_creates(self) -> None:
        """Raises ValueError if the store has no conditional put.
        Some ignore the condition, and overwrite.
        """
        name, reason = f'.probe-{uuid.uuid4().hex}', 'it overwrites what exists'
        try:
            creates = self.create(name, b'first') and not self.create(name, b'second')
        except (NotImplementedError, TypeError, UserOSError) as error:
            creates, reason = False, _clean(error)
        finally:
            self.delete(name)
        if not creates:
            raise UserValueError(
                f'got {self.url}, whose store has no conditional put ({reason}); need one for the locks, as S3, Google '
                'and Azure have it'
            )

    def list(self, prefix: str = '', recursive: bool = True) -> dict[str, Version]:
        """Returns the version of each object whose name begins with the folder `prefix`.
        Raises OSError.
        """
        return {name: _version(info) for name, info in self._infos(prefix, recursive).items()}

    def read(self, name: str) -> bytes:
        """Returns an object's content. Raises FileNotFoundError if there is none,
        OSError if it cannot be read.
        """
        content = self._call('read', name, lambda: self._fs.cat_file(self._path(name)))
        return bytes(content)

    def size(self, name: str) -> int:
        """Returns an object's size [bytes]. Raises FileNotFoundError if there is none."""
        return self._call('look at', name, lambda: int(self._fs.info(self._path(name))['size']))

    def write(self, name: str, content: bytes) -> None:
        """Writes an object by one put. Raises OSError."""
        if self._is_local:
            self._call('write', name, lambda: self._replace(name, content))
        else:
            self._call('write', name, lambda: self._fs.pipe_file(self._path(name), content), len(content))

    def upload(self, path: pathlib.Path, name: str) -> None:
        """Writes the content of a file. Raises FileNotFoundError if it is gone,
        OSError if it cannot be written.
        """
        size = path.stat().st_size
        if self._is_local:
            self.write(name, path.read_bytes())
        else:
            self._call('write', name, lambda: self._fs.put_file(str(path), self._path(name)), size)

    def download(self, name: str, path: pathlib.Path, size: int) -> None:
        """Writes an object's content of `size` bytes to a file. Raises OSError."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self._call('read', name, lambda: self._fs.get_file(self._path(name), str(path)), size)

    def delete(self, name: str) -> None:
        """Deletes an object, if it exists. Raises OSError."""
        with contextlib.suppress(FileNotFoundError):
            self._call('delete', name, lambda: self._fs.rm_file(self._path(name)))

    def create(self, name: str, content: bytes) -> bool:
        """Writes an object if there is none of that name; of all that try at once one succeeds.

        By a conditional put: S3's `If-None-Match: *`, a generation of 0 in Google's; see
        `check_creates`.

        Args:
          content: must differ from everybody else's.

        Raises:
          OSError: if the store does not answer.
        """
        try:
            if self._is_local:
                self._call('create', name, lambda: self._link(name, content))
            else:
                self._call('create', name, lambda: self._fs.pipe_file(self._path(name), content, mode='create'))
            return True
        except FileExistsError:
            return self.read(name) == content  # ours, if the answer to an earlier attempt was lost

    def _infos(self, prefix: str, recursive: bool) -> dict[str, dict[str, Any]]:
        path = self._path(prefix).rstrip('/')

        def find() -> list[dict[str, Any]]:
            try:
                if recursive:
                    return list(self._fs.find(path, detail=True).values())
                return [info for info in self._fs.ls(path, detail=True) if info['type'] == 'file']
            except FileNotFoundError:
                return []

        infos = self._call('list', prefix, find)
        start = len(self._base) + 1
        named = {info['name'][start:]: info for info in infos if info['type'] == 'file'}
        named = {name: info for name, info in named.items() if name and not name.endswith('.part')}
        for name in (wrong := [name for name in named if not is_inside(name)]):
            logging.log_first_n(logging.WARNING, 'passed over an object in %s: got the name %.200r', 10, self.url, name)
        return {name: info for name, info in named.items() if name not in wrong}

    def _path(self, name: str) -> str:
        return f'{self._base}/{name}' if name else self._base

    def _replace(self, name: str, content: bytes) -> None:
        with self._written(name, content) as written:
            os.replace(written, self._path(name))

    def _link(self, name: str, content: bytes) -> None:
        with self._written(name, content) as written:
            os.link(written, self._path(name))

    @contextlib.contextmanager
    def _written(self, name: str, content: bytes) -> Any:
        """Makes a file with the content beside the object of a local store, which has no put."""
        path = pathlib.Path(self._path(name))
        path.parent.mkdir(parents=True, exist_ok=True)
        written = path.with_name(f'.{path.name}.{uuid.uuid4().hex}.part')
        try:
            written.write_bytes(content)
            yield written
        finally:
            written.unlink(missing_ok=True)

    def _call(self, what: str, name: str, call: Callable[[], _Result], num_bytes: int = 0) -> _Result:
        """Returns `call()`; repeats it for a while if the store does not answer."""
        give_up, pause, waiting = time.monotonic() + _RETRY_SECS, 0.25, threading.Event()
        while True:
            try:
                return self._answer(call, store_layout.is_lock(name), _CALL_SECS + num_bytes / _BYTES_PER_SEC)
            except _FINAL:
                raise
            except Exception as error:  # the clients raise errors of many libraries
                if time.monotonic() + pause > give_up or getattr(error, 'errno', None) == errno.ENOSPC:
                    raise UserOSError(f'could not {what} {name} in {self.url}: {_clean(error)}') from None
            waiting.wait(pause * random.uniform(0.5, 1.5))
            pause = min(2 * pause, 4.0)

    def _answer(self, call: Callable[[], _Result], urgent: bool, secs: float) -> _Result:
        """Returns `call()`. Raises TimeoutError after `secs`; its thread, which may never return,
        is replaced.
        """
        pool = self._pools[urgent]
        future = pool.submit(call)
        try:
            return future.result(_LOCK_CALL_SECS if urgent else secs)
        except TimeoutError:
            if not future.done() and not future.cancel() and self._pools[urgent] is pool:
                self._pools[urgent] = concurrent.futures.ThreadPoolExecutor(_THREADS, 'store')
                pool.shutdown(wait=False)
            raise


def _version(info: dict[str, Any]) -> Version:
    return (str(info.get('size')), *(str(info[key]) for key in _VERSION if key in info))


def _check(url: str) -> None:
    """Refuses a URL that would show credentials in commands, logs and status files.
    Raises ValueError.
    """
    parts = urllib.parse.urlsplit(url)
    if '@' in parts.netloc or parts.query:
        raise UserValueError(
            f'got a URL of {parts.scheme} with credentials or a query; need them where {parts.scheme} clients look for '
            'them (variables of the environment, their own files), since commands and logs show URLs'
        )
    if not parts.netloc and parts.scheme not in ('file', 'memory'):
        raise UserValueError(f'got {url}; need a URL with a bucket, such as {parts.scheme}://bucket/run')


def _clean(error: BaseException) -> str:
    """Returns an error's kind and first line, without the credentials that this process has."""
    text = f'{type(error).__name__}: {(str(error) or "no reason given").splitlines()[0]}'
    for name, value in os.environ.items():
        if _SECRETS.search(name) and len(value) >= 4:
            text = text.replace(value, '***')
    return re.sub(r'//[^/@\s]+@', '//***@', text)
