"""The fixtures of a small run and of a replay server."""

from tests.testing.jobs import small_run  # noqa: F401
from tests.testing.replay import serve  # noqa: F401
