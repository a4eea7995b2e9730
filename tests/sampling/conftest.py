"""The fixtures of a real replay server and of batch sources."""

from tests.testing.replay import open_source, serve  # noqa: F401
