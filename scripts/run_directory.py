"""The run directory of a program: a path, or a URL in an object store, of which the program gets a local copy."""

import contextlib
from collections.abc import Iterator

from tflearn.files.run_dir import RunDir, is_url


@contextlib.contextmanager
def opened(root: str, job: str, name: str = '') -> Iterator[RunDir]:
    """Gives the run directory that --root_dir names.

    Args:
      root: a path or a URL.
      job: the program, which decides what is copied from a URL and to it.
      name: the name of its status file, if that is another one.

    Raises:
      ValueError: if it cannot be used.
      ImportError: if it is a URL and fsspec is missing.
      OSError: if the last files could not be written to the store.
    """
    if not is_url(root):
        yield RunDir(root)
        return
    from tflearn.files import opening  # which loads fsspec

    with opening.opened(root, job, name) as run_dir:
        yield run_dir
