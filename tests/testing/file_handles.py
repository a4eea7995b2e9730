"""A process without a free file handle."""

import contextlib
import os
import resource
from collections.abc import Iterator


@contextlib.contextmanager
def none_free() -> Iterator[None]:
    """Leaves this process no free file handle."""
    limits, taken = resource.getrlimit(resource.RLIMIT_NOFILE), list[int]()
    most = 1 + max(int(name) for name in os.listdir('/proc/self/fd'))
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, limits[1]))
    try:
        with contextlib.suppress(OSError):
            while True:
                taken.append(os.open(os.devnull, os.O_RDONLY))
        yield
    finally:
        for handle in taken:
            os.close(handle)
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
