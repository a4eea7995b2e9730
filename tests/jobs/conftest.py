"""The fixtures of a small run, of a replay server and of a metadata server."""

from tests.testing.jobs import small_run  # noqa: F401
from tests.testing.metadata import metadata  # noqa: F401
from tests.testing.replay import serve  # noqa: F401
