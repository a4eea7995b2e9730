"""The fixture of a real replay server."""

from tests.testing.replay import serve  # noqa: F401
