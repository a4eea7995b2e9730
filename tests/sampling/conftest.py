"""A real replay server, and what reads from it, for every test that asks for one."""

from tests.testing.replay import open_source, serve  # noqa: F401
