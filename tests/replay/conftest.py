"""The fixture of a real replay server."""

from tests.testing.replay import open_source, serve  # noqa: F401
