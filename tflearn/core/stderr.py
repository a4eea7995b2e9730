"""Keeps known lines of libraries from stderr. Needs only the standard library."""

import contextlib
import os
import re
import sys
import tempfile
from collections.abc import Iterator


@contextlib.contextmanager
def without(noise: re.Pattern[str]) -> Iterator[None]:
    """Holds back what Python and C++ write to stderr,
    and writes it at the end without the lines that `noise` finds.
    """
    sys.stderr.flush()
    stderr = os.dup(2)
    with tempfile.TemporaryFile('w+', buffering=1, encoding='utf-8', errors='replace') as captured:
        os.dup2(captured.fileno(), 2)
        try:
            # Python's own stderr stays, since log handlers that are made meanwhile keep it.
            with contextlib.nullcontext() if sys.stderr is sys.__stderr__ else contextlib.redirect_stderr(captured):
                yield
        finally:
            sys.stderr.flush()
            os.dup2(stderr, 2)
            os.close(stderr)
            captured.seek(0)
            sys.stderr.writelines(line for line in captured if not noise.search(line))
            sys.stderr.flush()
