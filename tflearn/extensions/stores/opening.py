"""Opens a run directory: a path as it is; a URL as a local copy of this process,
see `StoreCopy`.
"""

import contextlib
import hashlib
import os
import pathlib
import shutil
import tempfile
import uuid
from collections.abc import Iterator

from absl import logging

from tflearn.core.errors import UserOSError, UserValueError
from tflearn.extensions.stores.objects import Objects
from tflearn.extensions.stores.store_copy import StoreCopy
from tflearn.extensions.stores.store_layout import role
from tflearn.files.lock import locked, try_lock
from tflearn.files.run_dir import RunDir, call_by_url

_LOCK = 'lock'


@contextlib.contextmanager
def opened(url: str, job: str, name: str = '') -> Iterator[RunDir]:
    """Provides the local copy of the run at a URL for the block;
    after it everything that was written is there.

    Args:
      url: such as 's3://bucket/run'.
      job: the program, see `roles.role`.
      name: the name of its status file, if that is another one.

    Raises:
      ValueError: if the store cannot be used, not be written to, or has no conditional put.
      OSError: if the last files could not be written; they are kept here then.
    """
    objects, its_role = Objects(url), role(job, name)
    if its_role.writes:
        objects.check_writable()
        objects.check_creates()
    with _scratch(objects.url, job) as root:
        call_by_url(root, objects.url)
        copy = StoreCopy(objects, root, its_role)
        copy.restore()
        copy.start()
        try:
            yield RunDir(root, copy, objects.url)
        finally:
            copy.stop()
            try:
                copy.write_all()
            except OSError as error:
                kept = _parent() / f'kept-{uuid.uuid4().hex[:8]}'
                os.rename(root, kept)
                raise UserOSError(
                    f'{error}; the last files of this job were not written there: they are kept in {kept}'
                ) from error


@contextlib.contextmanager
def _scratch(url: str, job: str) -> Iterator[pathlib.Path]:
    """Makes an empty directory for a copy, and removes those of processes that were killed.

    All launches of a run use the same one, so that a lock of its log works.
    """
    parent = _parent()
    run = hashlib.sha256(url.encode()).hexdigest()[:12]
    if job == 'launch':
        root = parent / f'{run}-launch'
        root.mkdir(exist_ok=True)
        with (parent / f'{root.name}.{_LOCK}').open('ab') as lock:
            if try_lock(lock):  # else another launch has it, whose log refuses this one
                for path in root.iterdir():
                    if path.name != 'logs':
                        shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)
            yield root
        return
    with contextlib.ExitStack() as stack:
        with locked(parent / _LOCK):  # a copy that is not locked yet looks like one that was left
            for path in parent.glob('copy-*'):
                with contextlib.suppress(OSError), (path / _LOCK).open('ab') as lock:
                    if try_lock(lock):
                        shutil.rmtree(path, ignore_errors=True)
            folder = pathlib.Path(tempfile.mkdtemp(prefix=f'copy-{run}-{job}-', dir=parent))
            stack.enter_context(locked(folder / _LOCK))
        root = folder / 'run'
        root.mkdir()
        logging.info('works on a copy of %s in %s', url, root)
        try:
            yield root
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _parent() -> pathlib.Path:
    parent = pathlib.Path(tempfile.gettempdir(), f'tflearn-{os.getuid()}')
    parent.mkdir(mode=0o700, exist_ok=True)
    if parent.is_symlink() or parent.stat().st_uid != os.getuid():
        raise UserValueError(f'got {parent}, which is not yours; need another directory; set TMPDIR')
    return parent
